"""The loop that writes, against an uncached reference of its rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from lilliput.decoding.processors import Chooser, Greedy, Processor, Sampler, Temperature, TopK
from lilliput.decoding.stream import Written, evaluating, prefill, stream
from lilliput.model.attention import Capture
from lilliput.model.transformer import Transformer
from tiny import VARIANTS, assert_same, draw_ids, name_variant, tiny_model

MARGIN = 1e-6  # between the likeliest token and the next: far above rounding, so that argmax proves something


@torch.inference_mode()
def write_plainly(
    model: Transformer,
    prompt: list[int],
    chooser: Chooser,
    processors: Sequence[Processor],
    tokens: int,
    end: int | None = None,
) -> list[tuple[int, float]]:
    """(id, logprob) of one row: the whole view through the model for every token, the view halved when it is full."""
    context, half = model.settings.context, max(1, model.settings.context // 2)
    view = prompt
    written: list[tuple[int, float]] = []
    while len(written) < tokens and (not written or written[-1][0] != end):
        view = view if len(view) <= context else view[-half:]
        logits = model(torch.tensor([view]))[:, -1]
        if isinstance(chooser, Greedy):
            first, second = logits[0].topk(2).values.tolist()
            assert first - second > MARGIN, "choose another seed: this argmax proves nothing"
        shaped = logits
        for process in processors:
            shaped = process([view], shaped)
        (id_,) = chooser.choose(shaped, [0])
        written.append((id_, logits[0].log_softmax(dim=-1)[id_].item()))
        view = [*view, id_]
    return written


def rows_of(written: Sequence[Written], rows: int) -> list[list[Written]]:
    return [[token for token in written if token.row == row] for row in range(rows)]


def assert_same_text(row: list[Written], expected: list[tuple[int, float]]) -> None:
    assert [token.id for token in row] == [id_ for id_, _ in expected]
    for token, (_, logprob) in zip(row, expected, strict=True):
        assert abs(token.logprob - logprob) < 1e-12


def unequal_prompts() -> list[list[int]]:
    """One id, just the context, and more than it."""
    return [draw_ids(n, seed=n).tolist() for n in (1, 24, 9, 40, 3)]


@pytest.mark.parametrize("case", VARIANTS, ids=name_variant)
def test_greedy_with_a_cache_is_the_argmax_without(case: dict[str, Any]) -> None:
    model, prompt = tiny_model(**case), draw_ids(5).tolist()
    (row,) = rows_of(list(stream(model, [prompt], Greedy(), tokens=16)), 1)
    assert_same_text(row, write_plainly(model, prompt, Greedy(), [], 16))


@pytest.mark.parametrize("case", VARIANTS, ids=name_variant)
def test_a_batch_of_unequal_prompts_is_each_alone(case: dict[str, Any]) -> None:
    """Sampled, over the end of the context, rows ending at different times."""
    model, processors = tiny_model(**case), [Temperature(1.3), TopK(9)]
    prompts = unequal_prompts()
    written = list(stream(model, prompts, Sampler(range(5)), processors, tokens=30, end=3))
    for number, row in enumerate(rows_of(written, 5)):
        expected = write_plainly(model, prompts[number], Sampler([number]), processors, 30, end=3)
        assert_same_text(row, expected)
        assert [token.finish for token in row[:-1]] == [None] * (len(row) - 1)
        assert row[-1].finish == ("end" if row[-1].id == 3 else "length")
        assert row[-1].id == 3 or len(row) == 30


def test_the_batches_above_do_end_in_both_ways() -> None:
    prompts = unequal_prompts()
    written = list(stream(tiny_model(), prompts, Sampler(range(5)), tokens=30, end=3))
    lengths = [len(row) for row in rows_of(written, 5)]
    assert {token.finish for token in written} == {None, "end", "length"}
    assert len(set(lengths)) > 2
    assert max(lengths) == 30


def test_rows_are_in_step_and_leave_when_they_end() -> None:
    written = list(stream(tiny_model(), unequal_prompts(), Sampler(range(5)), tokens=30, end=3))
    at, going = 0, [0, 1, 2, 3, 4]
    while going:
        tokens = written[at : at + len(going)]
        assert [token.row for token in tokens] == going
        at += len(going)
        going = [token.row for token in tokens if token.finish is None]
    assert at == len(written)


def test_rows_that_left_cost_nothing() -> None:
    model, capture = tiny_model(), Capture(layers=frozenset({0}))
    written = list(stream(model, unequal_prompts(), Sampler(range(5)), tokens=30, end=3, capture=capture))
    lengths = [len(row) for row in rows_of(written, 5)]
    still_writing = [sum(length > step for length in lengths) for step in range(max(lengths))]
    assert [len(weights) for weights in capture.weights[0]] == still_writing
    assert still_writing[0] == 5
    assert still_writing[-1] < 5


@pytest.mark.parametrize("context", [1, 2, 7, 8])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_texts_longer_than_the_context(context: int, positions: str) -> None:
    """No position is ever beyond the context (a learned table would fail), and the rule is the documented one."""
    model = tiny_model(context=context, positions=positions)
    prompts = [draw_ids(n, seed=n).tolist() for n in (1, context, context + 1, 3 * context)]
    written = list(stream(model, prompts, Sampler(range(4)), tokens=3 * context + 2))
    for number, row in enumerate(rows_of(written, 4)):
        assert_same_text(row, write_plainly(model, prompts[number], Sampler([number]), [], 3 * context + 2))


def test_a_slide_is_paid_once_in_half_a_context() -> None:
    model, capture = tiny_model(context=8), Capture(layers=frozenset({0}))
    list(stream(model, [[1, 2, 3]], Sampler([0]), tokens=22, capture=capture))
    queries = [weights.shape[2] for weights in capture.weights[0]]
    # 3 of the prompt, then one at a time until 8 are seen; the ninth token slides to the last 4, and so on.
    assert queries == [3, *[1] * 5, 4, *[1] * 4, 4, *[1] * 4, 4, *[1] * 4, 4]


def test_finish_is_told_with_the_last_token() -> None:
    model = tiny_model()
    (first,) = stream(model, [[5, 6]], Greedy(), tokens=1)
    assert first.finish == "length"
    (ended,) = stream(model, [[5, 6]], Greedy(), tokens=9, end=first.id)
    assert ended == Written(0, first.id, first.logprob, "end")
    assert list(stream(model, [[5, 6]], Greedy(), tokens=1, end=first.id)) == [ended]  # the end wins over the length


def test_logprob_is_before_processors() -> None:
    model, prompt = tiny_model(), [1, 2, 3]
    (token,) = stream(model, [prompt], Sampler([1]), [Temperature(0.01), TopK(1)], tokens=1)
    expected = model(torch.tensor([prompt]))[0, -1].log_softmax(dim=-1)
    assert abs(token.logprob - expected[token.id].item()) < 1e-12
    assert token.logprob < -0.01


def test_processors_see_the_rows_so_far_in_order() -> None:
    seen: list[list[list[int]]] = []

    def look(ids: Sequence[Sequence[int]], logits: torch.Tensor) -> torch.Tensor:
        seen.append([list(row) for row in ids])
        return logits

    prompts = [[1, 2], [4, 5, 6]]
    written = list(stream(tiny_model(), prompts, Greedy(), [look, Temperature(2.0)], tokens=4))
    texts = [list(prompt) for prompt in prompts]
    for step in range(4):
        assert seen[step] == texts
        for row in range(2):
            texts[row].append(written[2 * step + row].id)


@pytest.mark.parametrize("case", [{"window": (3, None)}, {"positions": "learned", "kv_heads": 1}])
def test_prefill_gives_the_logits_after_each_last_token(case: dict[str, Any]) -> None:
    model, views = tiny_model(**case), [draw_ids(n, seed=n).tolist() for n in (4, 11, 1)]
    logits, cache = prefill(model, views)
    for row, view in enumerate(views):
        assert_same(logits[row], model(torch.tensor([view]))[0, -1])
    assert (cache.rows, cache.length) == (3, 11)


def test_the_prompts_and_the_mode_of_the_model_are_left_as_they_were() -> None:
    model, prompts = tiny_model(dropout=0.5).train(), [[1, 2], [3]]
    one, two = (list(stream(model, prompts, Greedy(), tokens=5)) for _ in range(2))
    assert one == two, "dropout must be off while writing"
    assert model.training
    assert prompts == [[1, 2], [3]]
    writing = stream(model, prompts, Greedy(), tokens=5)
    next(writing)
    assert model.training, "between tokens the caller may train"
    with evaluating(model):
        assert not model.training
    with pytest.raises(KeyError), evaluating(model):
        raise KeyError
    assert model.training


def test_an_empty_prompt_is_the_callers_mistake() -> None:
    with pytest.raises(AssertionError, match="end-of-text"):
        next(stream(tiny_model(), [[1], []], Greedy()))
