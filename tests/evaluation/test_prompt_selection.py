"""Selection of prompts, their tokens, and teacher-forced scores."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.labelled_corpora import token_file
from helpers.tiny_models import VARIANTS, draw_ids, name_variant, tiny_model
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.decoding.processors import Strategy
from lilliput.decoding.requests import Request
from lilliput.decoding.stream import stream
from lilliput.evaluation import prompt_selection
from lilliput.evaluation.overlap_settings import PromptChoice
from lilliput.evaluation.prompt_selection import (
    PROMPT_CHOICES,
    choose_documents,
    choose_places,
    describe_prompts,
    first_tokens,
    score_continuations,
)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 12), st.integers(0, 9))
def test_documents_are_long_enough_distinct_and_evenly_spread(lengths: list[int], count: int, tokens: int) -> None:
    fit = [number for number, length in enumerate(lengths) if length >= tokens]
    found = choose_documents(token_file(lengths), count, tokens).tolist()
    assert len(found) == min(count, len(fit))
    assert [one for one in fit if one in found] == found, "in the order of the file, each once"
    steps = [fit.index(after) - fit.index(before) for before, after in pairwise(found)]
    assert not steps or max(steps) - min(steps) <= 1


lengths_of_documents = st.lists(st.integers(0, 9), min_size=1, max_size=20)
choices = st.sampled_from(list(PROMPT_CHOICES))


def possible_places(lengths: list[int], choice: str, tokens: int) -> list[tuple[int, int]]:
    starts = [range(length - tokens + 1) if choice == "middle" else range(length >= tokens) for length in lengths]
    return [(document, start) for document, own in enumerate(starts) for start in own]


@given(lengths_of_documents, choices, st.integers(1, 12), st.integers(0, 9), st.integers(0, 99))
def test_places_are_possible_distinct_and_deterministic(
    lengths: list[int], choice: PromptChoice, count: int, tokens: int, seed: int
) -> None:
    file, possible = token_file(lengths), possible_places(lengths, choice, tokens)
    found = [tuple(place) for place in choose_places(file, choice, count, tokens, seed)]
    assert len(found) == len(set(found)) == min(count, len(possible))
    assert set(found) <= set(possible)
    assert [tuple(place) for place in choose_places(file, choice, count, tokens, seed)] == found
    for document, start in found:
        assert len(first_tokens(file, document, tokens, start)) == tokens, "the end of a document is never reached"


@given(lengths_of_documents, choices, st.integers(1, 12), st.integers(0, 9), st.integers(0, 99), st.data())
def test_documents_can_be_excluded(
    lengths: list[int], choice: PromptChoice, count: int, tokens: int, seed: int, data: st.DataObject
) -> None:
    excluded = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    possible = [place for place in possible_places(lengths, choice, tokens) if not excluded[place[0]]]
    found = choose_places(token_file(lengths), choice, count, tokens, seed, np.array(excluded))
    assert len(found) == min(count, len(possible)) and {tuple(place) for place in found} <= set(possible)


def test_only_spread_places_do_not_depend_on_the_seed() -> None:
    file = token_file([9] * 50)
    for choice, entry in PROMPT_CHOICES.items():
        first, second = (choose_places(file, choice, 9, 4, seed) for seed in (0, 1))
        assert (first == second) is (not entry.drawn) is (choice == "spread")
    spread = [(place.document, 0) for place in choose_places(file, "spread", 9, 4, 0)]
    assert spread == [(document, 0) for document in choose_documents(file, 9, 4).tolist()]


@pytest.mark.parametrize("choice", ["random", "middle"])
def test_every_place_is_equally_likely(choice: PromptChoice) -> None:
    """Three of the possible places, 4,000 times; a count has a standard deviation of at most 32."""
    lengths = [3, 2, 7, 4]
    file, possible = token_file(lengths), possible_places(lengths, choice, 3)
    counts = Counter(tuple(place) for seed in range(4000) for place in choose_places(file, choice, 3, 3, seed))
    expected = 4000 * 3 / len(possible)
    assert counts.keys() == set(possible) and len(possible) == (3 if choice == "random" else 8)
    assert all(abs(count - expected) < 130 for count in counts.values())


def test_all_places_are_returned_if_there_are_too_few() -> None:
    file = token_file([3, 5])
    assert sorted(choose_places(file, "middle", 99, 3, 5)) == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert choose_places(file, "middle", 99, 6, 5) == []


def test_the_description_names_choice_and_seed() -> None:
    assert describe_prompts("middle", 5, 7).startswith("5 tokens ")
    assert describe_prompts("middle", 5, 7).endswith("(--prompt-choice middle, seed 7)")
    assert "seed" not in describe_prompts("spread", 5, 7)


@pytest.mark.parametrize("ends", [True, False])
def test_first_tokens_exclude_the_end(ends: bool) -> None:
    file = token_file([3, 0, 7], ends=ends)
    documents = [file.tokens[first : after - 1].tolist() for first, after in pairwise(file.offsets)]
    assert [len(ids) for ids in documents] == [3, 0, 7]
    for number, ids in enumerate(documents):
        assert [first_tokens(file, number, tokens) for tokens in (0, 3, 9)] == [ids[:0], ids[:3], ids]


@pytest.mark.parametrize("start", [0, 2, 7])
def test_tokens_from_a_position(start: int) -> None:
    file = token_file([3, 0, 7])
    ids = first_tokens(file, 2, None)
    assert len(ids) == 7
    assert [first_tokens(file, 2, tokens, start) for tokens in (0, 3, None)] == [
        [],
        ids[start : start + 3],
        ids[start:],
    ]


@pytest.mark.parametrize("logits", [1, 17 * 24 * 2, 1 << 24])  # one row at a time, two, all
@pytest.mark.parametrize("prompt", [0, 5, 23, 24, 31])
@pytest.mark.parametrize("case", VARIANTS[:2], ids=name_variant)
def test_scores_equal_the_logits_without_a_cache(
    case: dict[str, Any], prompt: int, logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of different lengths and a context of 24: longer ones are read from the last half-context on."""
    monkeypatch.setattr(prompt_selection, "LOGITS", logits)
    model = tiny_model(**case).train()
    texts = [ids[:length] for ids, length in zip(draw_ids(4, 60).tolist(), (60, 33, 40, 32), strict=True)]
    found = score_continuations(model, 3, prompt, texts)
    assert model.training, "the mode is restored"
    model.eval()
    for text, (nats, likeliest) in zip(texts, found, strict=True):
        assert len(nats) == len(likeliest) == len(text) - prompt
        view = [3, *text[:prompt]]
        for place, right in enumerate(text[prompt:]):
            view = view if len(view) <= 24 else view[-12:]
            with torch.inference_mode():
                scores = model(torch.tensor([view]))[0, -1].log_softmax(dim=-1)
            assert nats[place] == pytest.approx(-scores[right].item(), abs=1e-12)
            assert likeliest[place] == int(scores.argmax())
            view = [*view, right]


@pytest.mark.parametrize("prompt", [2, 30])
def test_scores_equal_those_of_generation(prompt: int) -> None:
    """Also of texts that are longer than the context."""
    model, texts = tiny_model(), draw_ids(3, prompt).tolist()
    requests = [Request([3, *text], 70, Strategy(sample=True), seed) for seed, text in enumerate(texts)]
    tokens = list(stream(TorchEngine(model), requests))
    own = [[token for token in tokens if token.row == row] for row in range(3)]
    ids = [[*text, *(token.id for token in row)] for text, row in zip(texts, own, strict=True)]
    for row, (nats, _) in zip(own, score_continuations(model, 3, prompt, ids), strict=True):
        assert nats.tolist() == pytest.approx([-token.logprob for token in row], abs=1e-12)
