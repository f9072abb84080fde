"""Beam search compared with exhaustive search and with a simple uncached reference; samples with exact probabilities."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.tiny_models import VARIANTS, assert_same, draw_ids, name_variant, tiny_model
from lilliput.decoding.beam_hypotheses import BeamSettings, Hypothesis, StopCheck, upper_bound
from lilliput.decoding.beam_search import in_order, search_requests
from lilliput.decoding.engines import Engine
from lilliput.decoding.engines.torch_engine import TorchEngine, TorchRows
from lilliput.decoding.processors import GREEDY, Processor, Strategy, TopK
from lilliput.decoding.requests import Finish, Request
from lilliput.decoding.row_history import RowHistory
from lilliput.decoding.stream import stream
from lilliput.decoding.temperatures import Temperature
from lilliput.kernels.logit_statistics import find_peaks
from lilliput.model.transformer import Transformer

MARGIN = 1e-9  # between compared values: far above the rounding of float64
END = 0
ALPHAS = (0.0, 0.6, 1.0, -0.5, 2.0)


def search(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    settings: BeamSettings,
    strategy: Strategy = GREEDY,
    end: int | None = None,
    seed: int = 0,
    stops: StopCheck | None = None,
) -> list[list[Hypothesis]]:
    """Return the best hypotheses of each prompt; prompt i has seed + i."""
    requests = [
        Request(prompt, settings.tokens, strategy, seed + number, beams=replace(settings, stops=stops))
        for number, prompt in enumerate(prompts)
    ]
    search_requests(engine, requests, end)
    for request in requests:
        if request.error is not None:
            raise request.error
    return [request.hypotheses for request in requests]


def small_model(seed: int, vocab_size: int, **changes: Any) -> Transformer:
    return tiny_model(seed, vocab_size=vocab_size, dim=8, layers=1, heads=2, kv_heads=2, hidden=8, **changes)


@dataclass(frozen=True)
class OnlyNew:
    """Forbids tokens that the text contains, including the prompt, except for end-of-text."""

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        logits = logits.clone()
        for row, text in enumerate(texts):
            logits[row, [id_ for id_ in text.ids if id_ != END]] = -torch.inf
        return logits


Plain = tuple[tuple[int, ...], float, tuple[float, ...], Finish]  # ids, score, logprobs, finish


@torch.inference_mode()
def search_plainly(
    model: Transformer,
    prompt: list[int],
    settings: BeamSettings,
    processors: Sequence[Processor] = (),
    end: int | None = None,
    stops: StopCheck | None = None,
) -> list[Plain]:
    """Search for one prompt without cache, with complete sorted lists: the documented rules and nothing else."""
    context, half = model.settings.context, max(1, model.settings.context // 2)
    width, start = settings.width // settings.groups, 0
    groups: list[list[tuple[list[int], float, tuple[float, ...]]]] = [
        [(prompt, 0.0, ())] for _ in range(settings.groups)
    ]
    pools: list[list[Plain]] = [[] for _ in groups]
    for generated in range(1, settings.tokens + 1):
        seen = len(prompt) + generated - 1
        start = start if seen - start <= context else seen - half
        used: Counter[int] = Counter()
        for number, beams in enumerate(groups):
            if not beams:
                continue
            logits = model(torch.tensor([ids[start:] for ids, _, _ in beams]))[:, -1]
            shaped = logits
            for process in processors:
                shaped = process([RowHistory(ids, len(prompt), settings.tokens) for ids, _, _ in beams], shaped)
            own, compared = logits.log_softmax(dim=-1).tolist(), shaped.log_softmax(dim=-1).tolist()
            children = sorted(
                (used[id_] * settings.diversity - score - compared[place][id_], place, id_)
                for place, (_, score, _) in enumerate(beams)
                for id_ in range(logits.shape[1])
                if compared[place][id_] > -math.inf
            )
            for first, second in itertools.pairwise(children[: 2 * width + 1]):
                assert second[0] - first[0] > MARGIN, "use another seed: two values are too close"
            going, taken = [], []
            for rank, (_, place, id_) in enumerate(children):
                ids, score, logprobs = beams[place]
                ids, score, logprobs = [*ids, id_], score + compared[place][id_], (*logprobs, own[place][id_])
                new = ids[len(prompt) :]
                finish: Finish | None = "end" if id_ == end else "stop" if stops and stops(prompt, new)[1] else None
                finish = "length" if finish is None and generated == settings.tokens else finish
                if finish is not None and rank < width:
                    pools[number].append((tuple(new), score / generated**settings.alpha, logprobs, finish))
                    taken.append(id_)
                if finish is None and len(going) < width:
                    going.append((ids, score, logprobs))
                    taken.append(id_)
            used.update(taken)
            scores = sorted((score for _, score, _, _ in pools[number]), reverse=True)
            wanted = min(settings.n_best, width)
            attainable = [
                score / length**settings.alpha
                for _, score, _ in going
                for length in range(generated + 1, settings.tokens + 1)
            ]
            bounded = len(scores) >= wanted and bool(attainable) and scores[wanted - 1] >= max(attainable)
            first_is_enough = settings.early_stop == "first" or width == 1
            over = len(scores) >= width if first_is_enough else settings.early_stop == "bound" and bounded
            groups[number] = [] if over else going
    found = {text[0]: text for pool in pools for text in pool}
    return sorted(found.values(), key=lambda text: -text[1])[: settings.n_best]


def assert_found(found: Sequence[Hypothesis], expected: Sequence[Plain]) -> None:
    assert [text.ids for text in found] == [ids for ids, _, _, _ in expected]
    for text, (_, score, logprobs, finish) in zip(found, expected, strict=True):
        assert text.finish == finish
        assert text.score == pytest.approx(score, rel=0, abs=1e-10)
        assert text.logprobs == pytest.approx(logprobs, rel=0, abs=1e-10)
        assert text.logprob == pytest.approx(sum(logprobs), rel=0, abs=1e-10)


def as_plain(found: Sequence[Hypothesis]) -> list[Plain]:
    return [(text.ids, text.score, text.logprobs, text.finish) for text in found]


@torch.inference_mode()
def all_texts(model: Transformer, prompt: list[int], tokens: int, end: int | None) -> dict[tuple[int, ...], float]:
    """Return every possible text and its log-probability."""
    vocabulary = range(model.settings.vocab_size)
    whole = list(itertools.product(vocabulary, repeat=tokens))
    logprobs = model(torch.tensor([[*prompt, *ids] for ids in whole]))[:, len(prompt) - 1 : -1].log_softmax(dim=-1)
    chosen = logprobs.gather(2, torch.tensor(whole)[:, :, None])[:, :, 0].tolist()
    texts = {}
    for ids, each in zip(whole, chosen, strict=True):
        length = ids.index(end) + 1 if end in ids else tokens
        texts[ids[:length]] = sum(each[:length])
    return texts


class Watched:
    """The torch engine with counts of its calls."""

    name = "watched"

    def __init__(self, model: Transformer) -> None:
        self.engine = TorchEngine(model)
        self.context = self.engine.context
        self.prefilled: list[list[int]] = []  # lengths of the views
        self.stepped: list[int] = []  # rows
        self.reordered = 0

    def prefill(self, views: Sequence[Sequence[int]]) -> tuple[Tensor, WatchedRows]:
        self.prefilled.append([len(view) for view in views])
        logits, rows = self.engine.prefill(views)
        return logits, WatchedRows(self, rows)


class WatchedRows:
    def __init__(self, watcher: Watched, rows: TorchRows) -> None:
        self.watcher, self.rows = watcher, rows

    @property
    def lengths(self) -> Sequence[int]:
        return self.rows.lengths

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def step(self, ids: Sequence[Sequence[int]]) -> Tensor:
        self.watcher.stepped.append(len(ids))
        return self.rows.step(ids)

    def reorder(self, places: Sequence[int]) -> None:
        self.watcher.reordered += 1
        self.rows.reorder(places)

    def pick(self, places: Sequence[int]) -> WatchedRows:
        return WatchedRows(self.watcher, self.rows.pick(places))

    def join(self, others: WatchedRows) -> None:
        self.rows.join(others.rows)

    def truncate(self, length: int) -> None:
        self.rows.truncate(length)


@pytest.mark.parametrize("part", range(8))
def test_a_width_that_covers_the_space_is_exhaustive(part: int) -> None:
    """200 models in total. All prefixes of `tokens - 1` tokens fit in the beams, so the best texts cannot be missed."""
    surprises = 0
    for seed in range(25 * part, 25 * (part + 1)):
        vocab_size, tokens = ((4, 3), (5, 3), (6, 3), (4, 4))[seed % 4]
        alpha, end = ALPHAS[seed % 5], (None, END)[seed % 3 > 0]
        model, prompt = small_model(seed, vocab_size), draw_ids(2, seed=seed, vocab_size=vocab_size).tolist()
        width = vocab_size ** (tokens - 1)
        settings = BeamSettings(width, tokens, alpha, early_stop=("bound", "never")[seed % 2], n_best=width)
        texts = all_texts(model, prompt, tokens, end)
        best = sorted(texts, key=lambda ids: -texts[ids] / len(ids) ** alpha)[: width + 1]
        for first, second in itertools.pairwise(best):
            assert texts[first] / len(first) ** alpha - texts[second] / len(second) ** alpha > MARGIN
        (found,) = search(TorchEngine(model), [prompt], settings, end=end)
        assert [text.ids for text in found] == best[:width]
        for text in found:
            assert text.logprob == pytest.approx(texts[text.ids], rel=0, abs=1e-10)
            assert text.score == pytest.approx(texts[text.ids] / len(text.ids) ** alpha, rel=0, abs=1e-10)
            assert text.finish == ("end" if text.ids[-1] == end else "length")
        (greedy,) = search(TorchEngine(model), [prompt], BeamSettings(1, tokens), end=end)
        surprises += greedy[0].ids != best[0]
    assert surprises > 2  # greedy decoding would not pass


def test_a_width_above_the_number_of_texts() -> None:
    model = small_model(0, 4)
    for end, expected in ((None, 4**2), (END, 1 + 3 * 4)):
        (found,) = search(TorchEngine(model), [[1, 2]], BeamSettings(50, 2, n_best=50), end=end)
        assert {text.ids for text in found} == set(all_texts(model, [1, 2], 2, end))
        assert len(found) == expected
        assert [text.score for text in found] == sorted((text.score for text in found), reverse=True)


@pytest.mark.parametrize("case", VARIANTS[::6], ids=name_variant)
def test_width_1_is_greedy(case: dict[str, Any]) -> None:
    """Unequal prompts, texts longer than the context, with and without end-of-text."""
    model = tiny_model(**case)
    engine, prompts = TorchEngine(model), [draw_ids(n, seed=n).tolist() for n in (1, 24, 9, 40)]
    for end, rule in ((None, "bound"), (2, "bound"), (9, "never")):
        expected: list[list[int]] = [[] for _ in prompts]
        requests = [Request(prompt, 20, alternatives=2) for prompt in prompts]
        for token in stream(engine, requests, end):
            assert token.alternatives[0][1] - token.alternatives[1][1] > MARGIN
            expected[token.row].append(token.id)
        found = search(engine, prompts, BeamSettings(1, 20, early_stop=rule), end=end)  # type: ignore[arg-type]
        assert [list(text.ids) for (text,) in found] == expected


SEARCHES = {
    "plain": BeamSettings(4, 9, n_best=4),
    "best of a wide one": BeamSettings(6, 8, alpha=0.0, n_best=1),
    "negative alpha": BeamSettings(3, 9, alpha=-0.5, n_best=3),
    "first": BeamSettings(3, 12, early_stop="first", n_best=3),
    "never": BeamSettings(3, 9, alpha=0.6, early_stop="never", n_best=2),
    "groups": BeamSettings(6, 8, groups=3, diversity=0.7, n_best=6),
    "groups of one": BeamSettings(4, 8, groups=4, diversity=1.5, n_best=4, alpha=0.3),
    "groups, first": BeamSettings(4, 9, groups=2, diversity=0.4, n_best=3, early_stop="first"),
    "groups without diversity": BeamSettings(4, 7, groups=2, diversity=0.0, n_best=4),
}


@pytest.mark.parametrize("settings", SEARCHES.values(), ids=SEARCHES)
def test_a_search_equals_the_reference_without_cache(settings: BeamSettings) -> None:
    """A batch of unequal prompts; processors, stop strings, and texts longer than the context of 8."""
    rules: list[tuple[tuple[Processor, ...], StopCheck | None]] = [
        ((), None),
        ((OnlyNew(), Temperature(0.8)), None),
        ((TopK(3),), lambda prompt, ids: (str(ids), (len(prompt) + sum(ids)) % 5 == 0)),
    ]
    finishes = Counter[Finish]()
    for seed, (processors, stops) in enumerate(rules):
        model = tiny_model(seed, context=8, layers=2, vocab_size=19)
        prompts = [draw_ids(n, seed=n + seed).tolist() for n in (1, 7, 12)]
        found = search(TorchEngine(model), prompts, settings, Strategy(processors), END, stops=stops)
        for texts, prompt in zip(found, prompts, strict=True):
            expected = search_plainly(model, prompt, settings, processors, END, stops)
            assert_found(texts, expected)
            finishes.update(text.finish for text in texts)
    assert len(finishes) > 1, finishes


def test_groups_find_the_same_texts_only_without_diversity() -> None:
    engine = TorchEngine(tiny_model())
    (alike,) = search(engine, [[1, 2]], BeamSettings(6, 5, groups=3, diversity=0.0, n_best=6))
    (alone,) = search(engine, [[1, 2]], BeamSettings(2, 5, n_best=2))
    assert_found(alike, as_plain(alone))  # a text that several groups find is returned once
    (other,) = search(engine, [[1, 2]], BeamSettings(6, 5, groups=3, diversity=5.0, n_best=6))
    assert len({text.ids for text in other}) == 6
    assert alone[0].ids in {text.ids for text in other}  # the first group has no penalty
    assert len({text.ids[0] for text in other}) > len({text.ids[0] for text in alone})


def before_stop(ids: Sequence[int]) -> list[int]:
    return list(itertools.takewhile(lambda id_: id_ > 2, ids))


def test_of_texts_equal_before_a_stop_string_only_the_best_is_returned() -> None:
    """Three tokens act as stop strings, so that 66 texts have 40 keys; with and without groups that find the same."""
    engine = TorchEngine(small_model(5, 6))
    wide = BeamSettings(200, 3, alpha=0.5, n_best=100)
    (every,) = search(engine, [[1, 2]], wide, stops=lambda _, ids: (str(ids), len(before_stop(ids)) < len(ids)))
    expected: dict[str, float] = {}
    for text in every:  # best first
        expected.setdefault(str(before_stop(text.ids)), text.score)
    assert (len(every), len(expected)) == (66, 40)

    def stops(prompt: Sequence[int], ids: Sequence[int]) -> tuple[str, bool]:
        return str(before_stop(ids)), len(before_stop(ids)) < len(ids)

    for settings in (wide, replace(wide, groups=2, diversity=0.0)):
        (found,) = search(engine, [[1, 2]], settings, stops=stops)
        assert [text.key for text in found] == [*expected]
        assert [text.score for text in found] == pytest.approx([*expected.values()], rel=0, abs=1e-10)
    (drawn,) = search(engine, [[1, 2]], replace(wide, sample=True), stops=stops)
    assert len(drawn) == 40 and {text.key for text in drawn} == expected.keys()
    (few,) = search(engine, [[1, 2]], BeamSettings(4, 3, alpha=0.5, n_best=4), stops=stops)
    assert len({text.key for text in few}) == 4


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_bound_saves_steps_and_does_not_change_the_result(alpha: float) -> None:
    steps = Counter[str]()
    for seed in range(12):
        model, width = small_model(seed, 6), 2 + seed % 4
        prompt = draw_ids(3, seed=seed, vocab_size=6).tolist()
        found = {}
        for rule in ("bound", "never"):
            watched = Watched(model)
            settings = BeamSettings(width, 10, alpha, early_stop=rule, n_best=1 + seed % width)  # type: ignore[arg-type]
            found[rule] = search(watched, [prompt], settings, end=END)
            steps[rule] += len(watched.stepped)
        assert found["bound"] == found["never"]
    assert steps["bound"] < steps["never"] or alpha >= 1  # the bound of a long text is then rarely low enough


@pytest.mark.parametrize("alpha", [*ALPHAS, -3.0, 0.01])
def test_the_upper_bound_is_the_best_of_all_lengths(alpha: float) -> None:
    for score in (0.0, -0.1, -7.0):
        for generated in range(1, 9):
            every = [score / length**alpha for length in range(generated + 1, 10)]
            assert upper_bound(score, generated, 9, alpha) == pytest.approx(max(every), rel=1e-14)


def test_a_batch_equals_each_prompt_alone() -> None:
    model = tiny_model(context=12)
    engine, prompts = TorchEngine(model), [draw_ids(n, seed=n).tolist() for n in (1, 12, 5, 30, 5, 2)]
    for settings in (
        BeamSettings(3, 14, n_best=3),
        BeamSettings(4, 14, sample=True, n_best=4),
        BeamSettings(4, 9, groups=2, n_best=4),
    ):
        together = search(engine, prompts, settings, end=END, seed=7)
        for number, prompt in enumerate(prompts):
            (alone,) = search(engine, [prompt], settings, end=END, seed=7 + number)
            assert_found(together[number], as_plain(alone))
    assert search(engine, [], BeamSettings(3, 4)) == []


def test_a_prompt_is_read_once_and_a_finished_search_leaves_the_batch() -> None:
    watched, prompts = Watched(tiny_model()), [draw_ids(n, seed=n).tolist() for n in (4, 9, 1, 6)]
    settings = BeamSettings(3, 15, early_stop="first", n_best=3)
    together = search(watched, prompts, settings, end=END)
    assert watched.prefilled == [[4, 9, 1, 6]]
    alone = []
    for prompt in prompts:
        one = Watched(watched.engine.model)
        search(one, [prompt], settings, end=END)
        alone.append(one.stepped)
    assert watched.stepped == [sum(rows) for rows in itertools.zip_longest(*alone, fillvalue=0)]
    assert len({len(steps) for steps in alone}) > 1
    assert watched.stepped[0] == 12 > watched.stepped[-1]
    assert {text.finish for texts in together for text in texts} == {"end", "length"}


def test_rows_that_keep_their_place_are_not_reordered() -> None:
    watched = Watched(tiny_model())
    search(watched, [[1, 2]], BeamSettings(1, 12))
    assert watched.stepped == [1] * 11
    assert watched.reordered == 0


def test_beams_reach_the_context_together_and_equal_views_are_read_once() -> None:
    watched = Watched(small_model(1, 6, context=8))
    (found,) = search(watched, [[1, 2, 3]], BeamSettings(4, 22, n_best=4))
    # 3 of the prompt and 5 more; at the ninth token the last 4 of all 4 beams are read again, equal ones once
    assert watched.prefilled[0] == [3]
    assert [set(lengths) for lengths in watched.prefilled[1:]] == [{4}] * 4
    assert all(1 <= len(lengths) <= 4 for lengths in watched.prefilled[1:])
    assert watched.stepped == [4] * (21 - 4)
    assert all(len(text.ids) == 22 for text in found)


@dataclass(frozen=True)
class Rereading:
    """Changes nothing; checks that the logits of every row belong to its text."""

    model: Transformer
    lengths: list[int]

    @torch.inference_mode()
    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        for text, row in zip(texts, logits, strict=True):
            assert_same(row, self.model(torch.tensor([text.ids]))[0, -1])
            assert text.left + text.written == 6
            self.lengths.append(text.written)
        return logits


def test_processors_receive_the_texts_of_their_rows() -> None:
    model, lengths = tiny_model(), list[int]()
    found = search(
        TorchEngine(model), [[1, 2], [5]], BeamSettings(3, 6, n_best=3), Strategy((Rereading(model, lengths),))
    )
    assert Counter(lengths) == {0: 2} | dict.fromkeys(range(1, 6), 6)
    assert found == search(TorchEngine(model), [[1, 2], [5]], BeamSettings(3, 6, n_best=3))


def test_processors_change_the_score_and_not_the_logprob() -> None:
    engine, settings = TorchEngine(tiny_model()), BeamSettings(2, 5, alpha=0.0, n_best=2)
    (plain,) = search(engine, [[1, 2]], settings)
    assert all(text.score == text.logprob for text in plain)
    (cooled,) = search(engine, [[1, 2]], settings, Strategy((Temperature(0.5),)))
    assert all(text.score > text.logprob for text in cooled)


def test_equal_scores_are_ordered_by_beam_and_then_by_token() -> None:
    model = tiny_model(vocab_size=150)
    with torch.no_grad():
        model.head.project.weight.zero_()
    (found,) = search(TorchEngine(model), [[1]], BeamSettings(3, 2, n_best=3))
    assert [text.ids for text in found] == [(0, 0), (0, 1), (0, 2)]
    (found,) = search(TorchEngine(model), [[1]], BeamSettings(2, 2, n_best=2), end=0)
    assert [text.ids for text in found] == [(0,), (1, 0)]  # alpha is 1: all have the same score, and (0,) came first
    assert [text.score for text in found] == pytest.approx([-math.log(150)] * 2)


@dataclass(frozen=True)
class Nearly:
    """All logits equal, except for one by less than the rounding of a sum."""

    favourite: int

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        logits = torch.zeros_like(logits)
        logits[:, self.favourite] = 1e-17
        return logits


def test_width_1_is_greedy_where_a_sum_rounds_the_difference_away() -> None:
    engine, strategy = TorchEngine(tiny_model(vocab_size=150)), Strategy((Nearly(77),))
    assert [token.id for token in stream(engine, [Request([1], 3, strategy)])] == [77, 77, 77]
    (found,) = search(engine, [[1]], BeamSettings(1, 3), strategy)
    assert found[0].ids == (77, 77, 77)


def drain(batches: Iterator[tuple[Any, Any]]) -> list[tuple[int, int]]:
    return [pair for rows, ids in batches for pair in zip(rows.tolist(), ids.tolist(), strict=True)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("vocab_size", [1, 63, 64, 65, 1000])
def test_in_order_equals_sorting_everything(dtype: type, vocab_size: int) -> None:
    random = np.random.default_rng(vocab_size)
    for wanted in (1, 2, 7, 40):
        keys = random.normal(size=(3, vocab_size)).round(2).astype(dtype)  # rounded: many ties
        keys[random.random(keys.shape) < 0.3] = -np.inf
        base = random.normal(size=3) * 100 ** random.integers(0, 3)
        base[1] *= 1e12  # rounds differences of its row away
        everything = sorted(
            (-(base[row] + float(keys[row, id_])), row, -float(keys[row, id_]), id_)
            for row in range(3)
            for id_ in range(vocab_size)
        )
        expected = [(row, id_) for value, row, _, id_ in everything if value < np.inf]
        assert drain(in_order(keys, find_peaks(keys), base, wanted)) == expected
        first, _ = next(in_order(keys, find_peaks(keys), base, wanted))
        assert len(first) >= min(wanted, len(expected))


def test_in_order_with_bases_of_different_size() -> None:
    """The tolerance of a row with a large base is wide: more of its tokens are found, and they must not come too early."""
    near = np.random.default_rng(0).normal(size=(2, 256)) * 1e-3
    base = np.array([1e4, 0.0])
    keys = near - base[:, None]
    totals = base[:, None] + keys
    expected = [divmod(int(at), 256) for at in np.argsort(-totals.ravel(), kind="stable")]
    assert drain(in_order(keys, find_peaks(keys), base, 3)) == expected


def drawn_texts(model: Transformer, width: int, draws: int, seed: int, end: int | None) -> list[list[Hypothesis]]:
    return search(
        TorchEngine(model), [[1, 2]] * draws, BeamSettings(width, 2, sample=True, n_best=width), end=end, seed=seed
    )


@pytest.mark.parametrize("end", [None, 1])
def test_sampled_beams_are_a_sample_without_replacement(end: int | None) -> None:
    """The frequency of each set of texts is compared with its exact probability."""
    model, draws = small_model(3, 4), 1500
    texts = {ids: math.exp(logprob) for ids, logprob in all_texts(model, [1, 2], 2, end).items()}
    assert sum(texts.values()) == pytest.approx(1)
    for width in (1, 2):
        exact = Counter[frozenset[tuple[int, ...]]]()
        for order in itertools.permutations(texts, width):
            chance, left = 1.0, 1.0
            for ids in order:
                chance, left = chance * texts[ids] / left, left - texts[ids]
            exact[frozenset(order)] += chance  # type: ignore[assignment]
        drawn = Counter(frozenset(text.ids for text in found) for found in drawn_texts(model, width, draws, 11, end))
        assert drawn.total() == draws
        assert set(drawn) <= set(exact)
        for which, chance in exact.items():
            standard_deviation = math.sqrt(draws * chance * (1 - chance)) + 1
            assert abs(drawn[which] - draws * chance) < 4.5 * standard_deviation
        statistic = sum((drawn[which] - draws * chance) ** 2 / (draws * chance) for which, chance in exact.items())
        degrees = len(exact) - 1
        assert statistic < degrees + 5 * math.sqrt(2 * degrees)


def test_sampled_beams_are_different_sorted_and_reproducible() -> None:
    engine, settings = TorchEngine(tiny_model()), BeamSettings(5, 12, sample=True, n_best=5)
    (found,) = search(engine, [[1, 2]], settings, end=END, seed=4)
    assert len({text.ids for text in found}) == 5
    assert [text.score for text in found] == sorted((text.score for text in found), reverse=True)
    assert [found] == search(engine, [[1, 2]], settings, end=END, seed=4)
    assert [found] != search(engine, [[1, 2]], settings, end=END, seed=5)
    (best,) = search(engine, [[1, 2]], BeamSettings(5, 12, sample=True, n_best=2), end=END, seed=4)
    assert best == found[:2]


def test_sampled_beams_with_processors_and_with_a_nearly_certain_model() -> None:
    """With a nearly certain model, other texts arrive very late or never."""
    model = small_model(0, 6)
    (found,) = search(TorchEngine(model), [[1]], BeamSettings(40, 4, sample=True, n_best=40), Strategy((OnlyNew(),)))
    assert all(len({1, *text.ids} - {END}) == 1 + len([id_ for id_ in text.ids if id_ != END]) for text in found)
    with torch.no_grad():
        model.head.project.weight *= 1000
    (found,) = search(TorchEngine(model), [[1]], BeamSettings(6, 4, sample=True, n_best=6))
    (sure,) = search(TorchEngine(model), [[1]], BeamSettings(1, 4))
    assert found[0].ids == sure[0].ids
    assert all(math.isfinite(text.score) for text in found)


@pytest.mark.parametrize("wrong", [{"n_best": 6}, {"groups": 2}, {"alpha": 200.0}, {"groups": 5, "sample": True}])
def test_invalid_beam_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        BeamSettings(5, 10, **wrong)
