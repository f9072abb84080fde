"""Rules about used tokens, compared with plain Python."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.tiny_models import draw, tiny_model
from lilliput.decoding.beam_hypotheses import BeamSettings
from lilliput.decoding.beam_search import search_requests
from lilliput.decoding.engines.compiled_engine import NumbaEngine
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.decoding.processors import Strategy
from lilliput.decoding.repetition_penalties import LARGEST, MinTokens, NoRepeat, Penalties
from lilliput.decoding.requests import Request
from lilliput.decoding.row_history import Processor, RowHistory
from lilliput.decoding.stream import stream
from lilliput.model.transformer import Transformer

END, V = 6, 7
texts = st.builds(
    lambda ids, prompt: RowHistory([END, *ids], 1 + min(prompt, len(ids)), 50),
    st.lists(st.integers(0, V - 1), max_size=20),
    st.integers(0, 8),
)
rows = st.lists(st.integers(-6, 6).map(lambda value: value / 2), min_size=V, max_size=V)


def apply(process: Processor, text: RowHistory, row: list[float]) -> list[float]:
    given_row = torch.tensor([row], dtype=torch.float64)
    processed: list[float] = process([text], given_row).tolist()[0]
    assert given_row.tolist() == [row], "arguments are not changed"
    return processed


def looked_at(text: RowHistory, prompt: bool) -> list[int]:
    return text.ids if prompt else text.ids[text.prompt :]


@given(
    text=texts,
    row=rows,
    repetition=st.sampled_from([0.5, 1.0, 1.5]),
    frequency=st.sampled_from([-0.5, 0.0, 0.25]),
    presence=st.sampled_from([-1.0, 0.0, 0.75]),
    prompt=st.booleans(),
    window=st.none() | st.integers(1, 25),
)
def test_penalties_by_hand(
    text: RowHistory,
    row: list[float],
    repetition: float,
    frequency: float,
    presence: float,
    prompt: bool,
    window: int | None,
) -> None:
    """With a window, only the last tokens of the text count; without `prompt`, only generated ones among them."""
    rule = Penalties(repetition, frequency, presence, prompt, END, window)
    assert apply(rule, text, row) == pytest.approx(penalise_plainly(rule, text, row), abs=1e-12)


def penalise_plainly(rule: Penalties, text: RowHistory, row: list[float]) -> list[float]:
    visible = looked_at(text, rule.prompt)
    recent = visible if rule.window is None else list(reversed(list(reversed(visible))[: rule.window]))
    uses = Counter(id_ for id_ in recent if id_ != rule.end)
    expected = []
    for id_, value in enumerate(row):
        if uses[id_]:
            value = value / rule.repetition if value > 0 else value * rule.repetition
            value = value - rule.frequency * uses[id_] - rule.presence
        expected.append(value)
    return expected


@given(text=texts, row=rows, prompt=st.booleans())
def test_a_window_longer_than_the_text_changes_nothing(text: RowHistory, row: list[float], prompt: bool) -> None:
    whole = Penalties(1.5, 0.25, 0.5, prompt, END)
    assert apply(replace(whole, window=len(text.ids)), text, row) == apply(whole, text, row)


# ---- windows in generated texts --------------------------------------------------------------------------------------

RULES = [
    Penalties(3.0, 0.0, 0.0, True, 0),
    Penalties(3.0, 0.0, 0.0, True, 0, window=4),
    Penalties(1.5, 0.8, 0.3, False, 0, window=2),
    Penalties(1.0, 0.0, 2.5, True, 0, window=30),  # longer than the context of 24
]
PROMPTS = [[1], [2, 3, 2], [4] * 30, [5, 6, 7]]


def write_plainly(model: Transformer, prompt: list[int], tokens: int, rule: Penalties) -> list[int]:
    """Return greedy tokens, computed without a cache."""
    text, first = RowHistory(list(prompt), len(prompt), tokens), 0
    for _ in range(tokens):
        if len(text.ids) - first > 24:
            first = len(text.ids) - 12
        with torch.inference_mode():
            logits = model(torch.tensor([text.ids[first:]]))[0, -1]
        row = penalise_plainly(rule, text, logits.double().tolist())
        text.ids.append(max(range(len(row)), key=row.__getitem__))
    return text.ids[len(prompt) :]


@pytest.mark.parametrize("engine", [TorchEngine, NumbaEngine])
def test_texts_of_one_batch_equal_plain_python(engine: Callable[..., TorchEngine | NumbaEngine]) -> None:
    """Each row with its own rule."""
    model = tiny_model().float() if engine is NumbaEngine else tiny_model()
    expected = [write_plainly(model, prompt, 40, rule) for prompt, rule in zip(PROMPTS, RULES, strict=True)]
    requests = [Request(prompt, 40, Strategy((rule,))) for prompt, rule in zip(PROMPTS, RULES, strict=True)]
    tokens = list(stream(engine(model), requests))
    assert [[token.id for token in tokens if token.row == row] for row in range(4)] == expected
    whole = write_plainly(model, PROMPTS[1], 40, replace(RULES[1], window=None))
    assert expected[1] != whole, "the window changes the text"


@dataclass(frozen=True)
class PlainPenalties:
    """The same rule in plain Python."""

    rule: Penalties

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        rows = zip(texts, logits.tolist(), strict=True)
        return torch.tensor([penalise_plainly(self.rule, text, row) for text, row in rows], dtype=logits.dtype)


@pytest.mark.parametrize("sample", [False, True])
def test_beams_equal_those_of_plain_python(sample: bool) -> None:
    engine, beams = TorchEngine(tiny_model()), BeamSettings(4, 30, n_best=4, sample=sample)
    searches = [
        [Request(prompt, 30, Strategy((kind(rule),)), beams=beams) for prompt, rule in zip(PROMPTS, RULES, strict=True)]
        for kind in (PlainPenalties, lambda rule: rule)
    ]
    for requests in searches:
        search_requests(engine, requests)
    for plain, request in zip(*searches, strict=True):
        assert [one.ids for one in request.hypotheses] == [one.ids for one in plain.hypotheses]
        scores = [[one.score for one in found.hypotheses] for found in (plain, request)]
        assert scores[1] == pytest.approx(scores[0], abs=1e-12)


@given(row=rows, repetition=st.floats(1.01, 5.0))
def test_a_used_token_is_never_made_likelier(row: list[float], repetition: float) -> None:
    """Negative logits, too: dividing them would reward repetition."""
    after = apply(Penalties(repetition, 0.0, 0.0, True, END), RowHistory(list(range(V)), 1, 9), row)
    for id_, (old, new) in enumerate(zip(row, after, strict=True)):
        assert new == old if id_ == END or old == 0 else new < old


def test_end_of_text_is_never_penalised() -> None:
    """Every prompt begins with it."""
    row = [float(value) for value in range(V)]
    for process in (Penalties(2.0, 1.0, 1.0, True, END), NoRepeat(1, True, END)):
        assert apply(process, RowHistory([END, END], 1, 9), row) == row


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("repetition", "frequency", "presence"),
    [(1e-300, 0.0, 0.0), (1e300, 0.0, 0.0), (1.0, 1e300, 0.0), (1.0, 0.0, -1e300), (1e-320, 1e308, -1e308)],
)
def test_penalties_of_any_size_are_finite_and_keep_forbidden_tokens(
    repetition: float, frequency: float, presence: float, dtype: torch.dtype
) -> None:
    process = Penalties(repetition, frequency, presence, True, END)
    table = torch.tensor([[1.0, -1.0, 0.0, -math.inf, 2.0, 3.0, 4.0]], dtype=dtype)
    after = process([RowHistory([0, 1, 2, 3, 4, 5], 0, 9)], table)[0]
    assert after.dtype == dtype
    assert after[3] == -math.inf
    others = after[[0, 1, 2, 4, 5, 6]]
    assert others.isfinite().all()
    assert others.abs().max() <= LARGEST * 1.001


def ngram_bans(ids: list[int], n: int) -> set[int]:
    """Return the tokens that would repeat an n-gram."""
    seen = {tuple(ids[at : at + n]) for at in range(len(ids) - n + 1)}
    return {id_ for id_ in range(V) if id_ != END and tuple([*ids, id_][-n:]) in seen and len(ids) >= n - 1}


@given(text=texts, n=st.integers(1, 4), prompt=st.booleans())
def test_no_ngram_is_repeated(text: RowHistory, n: int, prompt: bool) -> None:
    row = [float(id_) for id_ in range(V)]
    banned = ngram_bans(looked_at(text, prompt), n)
    after = apply(NoRepeat(n, prompt, END), text, row)
    assert after == [-math.inf if id_ in banned else value for id_, value in enumerate(row)]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_generated_text_has_each_ngram_once(n: int) -> None:
    text, rule = RowHistory([END, 0, 1], 3, 99), NoRepeat(n, False, END)
    for step in range(V if n == 1 else 30):
        row = draw(1, V, seed=step)
        row[0, END] = -math.inf
        text.ids.append(int(rule([text], row).argmax()))
        if n == 1 and text.written == V - 1:
            break  # all tokens are used: the rule no longer applies
    generated = text.ids[3:]
    grams = [tuple(generated[at : at + n]) for at in range(len(generated) - n + 1)]
    assert len(grams) == len(set(grams)) > 5


def test_a_rule_that_would_forbid_all_tokens_is_ignored() -> None:
    row = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -math.inf]
    assert apply(NoRepeat(1, True, END), RowHistory([0, 1, 2, 3, 4, 5], 0, 9), row) == row
    both = torch.tensor([row, row])
    after = NoRepeat(1, True, END)([RowHistory([0, 1, 2, 3, 4, 5], 0, 9), RowHistory([0], 0, 9)], both)
    assert after.tolist() == [row, [-math.inf, *row[1:]]]
    only_end = [-math.inf] * END + [1.0]
    assert apply(MinTokens(3, END), RowHistory([0], 1, 9), only_end) == only_end


def test_the_minimum_length() -> None:
    row, ended = [1.0] * V, [1.0] * END + [-math.inf]
    by_length = [apply(MinTokens(2, END), RowHistory([END, *[0] * (2 + length)], 3, 9), row) for length in range(4)]
    assert by_length == [ended, ended, row, row]
