"""Compare a GGUF file with its run: it is read back in another process, by gguf's own reader.

Owns: the checks of metadata, tensors and ids, and the difference that a program with exact arithmetic would still show: rounded
weights and the tanh form of gelu. Does not own: writing the file (`gguf_file`), or the comparison of Hugging Face folders
(`comparison`).
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from torch import Tensor

from lilliput.data.tokenizers import Tokenizer
from lilliput.exporting.comparison import compare_ids, compute_logits, different, encode_document, read_in_child
from lilliput.exporting.gguf_architectures import Architecture
from lilliput.exporting.gguf_file import Precision, stored, tensor_type
from lilliput.model.layers import GeluFeedForward
from lilliput.model.transformer import Transformer

READER = "gguf_file_reader.py"
# Largest error of a weight by type: relative to the largest weight of the tensor, and absolute. Half a step of rounding; the
# scale of a block of q8_0 is a float16, whose smallest step is 2^-24.
ROUNDING = {"f32": (0.0, 0.0), "f16": (2.0**-11, 2.0**-25), "q8_0": (0.5 / 127 + 2.0**-10, 127 * 2.0**-25)}


@dataclass(frozen=True)
class FileComparison:
    """The result of reading a file back: every tensor, the metadata, and the ids of the texts are those of the run.

    `rounding_difference` is the largest difference of two logits between the model and the model that the file describes,
    computed by Lilliput: the effect of rounded weights and of the tanh form of gelu.
    """

    texts: int
    source: str
    tensors: int
    float16_instead: int  # matrices of a q8_0 file whose rows cannot be q8_0
    rounding_difference: float
    consumer: str


def compare_file(
    model: Transformer,
    tokenizer: Tokenizer,
    architecture: Architecture,
    precision: Precision,
    file: Path,
    metadata: Mapping[str, Any],
    texts: Sequence[str],
    source: str,
) -> FileComparison:
    """Compare a file with the model and tokenizer of its run; raise if they differ."""
    expected = architecture.tensors(model)
    with tempfile.TemporaryDirectory() as place:
        out = Path(place)
        answer = read_in_child(READER, {"file": str(file.absolute()), "texts": list(texts)}, out)
        found = load_file(out / "tensors.safetensors")
    where = f"gguf {answer['version']}"
    compare_metadata(metadata, answer["metadata"], where)
    if found.keys() != expected.keys():
        raise different(f"tensors {sorted(found.keys() ^ expected.keys())[:3]} are missing or not expected", where)
    for name, tensor in expected.items():
        compare_tensor(name, tensor, answer["types"][name], precision, found[name], where)
    compare_ids(texts, [encode_document(tokenizer, text) for text in texts], answer["ids"], where)
    gap = rounding_difference(model, tokenizer, precision, texts)
    instead = sum(kind == "f16" for kind in answer["types"].values()) if precision == "q8_0" else 0
    return FileComparison(len(texts), source, len(expected), instead, gap, where)


def compare_metadata(expected: Mapping[str, Any], found: Mapping[str, Any], where: str) -> None:
    for key, value in expected.items():
        theirs = found.get(key)
        if isinstance(value, list) and value and isinstance(value[0], float):
            value = [float(np.float32(one)) for one in value]
        elif isinstance(value, float):
            value = float(np.float32(value))
        if theirs != value:
            raise different(f"{key} is {str(theirs)[:60]} (expected {str(value)[:60]})", where)


def compare_tensor(
    name: str, tensor: Tensor, kind: str, precision: Precision, found: np.ndarray[Any, Any], where: str
) -> None:
    """Check that a tensor has the right type and values: bit-equal to the written ones, and those close to the model's."""
    from gguf import quants

    wanted = tensor_type(name, tensor, precision)
    values = tensor.float().numpy()
    data, number = stored(tensor, wanted)
    if kind != wanted or found.shape != values.shape:
        raise different(f"tensor {name} is {kind} {found.shape} (expected {wanted} {values.shape})", where)
    if not np.array_equal(found, quants.dequantize(data, number)):
        raise different(f"the values of tensor {name} are not those that were written", where)
    relative, absolute = ROUNDING[wanted]
    if np.abs(found - values).max(initial=0.0) > relative * np.abs(values).max(initial=0.0) + absolute:
        raise different(f"the values of tensor {name} are not those of the model", where)


@torch.no_grad()
def described_model(model: Transformer, precision: Precision) -> Transformer:
    """Return the model with the weights of the file, and gelu in its tanh form."""
    from gguf import quants

    rounded = copy.deepcopy(model)
    for name, weight in rounded.named_parameters():
        kind = tensor_type(
            "position_embd.weight" if name.startswith("positions.") else name, weight.detach(), precision
        )
        if kind != "f32":
            data, number = stored(weight.detach(), kind)
            weight.copy_(torch.from_numpy(np.array(quants.dequantize(data, number))))
    for part in rounded.modules():
        if isinstance(part, GeluFeedForward):
            part.activate = tanh_gelu  # type: ignore[method-assign]
    return rounded


def tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def rounding_difference(model: Transformer, tokenizer: Tokenizer, precision: Precision, texts: Sequence[str]) -> float:
    described, largest = described_model(model, precision), 0.0
    for text in texts:
        ids = encode_document(tokenizer, text)
        gap = (compute_logits(model, ids) - compute_logits(described, ids)).abs().max()
        largest = max(largest, float(gap))
    return largest
