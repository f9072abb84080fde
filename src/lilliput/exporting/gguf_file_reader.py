"""Read a GGUF file with gguf's own reader, and return what is compared with the run. Runs in its own process.

Imports gguf and tokenizers and nothing of Lilliput, so that a success depends only on the file. Called by `gguf_comparison` as
    python gguf_file_reader.py REQUEST.json OUT
Reads {"file", "texts"}; writes OUT/answer.json with {"metadata", "types", "ids", "version"} and OUT/tensors.safetensors with
every tensor in float32. The ids are computed from the tokens and merges of the file alone. Owns: nothing else.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

CONTROL = 3


def encode(metadata: dict[str, Any], texts: list[str]) -> list[list[int]]:
    """Return the ids of the texts as llama.cpp defines them for this tokenizer: byte-level BPE with GPT-2's pattern."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    assert (metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    pieces, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    vocabulary = {piece: number for number, piece in enumerate(pieces) if types[number] != CONTROL}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    known = [(left, right) for left, right in merges if {left, right, left + right} <= vocabulary.keys()]
    tokenizer = Tokenizer(models.BPE(vocabulary, known))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    first = [metadata["tokenizer.ggml.bos_token_id"]] if metadata["tokenizer.ggml.add_bos_token"] else []
    return [first + tokenizer.encode(text).ids for text in texts]


def read(request: dict[str, Any], out: Path) -> dict[str, Any]:
    import numpy as np
    from gguf import GGUFReader, quants
    from safetensors.numpy import save_file

    reader = GGUFReader(request["file"])
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {one.name: np.array(quants.dequantize(one.data, one.tensor_type)) for one in reader.tensors}
    save_file(tensors, out / "tensors.safetensors")
    types = {one.name: one.tensor_type.name.lower() for one in reader.tensors}
    return {
        "metadata": metadata,
        "types": types,
        "ids": encode(metadata, request["texts"]),
        "version": version("gguf"),
    }


if __name__ == "__main__":
    place = Path(sys.argv[2])
    answer = read(json.loads(Path(sys.argv[1]).read_text("utf-8")), place)
    (place / "answer.json").write_text(json.dumps(answer), "utf-8")
