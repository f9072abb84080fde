"""The sampling loop compared with an uncached reference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from helpers.tiny_models import VARIANTS, assert_same, draw_ids, name_variant, tiny_model
from lilliput.decoding.engines import prefill
from lilliput.decoding.engines.compiled_engine import NumbaEngine
from lilliput.decoding.engines.torch_engine import TorchEngine, TorchRows
from lilliput.decoding.processors import GREEDY, Strategy, TopK
from lilliput.decoding.requests import Request, Token
from lilliput.decoding.row_history import RowHistory
from lilliput.decoding.stream import stream
from lilliput.decoding.temperatures import Temperature
from lilliput.decoding.token_choice import Draws, choose
from lilliput.model.attention import Capture
from lilliput.model.transformer import Transformer, evaluating

MARGIN = 1e-6  # least difference of the two largest logits: far above rounding
SAMPLED = Strategy(sample=True)
SHAPED = Strategy((Temperature(1.3), TopK(9)), sample=True)


@dataclass
class Until:
    """A stop rule: the text is complete when two of these ids have been generated."""

    ids: frozenset[int]
    seen: list[int] = field(default_factory=list)

    def push(self, id_: int) -> bool:
        self.seen.append(id_)
        return sum(seen in self.ids for seen in self.seen) == 2


@torch.inference_mode()
def generate_uncached(model: Transformer, request: Request, end: int | None = None) -> list[tuple[int, float]]:
    """Return (id, logprob) of one row: the whole view is read for every token, and halved when it exceeds the context."""
    context, half = model.settings.context, max(1, model.settings.context // 2)
    text = RowHistory(list(request.prompt), len(request.prompt), request.tokens)
    view, generator = list(request.prompt), Draws(request.seed)
    stop = replace(request.stop, seen=[]) if isinstance(request.stop, Until) else None
    generated: list[tuple[int, float]] = []
    while True:
        view = view if len(view) <= context else view[-half:]
        logits = model(torch.tensor([view]))[:, -1]
        if not request.strategy.sample:
            first, second = logits[0].topk(2).values.tolist()
            assert first - second > MARGIN, "use another seed: the two largest logits are too close"
        (id_,) = choose([request.strategy], [text], logits, [generator])
        generated.append((id_, logits[0].log_softmax(dim=-1)[id_].item()))
        view = [*view, id_]
        text.ids.append(id_)
        if id_ == end or text.left == 0 or (stop and stop.push(id_)):
            return generated


def rows_of(written: Sequence[Token], rows: int) -> list[list[Token]]:
    return [[token for token in written if token.row == row] for row in range(rows)]


def assert_same_text(row: list[Token], expected: list[tuple[int, float]]) -> None:
    assert [token.id for token in row] == [id_ for id_, _ in expected]
    for token, (_, logprob) in zip(row, expected, strict=True):
        assert abs(token.logprob - logprob) < 1e-12


def unequal_prompts() -> list[list[int]]:
    """Prompts of one id, of exactly the context, and longer."""
    return [draw_ids(n, seed=n).tolist() for n in (1, 24, 9, 40, 3)]


def unequal_requests(tokens: int = 30, strategy: Strategy = SAMPLED) -> list[Request]:
    return [Request(prompt, tokens, strategy, seed) for seed, prompt in enumerate(unequal_prompts())]


class Counting(TorchEngine):
    """Records the lengths of the views of each prefill."""

    def __init__(self, model: Transformer, capture: Capture | None = None) -> None:
        super().__init__(model, capture)
        self.prefilled: list[list[int]] = []

    def prefill(self, views: Sequence[Sequence[int]]) -> tuple[torch.Tensor, TorchRows]:
        self.prefilled.append([len(view) for view in views])
        return super().prefill(views)


@pytest.mark.parametrize("case", VARIANTS, ids=name_variant)
def test_greedy_with_cache_equals_the_argmax_without(case: dict[str, Any]) -> None:
    model, request = tiny_model(**case), Request(draw_ids(5).tolist(), 16)
    assert_same_text(list(stream(TorchEngine(model), [request])), generate_uncached(model, request))


@pytest.mark.parametrize("case", VARIANTS, ids=name_variant)
def test_a_batch_of_unequal_prompts_equals_each_alone(case: dict[str, Any]) -> None:
    """Sampled texts longer than the context; rows end at different times and others take their places."""
    model, requests = tiny_model(**case), unequal_requests(strategy=SHAPED)
    alone = [generate_uncached(model, request, end=3) for request in requests]
    for batch in (None, 2):
        written = list(stream(TorchEngine(model), requests, end=3, batch=batch))
        for expected, row in zip(alone, rows_of(written, 5), strict=True):
            assert_same_text(row, expected)
            assert [token.finish for token in row[:-1]] == [None] * (len(row) - 1)
            assert row[-1].finish == ("end" if row[-1].id == 3 else "length")
            assert row[-1].id == 3 or len(row) == 30


def test_in_float32_the_numba_engine_is_the_same_alone_and_in_any_batch() -> None:
    """Bit for bit, also the log-probabilities: it sums each row in a fixed order. Products of torch differ by rounding."""
    engine, requests = NumbaEngine(tiny_model().float()), unequal_requests(strategy=SHAPED)
    alone = [list(stream(engine, [request], end=3)) for request in requests]
    for batch in (None, 2):
        written = rows_of(list(stream(engine, requests, end=3, batch=batch)), 5)
        assert [[token._replace(row=0) for token in row] for row in written] == alone


def test_the_rows_above_end_in_both_ways() -> None:
    written = list(stream(TorchEngine(tiny_model()), unequal_requests(), end=3))
    lengths = [len(row) for row in rows_of(written, 5)]
    assert {token.finish for token in written} == {None, "end", "length"}
    assert len(set(lengths)) > 2
    assert max(lengths) == 30


def test_rows_advance_together_and_leave_when_they_end() -> None:
    written = list(stream(TorchEngine(tiny_model()), unequal_requests(), end=3))
    at, going = 0, [0, 1, 2, 3, 4]
    while going:
        tokens = written[at : at + len(going)]
        assert [token.row for token in tokens] == going
        at += len(going)
        going = [token.row for token in tokens if token.finish is None]
    assert at == len(written)


def test_a_waiting_request_takes_the_place_of_a_row_that_ended() -> None:
    """With a batch of three: after each token, the rows that continue and one new row for each that ended."""
    requests = [Request([number + 1], 2 + number % 3, SAMPLED, number) for number in range(8)]
    written = list(stream(TorchEngine(tiny_model()), requests, batch=3))
    at, going, waiting = 0, [0, 1, 2], [3, 4, 5, 6, 7]
    while going:
        tokens = written[at : at + len(going)]
        assert [token.row for token in tokens] == going
        at += len(going)
        going = [token.row for token in tokens if token.finish is None]
        free = 3 - len(going)
        going, waiting = going + waiting[:free], waiting[free:]
    assert at == len(written)
    assert not waiting


def test_requests_are_taken_only_when_a_row_is_free() -> None:
    taken: list[int] = []

    def requests() -> Iterator[Request]:
        for number in range(6):
            taken.append(number)
            yield Request([number], 1 + number, GREEDY)

    begun: dict[int, int] = {}  # row -> number of requests taken at its last token
    for token in stream(TorchEngine(tiny_model()), requests(), batch=2):
        if token.finish:
            begun[token.row] = len(taken)
    # A free row is filled before the next token: at the end of a row, two more requests are taken than have ended before.
    assert begun == {0: 2, 1: 3, 2: 4, 3: 5, 4: 6, 5: 6}


def test_none_means_that_no_request_is_waiting() -> None:
    """Later requests join the rows in progress; the loop does not wait for them."""
    model, late = tiny_model(), [Request([5, 6], 9, SAMPLED, 1), None, None, Request([7], 4, SAMPLED, 2), None]
    written = list(stream(TorchEngine(model), late))
    assert [token.row for token in written] == [0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0]
    for request, row in zip(filter(None, late), rows_of(written, 2), strict=True):
        assert_same_text(row, generate_uncached(model, request))


def test_none_without_active_rows_is_skipped() -> None:
    written = list(stream(TorchEngine(tiny_model()), [None, None, Request([5], 2), None, None, None, Request([6], 1)]))
    assert [(token.row, token.finish) for token in written] == [(0, None), (0, "length"), (1, "length")]


def test_no_requests_return_no_tokens() -> None:
    assert list(stream(TorchEngine(tiny_model()), [])) == []


@pytest.mark.parametrize("batch", [None, 1, 3])
def test_every_row_has_its_own_settings(batch: int | None) -> None:
    """Strategies, seeds, stop rules, token limits and alternatives, mixed in one batch."""
    model = tiny_model()
    requests = [
        Request([1, 2], 12),
        Request([3], 5, SAMPLED, 7, Until(frozenset({1, 2, 3, 4, 5}))),
        Request([3], 25, SAMPLED, 7, Until(frozenset({1, 2, 3, 4, 5}))),
        Request([3], 20, SHAPED, 8, alternatives=2),
        Request(draw_ids(30).tolist(), 9, SHAPED, 8),
        Request([4], 1, Strategy((TopK(2),), sample=True), 1),
    ]
    written = rows_of(list(stream(TorchEngine(model), requests, end=0, batch=batch)), 6)
    for request, row in zip(requests, written, strict=True):
        assert_same_text(row, generate_uncached(model, replace(request), end=0))
        assert (row[0].entropy is None) == (request.alternatives is None)
    assert written[2][-1].finish == "stop"
    assert sum(token.id in {1, 2, 3, 4, 5} for token in written[2]) == 2
    assert written[5][-1].finish == "length"


def test_samples_of_one_prompt_share_one_prefill() -> None:
    model, prompt = tiny_model(), draw_ids(11).tolist()
    engine = Counting(model)
    requests = [Request(prompt, 8, SAMPLED, seed) for seed in range(4)]
    written = rows_of(list(stream(engine, [*requests, Request([2, 2], 8, SAMPLED, 9), requests[0]])), 6)
    assert engine.prefilled == [[11, 2]]
    for request, row in zip(requests, written[:4], strict=True):
        assert_same_text(row, generate_uncached(model, request))
    assert [token.id for token in written[5]] == [token.id for token in written[0]]
    assert len({tuple(token.id for token in row) for row in written[:4]}) == 4


def test_finished_rows_cost_nothing() -> None:
    capture = Capture(layers=frozenset({0}))
    written = list(stream(TorchEngine(tiny_model(), capture), unequal_requests(), end=3))
    lengths = [len(row) for row in rows_of(written, 5)]
    active = [sum(length > step for length in lengths) for step in range(max(lengths))]
    passes = [len(weights) for weights in capture.weights[0]]
    assert sum(passes) == sum(active)
    assert active[0] == passes[0] == 5
    assert passes[-1] == active[-1] < 5


def test_attention_is_captured_during_generation() -> None:
    model, capture, prompt = tiny_model(), Capture(), [4, 8, 1]
    written = list(stream(TorchEngine(model, capture), [Request(prompt, 6, SAMPLED)]))
    ids = [*prompt, *(token.id for token in written[:-1])]  # the tokens read: all but the last
    whole = Capture()
    model(torch.tensor([ids]), capture=whole)
    for layer in range(3):
        passes = capture.weights[layer]
        assert [weights.shape[2] for weights in passes] == [3, 1, 1, 1, 1, 1]
        for at, weights in enumerate(passes[1:], start=3):
            assert_same(weights[0, :, 0], whole.weights[layer][0][0, :, at, : at + 1])


@pytest.mark.parametrize("context", [1, 2, 7, 8])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_texts_longer_than_the_context(context: int, positions: str) -> None:
    """No position exceeds the context (a learned table would fail), and the documented rule holds."""
    model = tiny_model(context=context, positions=positions)
    lengths, tokens = (1, context, context + 1, 3 * context), 3 * context + 2
    requests = [Request(draw_ids(n, seed=n).tolist(), tokens, SAMPLED, seed) for seed, n in enumerate(lengths)]
    written = list(stream(TorchEngine(model), requests, batch=3))
    for request, row in zip(requests, rows_of(written, 4), strict=True):
        assert_same_text(row, generate_uncached(model, request))


def test_text_is_read_again_once_per_half_context() -> None:
    capture = Capture(layers=frozenset({0}))
    list(stream(TorchEngine(tiny_model(context=8), capture), [Request([1, 2, 3], 22, SAMPLED)]))
    queries = [weights.shape[2] for weights in capture.weights[0]]
    # 3 of the prompt, then one at a time up to 8; at the ninth token the last 4 are read again, and so on.
    assert queries == [3, *[1] * 5, 4, *[1] * 4, 4, *[1] * 4, 4, *[1] * 4, 4]


def test_the_last_token_has_a_finish() -> None:
    engine, request = TorchEngine(tiny_model()), Request([5, 6], 1)
    (first,) = stream(engine, [request])
    assert first.finish == "length"
    (ended,) = stream(engine, [Request([5, 6], 9)], end=first.id)
    assert ended == Token(0, first.id, first.logprob, "end")
    assert list(stream(engine, [request], end=first.id)) == [ended]  # end-of-text takes precedence over the length


def test_a_stop_rule_receives_every_token_and_ends_the_row() -> None:
    engine = TorchEngine(tiny_model())
    ids = [token.id for token in stream(engine, [Request([5], 20, SAMPLED)])]
    rule = Until(frozenset({ids[4]}))
    count = [at for at, id_ in enumerate(ids) if id_ == ids[4]][1] + 1
    stopped = list(stream(engine, [Request([5], 20, SAMPLED, stop=rule)]))
    assert [token.id for token in stopped] == rule.seen == ids[:count]
    assert [token.finish for token in stopped] == [None] * (count - 1) + ["stop"]
    (*_, last) = stream(engine, [Request([5], count, SAMPLED, stop=Until(frozenset({ids[4]})))])
    assert last.finish == "stop", "a stop rule takes precedence over the length"
    rule = Until(frozenset({ids[0]}), [ids[0]])
    (ended,) = stream(engine, [Request([5], 20, SAMPLED, stop=rule)], end=ids[0])
    assert ended.finish == "end", "end-of-text takes precedence over a stop rule"
    assert len(rule.seen) == 1, "end-of-text is not part of the text"


def test_logprob_is_before_processors() -> None:
    model, prompt = tiny_model(), [1, 2, 3]
    strategy = Strategy((Temperature(0.01), TopK(1)), sample=True)
    (token,) = stream(TorchEngine(model), [Request(prompt, 1, strategy)])
    expected = model(torch.tensor([prompt]))[0, -1].log_softmax(dim=-1)
    assert abs(token.logprob - expected[token.id].item()) < 1e-12
    assert token.logprob < -0.01


@pytest.mark.parametrize("wanted", [0, 3, 100])
def test_entropy_and_alternatives_are_before_processors(wanted: int) -> None:
    model, prompt = tiny_model(), [1, 2, 3]
    strategy = Strategy((Temperature(0.3), TopK(2)), sample=True)
    view = list(prompt)
    for token in stream(TorchEngine(model), [Request(prompt, 5, strategy, alternatives=wanted)]):
        logprobs = model(torch.tensor([view]))[0, -1].log_softmax(dim=-1).tolist()
        assert token.entropy == pytest.approx(-sum(math.exp(p) * p for p in logprobs), abs=1e-12)
        expected = sorted(enumerate(logprobs), key=lambda pair: -pair[1])[:wanted]
        assert [id_ for id_, _ in token.alternatives] == [id_ for id_, _ in expected]
        for (_, actual), (_, logprob) in zip(token.alternatives, expected, strict=True):
            assert actual == pytest.approx(logprob, abs=1e-12)
        view.append(token.id)


def test_entropy_with_forbidden_tokens_is_finite() -> None:
    """A logit of -inf adds nothing to it."""

    class Holes:
        name, context = "holes", 8

        def prefill(self, views: Sequence[Sequence[int]]) -> tuple[torch.Tensor, TorchRows]:
            logits, rows = TorchEngine(tiny_model()).prefill(views)
            logits = torch.full_like(logits, -torch.inf)
            logits[:, 4:6] = 1.0
            return logits, rows

    (token,) = stream(Holes(), [Request([1], 1, alternatives=1)])
    assert token.entropy == pytest.approx(math.log(2), abs=1e-15)
    assert token.alternatives[0][1] == token.logprob == pytest.approx(-math.log(2), abs=1e-15)


def test_processors_receive_the_rows_in_order() -> None:
    seen: list[list[tuple[list[int], int, int]]] = []

    def record(texts: Sequence[RowHistory], logits: torch.Tensor) -> torch.Tensor:
        seen.append([(list(text.ids), text.written, text.left) for text in texts])
        return logits

    prompts = [[1, 2], [4, 5, 6]]
    strategy = Strategy((record, Temperature(2.0)))
    written = list(stream(TorchEngine(tiny_model()), [Request(prompt, 4, strategy) for prompt in prompts]))
    texts = [list(prompt) for prompt in prompts]
    for step in range(4):
        assert seen[step] == [(text, step, 4 - step) for text in texts]
        for row in range(2):
            texts[row].append(written[2 * step + row].id)


@pytest.mark.parametrize("case", [{"window": (3, None)}, {"positions": "learned", "kv_heads": 1}])
def test_prefill_returns_the_logits_after_each_last_token(case: dict[str, Any]) -> None:
    """Equal views are read once; views longer than the context are truncated to half a context."""
    model, views = tiny_model(**case), [draw_ids(n, seed=n).tolist() for n in (4, 11, 1, 4, 25, 11)]
    engine = Counting(model)
    logits, rows = prefill(engine, views)
    assert engine.prefilled == [[4, 11, 1, 12]]
    assert list(rows.lengths) == [len(view) for view in views] == [4, 11, 1, 4, 12, 11]
    for row, view in enumerate(views):
        assert_same(logits[row], model(torch.tensor([view]))[0, -1])


def test_the_prompts_and_the_training_mode_of_the_model_are_unchanged() -> None:
    model, prompts = tiny_model(dropout=0.5).train(), [[1, 2], [3]]
    engine, requests = TorchEngine(model), [Request(prompt, 5) for prompt in prompts]
    one, two = (list(stream(engine, requests)) for _ in range(2))
    assert one == two, "dropout must be off during generation"
    assert model.training
    assert prompts == [[1, 2], [3]]
    tokens = stream(engine, requests)
    next(tokens)
    assert model.training, "between tokens the caller may train"
    with evaluating(model):
        assert not model.training
    with pytest.raises(KeyError), evaluating(model):
        raise KeyError
    assert model.training


@pytest.mark.parametrize(
    ("requests", "batch", "reason"),
    [
        ([Request([1], 1), Request([], 1)], None, "end-of-text"),
        ([Request([1], 0)], None, "one token"),
        ([Request([1], 1)], 0, "one row"),
    ],
)
def test_invalid_arguments(requests: list[Request], batch: int | None, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        next(stream(TorchEngine(tiny_model()), requests, batch=batch))
