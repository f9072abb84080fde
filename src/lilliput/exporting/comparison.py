"""Compare an export with its run: a consumer in another process reads the export, and both compute from the same texts.

Owns: what is compared (ids, logits, greedy tokens), the limits, and the error of an export that differs. Does not own: the
texts (`comparison_texts`), the consumers (`huggingface_reader`, `gguf_file_reader`), or writing exports (`export`).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from lilliput.data.tokenizers import Tokenizer
from lilliput.errors import UserError
from lilliput.model.transformer import Transformer, evaluating

TOLERANCE = 1e-4  # largest difference of two logits in float32
GREEDY_TOKENS, PROMPTS = 50, 3
SECONDS = 1800  # for the consumer; it takes about ten
READER = "huggingface_reader.py"


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison that found no difference above the limits."""

    texts: int
    source: str
    largest_difference: float
    greedy_tokens: int
    ties: int  # greedy tokens that differ because two logits are equal within the tolerance
    consumer: str


def different(what: str, where: str) -> UserError:
    """Return the error of an export that differs from its run. Nothing is left of it."""
    fix = "write an issue for Lilliput with the settings of the run; the export was removed"
    return UserError(f"the export differs from the run: {what}", where, fix=fix, code="export.different")


def read_in_child(reader: str, request: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Run a reader in another process that imports nothing of Lilliput, and return its answer."""
    question = out / "request.json"
    question.write_text(json.dumps(request), "utf-8")
    command = [sys.executable, "-P", str(Path(__file__).with_name(reader)), str(question), str(out)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=environment, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise different(f"the consumer did not end within {SECONDS:,} seconds", reader) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise different(f"the consumer cannot read it ({' '.join(last.split())[:300]})", reader)
    answer: dict[str, Any] = json.loads((out / "answer.json").read_text("utf-8"))
    return answer


def encode_document(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids that begin a document with this text."""
    return [tokenizer.start, *tokenizer.encode(text)]


def compute_logits(model: Transformer, ids: Sequence[int]) -> Tensor:
    """Return the logits (T, V) after each of the first tokens, at most a context."""
    with evaluating(model), torch.inference_mode():
        logits: Tensor = model(torch.tensor([ids[: model.settings.context]]))[0]
        return logits


def prompts_of(texts: Sequence[str]) -> list[str]:
    """Return prompts for greedy decoding: the first words of the first texts."""
    return [" ".join(text.split()[:6]) for text in texts[:PROMPTS]]


def room(model: Transformer, ids: Sequence[int]) -> int:
    """Return how many greedy tokens fit into the context after these ids."""
    return max(0, min(GREEDY_TOKENS, model.settings.context - len(ids)))


def compare_ids(
    texts: Sequence[str], expected: Sequence[Sequence[int]], found: Sequence[Sequence[int]], where: str
) -> None:
    for text, ours, theirs in zip(texts, expected, found, strict=True):
        if list(ours) != list(theirs):
            pairs = zip([*ours, None], [*theirs, None], strict=False)
            at = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
            raise different(
                f"token {at} of the text {text[:40]!r} is {theirs[at : at + 1]} (expected {list(ours[at : at + 1])})",
                where,
            )


def largest_difference(expected: Tensor, found: Tensor, where: str) -> float:
    if expected.shape != found.shape:
        raise different(f"logits have shape {tuple(found.shape)} (expected {tuple(expected.shape)})", where)
    gap = float((expected.double() - found.double()).abs().max())
    if not gap <= TOLERANCE:  # also if it is not a number
        shown = f"{gap:.2g}" if math.isfinite(gap) else "not finite"
        raise different(f"the largest difference of two logits is {shown} (at most {TOLERANCE:g} is allowed)", where)
    return gap


def compare_greedy(model: Transformer, prompt: Sequence[int], found: Sequence[int], end: int, where: str) -> int:
    """Check that greedy decoding gives these tokens; return the number of ties, after which texts may differ."""
    ids = list(prompt)
    for number in range(room(model, prompt)):
        logits = compute_logits(model, ids)[-1]
        ours, theirs = int(logits.argmax()), found[number] if number < len(found) else None
        if ours != theirs:
            if theirs is not None and float(logits[ours] - logits[theirs]) <= 2 * TOLERANCE:
                return 1
            raise different(f"greedy token {number} is {theirs} (expected {ours})", where)
        if ours == end:
            return 0
        ids.append(ours)
    return 0


def compare_huggingface(
    model: Transformer, tokenizer: Tokenizer, folder: Path, texts: Sequence[str], source: str
) -> Comparison:
    """Compare a Hugging Face folder with the model and tokenizer of its run; raise if they differ."""
    expected = [encode_document(tokenizer, text) for text in texts]
    prompts = prompts_of(texts)
    starts = [encode_document(tokenizer, prompt) for prompt in prompts]
    request = {
        "folder": str(folder.absolute()),
        "texts": list(texts),
        "prompts": prompts,
        "new_tokens": [room(model, ids) for ids in starts],
    }
    with tempfile.TemporaryDirectory() as place:
        out = Path(place)
        answer = read_in_child(READER, request, out)
        where = f"transformers {answer['version']}"
        compare_ids(texts, expected, answer["ids"], where)
        largest = 0.0
        for number, ids in enumerate(expected):
            theirs = load_file(out / f"logits-{number}.safetensors")["logits"]
            largest = max(largest, largest_difference(compute_logits(model, ids), theirs, where))
    ties = sum(
        compare_greedy(model, ids, tokens, tokenizer.end, where)
        for ids, tokens in zip(starts, answer["greedy"], strict=True)
    )
    counted = sum(map(len, answer["greedy"]))
    return Comparison(len(texts), source, largest, counted, ties, where)
