"""Requests with different settings in one batch equal each alone; cancelled and failing rows do not affect the others."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from helpers.small_runs import trained
from helpers.tiny_models import tiny_model
from lilliput.decoding.beam_hypotheses import BeamSettings
from lilliput.decoding.engines.compiled_engine import NumbaEngine
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.decoding.processors import GREEDY, PROCESSORS, ProcessorEntry, Strategy, TopK, build_strategy
from lilliput.decoding.requests import NO_TOKEN, Request, RequestQueue, Token
from lilliput.decoding.row_history import RowHistory
from lilliput.decoding.stream import stream
from lilliput.decoding.writer import Piece, Sample, TextRequest, Writer, load
from lilliput.errors import UserError
from lilliput.settings.tree import GenerateSettings

SAMPLED = Strategy(sample=True)
BEAMS = BeamSettings(3, 6)
# Each differs from the first in other settings.
VARIED = [
    GenerateSettings(tokens=12, temperature=1.0),
    GenerateSettings(tokens=12, temperature=0.0),
    GenerateSettings(tokens=7, temperature=1.3, final_temperature=0.4),
    GenerateSettings(tokens=12, temperature=1.0, top_k=5),
    GenerateSettings(tokens=12, temperature=1.0, top_p=0.6),
    GenerateSettings(tokens=30, temperature=1.0, stop=("e", "th")),
    GenerateSettings(tokens=12, temperature=1.0, min_tokens=9, min_p=0.05),
    GenerateSettings(tokens=12, temperature=1.0, repetition_penalty=1.5, frequency_penalty=0.3),
    GenerateSettings(tokens=12, temperature=1.0, bad_words=("the", "a", "e")),
    GenerateSettings(tokens=12, temperature=1.0, forced_words=("bee",), no_repeat_ngram=2),
    GenerateSettings(tokens=12, temperature=1.0, repetition_penalty=1.5, repetition_window=3),
    GenerateSettings(tokens=12, temperature=0.6, entropy_temperature=1.8, top_k=9),
]


@pytest.fixture(scope="module")
def writer() -> Writer:
    return load(trained() / "runs" / "mine", device="cpu")


@pytest.fixture(scope="module")
def single(writer: Writer) -> Writer:
    """In float32, with the numba engine."""
    model = load(trained() / "runs" / "mine", device="cpu").model.float()
    return Writer(writer.config, model, writer.tokenizer, engine=NumbaEngine(model, threads=1))


def finish(writer: Writer, requests: Sequence[TextRequest], batch: int | None = None) -> list[Sample]:
    for _ in writer.stream(requests, batch):
        pass
    return [request.samples[0] for request in requests]


def varied_requests(writer: Writer) -> list[TextRequest]:
    prompts = ["", "Once", "The old bear", "x" * 40, "A bee"]
    return [writer.request(prompts[n % 5], settings, seed=n) for n, settings in enumerate(VARIED)]


@pytest.mark.parametrize("batch", [None, 3])
def test_requests_with_different_settings_equal_each_alone(writer: Writer, batch: int | None) -> None:
    together = finish(writer, varied_requests(writer), batch)
    for sample, request in zip(together, varied_requests(writer), strict=True):
        (alone,) = finish(writer, [request])
        assert (sample.text, sample.tokens, sample.finish) == (alone.text, alone.tokens, alone.finish)
        assert sample.logprob == pytest.approx(alone.logprob, abs=1e-9)
    assert {sample.tokens for sample in together} >= {7, 12}
    assert not any("e" in text.text for text in (together[5], together[8]))
    assert "bee" in together[9].text


@pytest.mark.parametrize("batch", [None, 3])
def test_with_the_numba_engine_requests_are_equal_bit_for_bit(single: Writer, batch: int | None) -> None:
    together = finish(single, varied_requests(single), batch)
    alone = [finish(single, [request])[0] for request in varied_requests(single)]
    assert [[p.id for p in one.pieces] for one in together] == [[p.id for p in one.pieces] for one in alone]
    assert [[p.logprob for p in one.pieces] for one in together] == [[p.logprob for p in one.pieces] for one in alone]


def test_a_request_equals_generate(writer: Writer) -> None:
    for settings in (VARIED[0], VARIED[5], replace(VARIED[1], beams=3)):
        (sample,) = finish(writer, [writer.request("The", settings, seed=4)])
        assert sample.text == writer.generate("The", seed=4, settings=settings)
    run = writer.config.generate
    assert writer.request("The").settings == run and writer.request([5, 6]).prompt == [writer.tokenizer.start, 5, 6]


def test_settings_are_checked_by_the_request(writer: Writer) -> None:
    with pytest.raises(UserError, match=r"generate\.stop"):
        writer.request("x", GenerateSettings(stop=("",)))
    with pytest.raises(UserError) as found:
        writer.request("x", GenerateSettings(tokens=5), n_best=2)
    assert found.value.setting == "generate.beams"


def test_requests_for_different_engines_in_one_list(writer: Writer) -> None:
    settings = GenerateSettings(tokens=6, temperature=0.0)
    kinds = ["torch", "uncached", "torch"]
    requests = [writer.request("The", replace(settings, engine=kind)) for kind in kinds]  # type: ignore[arg-type]
    rows = [piece.row for _, piece in writer.stream(requests) if piece.finish]
    assert rows == [0, 1, 2]
    assert len({request.samples[0].text for request in requests}) == 1


@dataclass(frozen=True)
class CountingProcessor:
    """Changes nothing; records the number of rows of each call."""

    seen: list[int]

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        self.seen.append(len(texts))
        return logits


def test_rows_of_equal_strategies_are_processed_together() -> None:
    seen: list[int] = []
    strategies = [Strategy((CountingProcessor(seen), TopK(3)), sample=True) for _ in range(4)]
    assert strategies[0] is not strategies[1]
    requests = [Request([n + 1], 5, strategy, n) for n, strategy in enumerate(strategies)]
    list(stream(TorchEngine(tiny_model()), [requests[0], Request([9], 5), *requests[1:]]))
    assert seen == [4] * 5


# Cancellation ---------------------------------------------------------------------------------------------------------


def test_a_cancelled_row_ends_before_its_next_token_and_the_others_continue(single: Writer) -> None:
    engine = single.engine
    assert isinstance(engine, NumbaEngine)
    settings = GenerateSettings(tokens=20, temperature=1.0, min_tokens=20)
    expected = finish(single, [single.request("The", settings, seed=n) for n in range(3)])
    requests = [single.request("The", settings, seed=n) for n in range(3)]
    pieces: list[list[Piece]] = [[], [], []]
    held: list[int] = []
    for _, piece in single.stream(requests):
        pieces[piece.row].append(piece)
        if len(pieces[1]) == 5:
            requests[1].cancel()
        held.append(rows_in_use(engine))
    assert len(pieces[1]) == 6 and pieces[1][-1].finish == "cancelled" and pieces[1][-1].id == NO_TOKEN
    (sample,) = requests[1].samples
    assert (sample.finish, sample.tokens, sample.error) == ("cancelled", 5, None)
    assert sample.pieces == expected[1].pieces[:5]
    assert [requests[0].samples[0], requests[2].samples[0]] == [expected[0], expected[2]]
    assert held[0] - held[-2] == 1, "its slot is released while the others continue"


def rows_in_use(engine: NumbaEngine) -> int:
    return len(engine.slots.held) - len(engine.slots.free_handles)


def test_a_request_cancelled_before_its_turn_is_never_read() -> None:
    read: list[int] = []

    class Reading(TorchEngine):
        def prefill(self, views: Sequence[Sequence[int]]) -> tuple[Tensor, object]:  # type: ignore[override]
            read.extend(map(len, views))
            return super().prefill(views)

    requests = [Request([1], 3), Request([1, 2], 3), Request([1, 2, 3], 3)]
    requests[1].cancel()
    engine = Reading(tiny_model())
    tokens = list(stream(engine, requests, batch=1))
    assert read == [1, 3]
    assert [(token.row, token.finish) for token in tokens if token.finish] == [
        (0, "length"),
        (1, "cancelled"),
        (2, "length"),
    ]
    assert [request.finish for request in requests] == ["length", "cancelled", "length"]


def test_another_thread_can_cancel(writer: Writer) -> None:
    settings = GenerateSettings(tokens=100_000, temperature=1.0, min_tokens=100_000)
    request, begun = writer.request("The", settings), threading.Event()

    def cancel() -> None:
        begun.wait()
        request.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    for _ in writer.stream([request]):
        begun.set()
    thread.join()
    assert request.finish == "cancelled" and request.samples[0].tokens < 100_000


# Errors ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Raising:
    """Raises an exception, or spoils the logits, in rows whose prompt begins with 7 and that have two new tokens."""

    kind: str

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        logits = logits.clone()
        for row, text in enumerate(texts):
            if text.ids[0] == 7 and text.written == 2:
                if self.kind == "raise":
                    raise KeyError("mine")
                if self.kind == "widen":
                    return torch.cat((logits, torch.full((len(texts), 1), math.inf)), dim=1)
                logits[row] = math.nan
        return logits


@pytest.mark.parametrize(("failure", "kind"), [("raise", KeyError), ("widen", ValueError), ("spoil", UserError)])
@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("engine", [NumbaEngine, TorchEngine])
def test_a_processor_that_fails_ends_its_row_only(
    failure: str, kind: type[Exception], sample: bool, engine: Callable[..., NumbaEngine | TorchEngine]
) -> None:
    model = tiny_model().float() if engine is NumbaEngine else tiny_model()
    computes, strategy = engine(model), Strategy((Raising(failure),), sample)
    prompts = [[1], [7], [2, 3], [4]]
    requests = [Request(prompt, 6, strategy, n) for n, prompt in enumerate(prompts)]
    tokens = list(stream(computes, requests))
    assert isinstance(requests[1].error, kind)
    own = [token for token in tokens if token.row == 1]
    assert [token.id == NO_TOKEN for token in own] == [False, False, True]
    assert own[-1].finish == "error" and own[-1].error is requests[1].error
    for row in (0, 2, 3):
        alone = list(stream(computes, [Request(prompts[row], 6, strategy, row)]))
        assert [token.id for token in tokens if token.row == row] == [token.id for token in alone]
        assert requests[row].finish == "length" and requests[row].error is None


class SpoiledEngine(NumbaEngine):
    """Logits of rows whose prompt begins with 7 are not finite after the first token: all of them, or one."""

    places: slice | int = slice(None)

    def read(self, handles: Sequence[int], ids: Sequence[Sequence[int]]) -> Tensor:
        logits = super().read(handles, ids)
        self.bad = getattr(self, "bad", set()) | {h for h, new in zip(handles, ids, strict=True) if new[0] == 7}
        for place, handle in enumerate(handles):
            if handle in self.bad and len(ids[place]) == 1 and ids[place][0] != 7:
                logits[place, self.places] = math.nan
        return logits


@pytest.mark.parametrize(
    ("places", "strategy"), [(slice(None), GREEDY), (slice(None), SAMPLED), (5, GREEDY), (5, SAMPLED)]
)
def test_logits_that_are_not_finite_end_their_row_only(places: slice | int, strategy: Strategy) -> None:
    model = tiny_model().float()
    engine = SpoiledEngine(model)
    engine.places = places
    requests = [Request(prompt, 5, strategy, n) for n, prompt in enumerate([[1, 2], [7, 1], [3]])]
    tokens = list(stream(engine, requests))
    assert isinstance(requests[1].error, UserError) and requests[1].error.code == "model.not-finite"
    assert [token.finish for token in tokens if token.row == 1] == [None, "error"]
    for row, prompt in ((0, [1, 2]), (2, [3])):
        alone = list(stream(NumbaEngine(model), [Request(prompt, 5, strategy, row)]))
        assert [token._replace(row=0) for token in tokens if token.row == row] == alone


@pytest.mark.parametrize("engine", [NumbaEngine, TorchEngine])
@pytest.mark.parametrize("beams", [None, BEAMS])
def test_a_prompt_of_invalid_ids_ends_its_row_only(
    engine: Callable[..., NumbaEngine | TorchEngine], beams: BeamSettings | None
) -> None:
    computes = engine(tiny_model().float())
    requests = [Request(prompt, 6, beams=beams) for prompt in ([1], [2, 10**6], [3])]
    tokens = list(stream(computes, requests))
    assert [request.finish for request in requests] == ["length", "error", "length"]
    assert isinstance(requests[1].error, IndexError)
    assert [len([token for token in tokens if token.row == row]) for row in range(3)] == [6, 1, 6]


def test_a_stop_rule_that_fails_ends_its_row_only() -> None:
    class Failing:
        def push(self, id_: int) -> bool:
            raise KeyError(id_)

    requests = [Request([1], 4), Request([2], 4, stop=Failing())]
    tokens = list(stream(TorchEngine(tiny_model()), requests))
    assert [request.finish for request in requests] == ["length", "error"]
    assert len([token for token in tokens if token.row == 0]) == 4


def test_an_exception_of_the_engine_is_raised() -> None:
    class Broken(TorchEngine):
        def prefill(self, views: Sequence[Sequence[int]]) -> tuple[Tensor, object]:  # type: ignore[override]
            if len(views) > 1:
                raise MemoryError
            return super().prefill(views)

    with pytest.raises(MemoryError):
        list(stream(Broken(tiny_model()), [Request([1], 2), Request([2], 2)]))


@dataclass(frozen=True)
class FailsAfter:
    tokens: int
    prompt: int

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        for text in texts:
            if text.prompt == self.prompt and text.written == self.tokens:
                raise ZeroDivisionError
        return logits


def test_the_short_forms_raise_and_stream_does_not(writer: Writer) -> None:
    PROCESSORS.add(ProcessorEntry("failing", lambda settings, tokenizer: FailsAfter(3, 4)), before="temperature")
    try:
        settings = GenerateSettings(tokens=8, temperature=0.0)
        assert [type(rule) for rule in build_strategy(settings, writer.tokenizer).processors] == [FailsAfter]
        requests = [writer.request(prompt, settings) for prompt in ("The", "Once")]
        failed, fine = finish(writer, requests)
        assert (failed.finish, failed.tokens) == ("error", 3) and isinstance(failed.error, ZeroDivisionError)
        assert (fine.finish, fine.error) != ("error", failed.error) and fine.tokens > 3
        for call in (writer.generate, lambda prompt, settings: writer.samples(["Once", prompt], 0, settings)):
            with pytest.raises(ZeroDivisionError):
                call("The", settings=settings)  # type: ignore[operator]
        with pytest.raises(ZeroDivisionError):
            list(writer.beams(["The"], settings=replace(settings, beams=2)))
    finally:
        del PROCESSORS["failing"]
    assert build_strategy(GenerateSettings(temperature=0.0), writer.tokenizer) == GREEDY


# Adding requests while the batch runs ---------------------------------------------------------------------------------


def test_requests_are_added_while_the_batch_runs(writer: Writer) -> None:
    settings = GenerateSettings(tokens=15, temperature=1.0, min_tokens=15)
    expected = [finish(writer, [writer.request("The", settings, seed=n)])[0].text for n in range(4)]
    requests = [writer.request("The", settings, seed=n) for n in range(4)]
    waiting: RequestQueue[TextRequest] = RequestQueue()
    waiting.add(requests[0])
    active = set[int]()
    most = 0
    for request, piece in writer.stream(waiting, batch=2):
        active = active - {piece.row} if piece.finish else active | {piece.row}
        most = max(most, len(active))
        if request is requests[0] and len(request.pieces) == 4:
            for other in requests[1:]:
                waiting.add(other)
            waiting.close()
    assert [request.samples[0].text for request in requests] == expected
    assert most == 2, "a later request joins the rows in progress, and no more than the batch allows"


def test_an_idle_loop_waits_for_another_thread() -> None:
    waiting: RequestQueue[Request] = RequestQueue()
    first, second = Request([1], 3), Request([2], 3)
    waiting.add(first)
    tokens = stream(TorchEngine(tiny_model()), waiting)
    assert [next(tokens).row for _ in range(3)] == [0, 0, 0]

    def add() -> None:
        waiting.add(second)
        waiting.close()

    thread = threading.Timer(0.05, add)
    thread.start()
    assert [token.row for token in tokens] == [1, 1, 1]
    thread.join()
    assert first.finish == second.finish == "length"


# Beam search ----------------------------------------------------------------------------------------------------------


def test_beam_requests_and_sampling_requests_in_one_list(writer: Writer) -> None:
    plain = GenerateSettings(tokens=10, temperature=1.0)
    wide = GenerateSettings(tokens=8, beams=4, stop=("e",))
    narrow = GenerateSettings(tokens=6, beams=2, temperature=1.0, sample_beams=True, top_k=9)

    def requests() -> Iterator[TextRequest]:
        for seed, settings in enumerate((plain, wide, plain, narrow, wide)):
            yield writer.request("The", settings, seed=seed, n_best=settings.beams or 1)

    for batch in (None, 1, 4):
        together = list(requests())
        for _ in writer.stream(together, batch):
            pass
        for request, alone in zip(together, requests(), strict=True):
            list(writer.stream([alone]))
            assert [sample.text for sample in request.samples] == [sample.text for sample in alone.samples]
            assert [sample.score is None for sample in request.samples] == [request.beams is None] * len(alone.samples)
            assert "".join(piece.text for piece in request.pieces) == request.samples[0].text
            assert request.finish == request.samples[0].finish == request.pieces[-1].finish
    (found,) = writer.beams(["The"], 1, wide, n_best=4)
    assert found == together[1].samples and len(found) == 4


def test_beam_searches_with_different_settings_equal_each_alone() -> None:
    engine = TorchEngine(tiny_model())
    choices = [(BeamSettings(3, 6, n_best=3), GREEDY), (BeamSettings(4, 5, groups=2), Strategy((TopK(4),)))] * 2
    requests = [Request([n + 1], beams.tokens, strategy, n, beams=beams) for n, (beams, strategy) in enumerate(choices)]
    together = list(stream(engine, requests))
    found = [request.hypotheses for request in requests]
    for row, request in enumerate(requests):
        alone = list(stream(engine, [request]))
        assert [token.id for token in together if token.row == row] == [token.id for token in alone]
        assert [text.ids for text in found[row]] == [text.ids for text in request.hypotheses]


@dataclass(frozen=True)
class Cancelling:
    """Cancels a request, as another thread could, when its text has two new tokens."""

    requests: list[Request]

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        if texts[0].written == 2:
            self.requests[1].cancel()
        return logits


def test_a_beam_search_can_be_cancelled() -> None:
    engine, requests = TorchEngine(tiny_model()), list[Request]()
    requests += [Request([n + 1], 6, Strategy((Cancelling(requests),)), beams=BEAMS) for n in range(3)]
    tokens: list[Token] = list(stream(engine, requests))
    assert [request.finish for request in requests] == ["length", "cancelled", "length"]
    assert [token.id for token in tokens if token.row == 1] == [NO_TOKEN] and not requests[1].hypotheses
    for row in (0, 2):
        alone = list(stream(engine, [Request([row + 1], 6, beams=BEAMS)]))
        assert [token.id for token in tokens if token.row == row] == [token.id for token in alone]


@pytest.mark.parametrize(("failure", "kind"), [("raise", KeyError), ("widen", ValueError), ("spoil", UserError)])
def test_a_beam_search_that_fails_ends_alone(failure: str, kind: type[Exception]) -> None:
    engine, strategy = TorchEngine(tiny_model()), Strategy((Raising(failure),))
    requests = [Request([first], 6, strategy, beams=BEAMS) for first in (1, 7, 2)]
    tokens = list(stream(engine, requests))
    assert isinstance(requests[1].error, kind) and [request.finish for request in requests][1] == "error"
    assert [(token.id, token.error) for token in tokens if token.row == 1] == [(NO_TOKEN, requests[1].error)]
    for row, first in ((0, 1), (2, 2)):
        alone = list(stream(engine, [Request([first], 6, strategy, beams=BEAMS)]))
        assert [token.id for token in tokens if token.row == row] == [token.id for token in alone]


# The table of processors ----------------------------------------------------------------------------------------------


def test_the_table_names_settings_and_keeps_its_order() -> None:
    names = list(PROCESSORS)
    assert names == [entry.name for entry in PROCESSORS.values()]
    assert all(hasattr(GenerateSettings(), name) for name in names)
    assert names.index("repetition_penalty") < names.index("temperature") < names.index("top_k") < names.index("min_p")
    for wrong in ({}, {"before": "nothing"}):
        with pytest.raises(ValueError, match=r"top_k|nothing"):
            PROCESSORS.add(ProcessorEntry("new" if wrong else "top_k", lambda settings, tokenizer: None), **wrong)
    assert list(PROCESSORS) == names
