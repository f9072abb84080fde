"""Selection of documents, their first tokens, and teacher-forced scores."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.labelled_corpora import token_file
from helpers.tiny_models import VARIANTS, draw_ids, name_variant, tiny_model
from lilliput.evaluation import prompt_selection
from lilliput.evaluation.prompt_selection import choose_documents, first_tokens, score_prompts


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 12), st.integers(0, 9))
def test_documents_are_long_enough_distinct_and_evenly_spread(lengths: list[int], count: int, tokens: int) -> None:
    fit = [number for number, length in enumerate(lengths) if length >= tokens]
    found = choose_documents(token_file(lengths), count, tokens).tolist()
    assert len(found) == min(count, len(fit))
    assert [one for one in fit if one in found] == found, "in the order of the file, each once"
    steps = [fit.index(after) - fit.index(before) for before, after in pairwise(found)]
    assert not steps or max(steps) - min(steps) <= 1


def test_documents_can_be_excluded() -> None:
    file = token_file([5, 5, 2, 5])
    leaked = np.array([True, False, False, False])
    assert choose_documents(file, 9, 3, without=leaked).tolist() == [1, 3]


@pytest.mark.parametrize("ends", [True, False])
def test_first_tokens_exclude_the_end(ends: bool) -> None:
    file = token_file([3, 0, 7], ends=ends)
    documents = [file.tokens[first : after - 1].tolist() for first, after in pairwise(file.offsets)]
    assert [len(ids) for ids in documents] == [3, 0, 7]
    for number, ids in enumerate(documents):
        assert [first_tokens(file, number, tokens) for tokens in (0, 3, 9)] == [ids[:0], ids[:3], ids]


@pytest.mark.parametrize("logits", [1, 17 * 24 * 2, 1 << 24])  # one row at a time, two, all
@pytest.mark.parametrize("case", VARIANTS[:2], ids=name_variant)
def test_score_prompts(case: dict[str, Any], logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 tokens and a context of 24: the last six are predicted in a new window."""
    monkeypatch.setattr(prompt_selection, "LOGITS", logits)
    model, texts = tiny_model(**case).train(), draw_ids(3, 30).tolist()
    found = score_prompts(model, 3, texts)
    assert model.training, "the mode is restored"
    model.eval()
    for row, text in enumerate(texts):
        inputs = [3, *text[:-1]]
        for place in (0, 7, 23, 24, 29):
            right, begin = text[place], place // 24 * 24
            with torch.inference_mode():
                scores = model(torch.tensor([inputs[begin : place + 1]]))[0, -1].log_softmax(dim=-1)
            assert found.nats[row, place] == pytest.approx(-scores[right].item(), abs=1e-12)
            assert found.likeliest[row, place] == int(scores.argmax())
