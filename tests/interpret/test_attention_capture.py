"""Captured weights equal those of a forward pass: of a text, with padding, truncated, and during generation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from helpers.attention_pages import small_writer
from helpers.small_runs import trained
from helpers.user_errors import refused
from lilliput.decoding.writer import Writer, load
from lilliput.interpret import AttentionMaps, capture_text
from lilliput.model.attention import Capture
from lilliput.model.attention_mask import visible
from lilliput.settings.tree import GenerateSettings

TEXT = "A bee saw the sea."
ENCODER = {"task": "classifier", "classes": 3}
WINDOWED = {"window": (3, None), "kv_heads": 1, "positions": "rotary"}


def weights_of(writer: Writer, ids: list[int]) -> list[np.ndarray]:
    """Return the weights of a plain pass over these ids."""
    capture = Capture()
    with torch.inference_mode():
        writer.model(torch.tensor([ids]), capture=capture)
    return [capture.weights[layer][0][0].numpy() for layer in range(2)]


def check_rows(attention: AttentionMaps, writer: Writer) -> None:
    """Check that rows sum to 1 over visible tokens, and that masked cells and padding are 0."""
    real = np.ones(len(attention.tokens)) if attention.padding is None else 1.0 - attention.padding
    for place in range(len(attention.weights)):
        weights, mask = attention.weights[place], attention.mask(place)
        assert np.allclose((weights * mask).sum(axis=-1), real, rtol=0, atol=1e-12)
        assert not weights[:, ~mask].any()
        assert (weights[:, mask] > 0).all()


@pytest.mark.parametrize(
    "changes", [{}, WINDOWED, ENCODER, ENCODER | WINDOWED], ids=["plain", "window", "encoder", "both"]
)
@pytest.mark.parametrize("pad", [False, True])
def test_capture_of_a_text(changes: dict[str, Any], pad: bool) -> None:
    writer = small_writer(**changes)
    found = capture_text(writer, TEXT, pad=pad)
    start = [] if changes.get("task") else [writer.tokenizer.start]
    ids = [*start, *writer.tokenizer.encode(TEXT)]
    real = len(ids)
    assert found.tokens[:real] == [writer.tokenizer.token(id_) for id_ in ids]
    assert (found.padding is not None) == pad
    assert len(found.tokens) == (32 if pad else real)
    check_rows(found, writer)
    for layer, expected in enumerate(weights_of(writer, ids)):
        assert np.allclose(found.weights[layer][:, :real, :real], expected, rtol=0, atol=1e-12)
        at, one = torch.arange(real)[None], torch.ones(1, real)
        mask = visible(at, at, one, one, writer.model.causal, writer.model.windows[layer])[0].numpy()
        assert np.array_equal(found.mask(layer)[:real, :real], mask)
        assert not found.mask(layer)[real:].any() and not found.mask(layer)[:, real:].any()


def test_layers_and_heads_keep_their_numbers() -> None:
    writer = small_writer(heads=4, kv_heads=4)
    whole, part = capture_text(writer, TEXT), capture_text(writer, TEXT, layers=[1], heads=[3, 1])
    assert (part.layer_numbers, part.head_numbers(0)) == ([1], [3, 1])
    assert np.array_equal(part.weights[0], whole.weights[1][[3, 1]])
    assert refused(lambda: capture_text(writer, TEXT, heads=[1, 1])).code == "attention.selection"
    for wrong in ({"layers": [2]}, {"heads": [4]}, {"layers": [-1]}):
        error = refused(lambda wrong=wrong: capture_text(writer, TEXT, **wrong))  # type: ignore[misc]
        assert (error.code, error.setting) == ("attention.selection", *wrong)


@pytest.mark.parametrize("changes", [{}, ENCODER], ids=["decoder", "encoder"])
def test_text_longer_than_the_context_is_truncated(changes: dict[str, Any]) -> None:
    writer = small_writer(**changes)
    text = "The old bear went to the garden gate and sang."
    found = capture_text(writer, text)
    assert len(found.tokens) == 32
    read = "".join(found.tokens[0 if changes else 1 :])
    assert read + "".join(found.after) == text
    check_rows(found, writer)


@pytest.mark.parametrize("text", ["", "A"])
def test_text_of_fewer_than_two_tokens_is_an_error(text: str) -> None:
    assert refused(lambda: capture_text(small_writer(**ENCODER), text)).code == "attention.text"
    if not text:
        assert refused(lambda: capture_text(small_writer(), text)).code == "attention.text"


@pytest.mark.parametrize("changes", [{}, WINDOWED, {"window": 5}], ids=["full", "pattern", "window"])
@pytest.mark.parametrize(("text", "tokens"), [("A bee", 12), ("", 5), ("A bee saw", 60), ("The old bear " * 4, 30)])
def test_rows_of_generated_text_equal_new_passes(changes: dict[str, Any], text: str, tokens: int) -> None:
    """Compare every row with a new pass over the tokens in the context, also after the text exceeds the context."""
    writer = small_writer(**changes)
    settings = dataclasses.replace(writer.config.generate, bad_words=(), temperature=1.0)
    found = capture_text(writer, text, generate=tokens, seed=4, settings=settings)
    sample = writer.samples([text], seed=4, settings=dataclasses.replace(settings, tokens=tokens))[0]
    written = [piece.token for piece in sample.pieces]
    assert found.written == written
    prompt = [writer.tokenizer.token(id_) for id_ in writer.encode_prompt(text)]
    assert [*found.before, *found.tokens] == [*prompt, *written[:-1]]
    assert found.prompt == len(prompt) - len(found.before)
    check_rows(found, writer)
    ids = list(found.ids or [])
    start, context = 0, 32
    for row in range(found.prompt - 1, len(ids)):
        if row + 1 - start > context:  # the rule of `decoding.stream`: continue from the last half
            start = row + 1 - context // 2
        for layer, expected in enumerate(weights_of(writer, ids[start : row + 1])):
            got = found.weights[layer][:, row]
            assert np.allclose(got[:, start : row + 1], expected[:, -1], rtol=0, atol=1e-12)
            assert not got[:, :start].any() and not found.mask(layer)[row, :start].any()


def test_generation_is_that_of_the_model_without_ngrams() -> None:
    writer = load(trained() / "runs" / "mine")
    alone, mixed = (GenerateSettings(temperature=0.0, mix_ngram=share) for share in (None, 1.0))
    found, expected = (capture_text(writer, TEXT, generate=8, settings=settings) for settings in (mixed, alone))
    assert found.written == expected.written


def test_generation_requires_a_language_model_without_beams() -> None:
    writer = small_writer()
    beams = dataclasses.replace(writer.config.generate, beams=2, temperature=0.0)
    error = refused(lambda: capture_text(writer, "A", generate=3, settings=beams))
    assert (error.code, error.setting) == ("setting.conflict", "generate.beams")
    refused(lambda: capture_text(small_writer(**ENCODER), "A bee", generate=3))
