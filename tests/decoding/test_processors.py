"""Logit processors compared with plain Python, and the choice of tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.tiny_models import assert_same
from helpers.tiny_models import draw as random_logits
from helpers.user_errors import refused
from lilliput.data.tokenizers import byte_tokenizer
from lilliput.decoding.processors import (
    GREEDY,
    Candidates,
    MinP,
    Strategy,
    TopK,
    TopP,
    Typical,
    build_strategy,
    pack,
)
from lilliput.decoding.repetition_penalties import MinTokens, NoRepeat, Penalties
from lilliput.decoding.row_history import Processor, RowHistory
from lilliput.decoding.temperatures import EntropyTemperature, Temperature
from lilliput.decoding.token_choice import AHEAD, Draws, choose, draw_tokens
from lilliput.decoding.word_constraints import BadWords, ForcedWords
from lilliput.kernels.logit_statistics import find_peaks
from lilliput.settings.tree import GenerateSettings

CHI_SQUARE_5 = 20.52  # 0.999 quantile, five degrees of freedom
MARGIN = 1e-9  # sums closer than this to a threshold are not tested: rounding decides
BYTES = byte_tokenizer()
NO_TEXT = RowHistory([0], 1, 9)

logits = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=9)  # few values: many ties
probabilities = st.floats(0.01, 0.99)
# Logits after earlier rules: some tokens are forbidden, never all.
banned_logits = st.lists(st.just(-math.inf) | st.integers(-4, 4).map(float), min_size=1, max_size=9).filter(
    lambda row: max(row) > -math.inf
)


def apply(process: Processor, row: list[float], text: RowHistory = NO_TEXT) -> list[float]:
    given = torch.tensor([row], dtype=torch.float64)
    processed: list[float] = process([text], given).tolist()[0]
    assert given.tolist() == [row], "arguments are not changed"
    return processed


def shares(row: list[float]) -> list[float]:
    powers = [math.exp(value - max(row)) for value in row]
    return [power / math.fsum(powers) for power in powers]


def generators(*seeds: int) -> list[Draws]:
    return [Draws(seed) for seed in seeds]


# ---- filters ---------------------------------------------------------------------------------------------------------


@given(row=logits, k=st.integers(1, 12))
def test_top_k_keeps_the_k_likeliest_and_those_equal_to_the_last(row: list[float], k: int) -> None:
    kept = apply(TopK(k), row)
    border = sorted(row, reverse=True)[min(k, len(row)) - 1]
    assert kept == [value if value >= border else -math.inf for value in row]
    assert sum(value > -math.inf for value in kept) >= min(k, len(row))


@given(row=logits, k=st.integers(1, 12))
def test_top_k_renormalises_the_kept_probabilities(row: list[float], k: int) -> None:
    """The new distribution is the old one divided by the total of the kept tokens."""
    before = torch.tensor([row], dtype=torch.float64)
    kept = TopK(k)([NO_TEXT], before)
    left = before.softmax(dim=-1) * kept.isfinite()
    assert_same(kept.softmax(dim=-1), left / left.sum())


@pytest.mark.parametrize("vocabulary", [64, 1000, 4096])
@pytest.mark.parametrize("k", [1, 2, 7, 31, 100])
@pytest.mark.parametrize("banned", [0.0, 0.5, 0.99, 0.9999])
def test_top_k_of_a_large_vocabulary(vocabulary: int, k: int, banned: float) -> None:
    """Compared with sorting, with many equal logits, and with fewer than k tokens left in a row."""
    generator = torch.Generator().manual_seed(vocabulary + k)
    logits = (4.0 * torch.randn(9, vocabulary, generator=generator)).round() / 4.0
    logits[torch.rand(logits.shape, generator=generator) < banned] = -torch.inf
    logits[:, 5] = 0.25  # at least one token is left
    logits[0] = torch.randn(vocabulary, generator=generator)  # a row without forbidden tokens
    kept = TopK(k)([NO_TEXT] * 9, logits)
    for row, found in zip(logits, kept, strict=True):
        border = row.sort(descending=True).values[min(k, vocabulary) - 1]
        assert torch.equal(found, row.where(row >= border, -torch.inf))
    # Peaks save time and do not change the tokens, also after a temperature.
    values = logits.numpy()
    for peaks in (None, find_peaks(values)):
        few = TopK(k).apply_to_candidates(Candidates(values, None, peaks))
        for row, (found, own) in enumerate(zip(kept, few.values, strict=True)):
            ids = np.arange(vocabulary) if few.ids is None else few.ids[row]
            there = own > -np.inf
            assert ids[there].tolist() == found.isfinite().nonzero()[:, 0].tolist()
            assert own[there].tolist() == found[found.isfinite()].tolist()
    for processors in (
        (TopK(k),),
        (Temperature(0.7), TopK(k)),
        (Temperature(0.7, 1.3), TopK(k), TopP(0.9)),
        (Typical(0.5), TopK(k)),  # may remove the likeliest token, which changes the peaks
        (TopP(0.9), Typical(0.5), TopK(k)),
    ):
        strategies, seeds = [Strategy(processors, sample=True)] * 9, range(9)
        texts = [RowHistory([0] * written, 1, 12) for written in range(1, 10)]
        found = choose(strategies, texts, logits, generators(*seeds), find_peaks(values))
        assert found == choose(strategies, texts, logits, generators(*seeds))


def test_top_k_treats_each_row_by_itself() -> None:
    kept = TopK(2)([NO_TEXT, NO_TEXT], torch.tensor([[1.0, 2.0, 3.0], [9.0, 9.0, 9.0]]))
    assert kept.tolist() == [[-math.inf, 2.0, 3.0], [9.0, 9.0, 9.0]]


def fewest(keys: list[float], masses: list[float], p: float) -> list[bool]:
    """Return which tokens are needed, in the order of their keys, for a mass of p; equal keys stay together."""
    by_key = sorted(range(len(keys)), key=lambda token: keys[token])
    assume(all(abs(math.fsum(masses[t] for t in by_key[:n]) - p) > MARGIN for n in range(len(keys) + 1)))
    reached, last = 0.0, math.inf
    for token in by_key:
        reached += masses[token]
        last = keys[token]
        if reached >= p:
            break
    return [key <= last for key in keys]


@given(row=banned_logits, p=probabilities)
def test_top_p_keeps_the_smallest_set_with_the_mass(row: list[float], p: float) -> None:
    mass = shares(row)
    expected = fewest([-value for value in row], mass, p)
    kept = apply(TopP(p), row)
    assert kept == [value if stays else -math.inf for value, stays in zip(row, expected, strict=True)]
    left = {value for value in kept if value > -math.inf}
    assert math.fsum(share for share, value in zip(mass, kept, strict=True) if value > -math.inf) >= p - MARGIN
    without = math.fsum(share for share, value in zip(mass, row, strict=True) if value > min(left))
    assert without < p, "the least likely kept token is needed"


@given(row=banned_logits, p=probabilities)
def test_typical_keeps_the_smallest_set_nearest_to_the_entropy(row: list[float], p: float) -> None:
    mass = shares(row)
    entropy = -math.fsum(share * math.log(share) for share in mass if share)
    # Rounded: distances on both sides of the entropy may be equal except for rounding.
    distance = [round(abs(-math.log(share) - entropy), 10) if share else math.inf for share in mass]
    away = sorted({d for d in distance if d < math.inf})
    assume(all(later - earlier > MARGIN for earlier, later in pairwise(away)))
    sides = {(d, value) for d, value in zip(distance, row, strict=True)}
    assume(len(sides) == len({d for d, _ in sides}))  # equal distances on both sides are decided by rounding
    expected = fewest(distance, mass, p)
    kept = apply(Typical(p), row)
    assert kept == [value if stays else -math.inf for value, stays in zip(row, expected, strict=True)]


def test_typical_removes_a_token_that_is_too_likely() -> None:
    """Meister et al. 2022: a token much likelier than expected is untypical, too."""
    row = [math.log(share) for share in (0.4, 0.12, 0.12, 0.12, 0.12, 0.06, 0.06)]
    kept = apply(Typical(0.4), row)
    assert [value > -math.inf for value in kept] == [False, True, True, True, True, False, False]


@given(row=banned_logits, p=st.floats(0.001, 1.0))
def test_min_p_keeps_tokens_with_a_share_of_the_highest_probability(row: list[float], p: float) -> None:
    mass = shares(row)
    assume(all(abs(share - p * max(mass)) > MARGIN or share == max(mass) for share in mass))
    expected = [
        value if share >= p * max(mass) or value == max(row) else -math.inf
        for value, share in zip(row, mass, strict=True)
    ]
    assert apply(MinP(p), row) == expected


@given(row=banned_logits, p=probabilities, order=st.randoms(use_true_random=False))
def test_filters_do_not_depend_on_the_order_of_tokens(row: list[float], p: float, order: Any) -> None:
    mass, places = shares(row), list(range(len(row)))
    assume(all(abs(partial - p) > MARGIN for partial in accumulate(sorted(mass, reverse=True))))
    order.shuffle(places)
    for process in (TopK(3), TopP(p), MinP(p)):
        kept = apply(process, row)
        assert apply(process, [row[place] for place in places]) == [kept[place] for place in places]


@given(row=banned_logits, p=st.sampled_from([1e-9, 0.5, 1.0]))
@pytest.mark.parametrize("kind", [TopP, Typical, MinP])
def test_filters_always_keep_a_token(kind: Any, row: list[float], p: float) -> None:
    for dtype in (torch.float32, torch.float64):
        kept = kind(p)([NO_TEXT], torch.tensor([row], dtype=dtype))
        assert kept.dtype == dtype
        assert kept.max() > -math.inf
        assert not kept.isnan().any()


# ---- independence of rows ---------------------------------------------------------------------------------------------

PROCESSORS: list[Processor] = [
    Temperature(0.7),
    Temperature(0.7, final=1.9),
    EntropyTemperature(0.7, 1.9, 257),
    TopK(5),
    TopP(0.8),
    Typical(0.6),
    MinP(0.1),
    Penalties(1.3, 0.2, -0.4, prompt=True, end=256),
    Penalties(0.8, -0.1, 0.4, prompt=False, end=256),
    Penalties(1.3, 0.2, 0.4, prompt=True, end=256, window=3),
    NoRepeat(1, prompt=False, end=256),
    NoRepeat(2, prompt=True, end=256),
    MinTokens(3, end=256),
    BadWords(("ab", "b"), BYTES),
    ForcedWords(("ab", "ba b"), BYTES),
]
texts_of_bytes = st.builds(
    lambda ids, prompt, room: RowHistory([256, *ids], 1 + min(prompt, len(ids)), len(ids) + room),
    st.lists(st.sampled_from(b"ab "), max_size=12),
    st.integers(0, 4),
    st.integers(1, 9),
)


def draw(table: Tensor, own: list[Draws]) -> list[int]:
    return draw_tokens(Candidates(table.numpy(), None), own)


def rows_of_logits(rows: int, seed: int, banned: bool) -> Tensor:
    table = 3 * random_logits(rows, 257, seed=seed)
    if banned:  # row r has 257 / (r + 1) tokens left: a row may be packed in a batch and not alone
        for row in range(rows):
            table[row][torch.arange(257) % (row + 1) > 0] = -math.inf
    return table


@pytest.mark.parametrize("process", PROCESSORS, ids=lambda process: type(process).__name__)
@settings(max_examples=30)
@given(texts=st.lists(texts_of_bytes, min_size=1, max_size=5), seed=st.integers(0, 99), banned=st.booleans())
def test_a_row_does_not_depend_on_the_batch(
    process: Processor, texts: list[RowHistory], seed: int, banned: bool
) -> None:
    for dtype in (torch.float64, torch.float32):
        table = rows_of_logits(len(texts), seed, banned).to(dtype)
        together = process(texts, table)
        assert together.dtype == dtype
        for row, text in enumerate(texts):
            assert torch.equal(process([text], table[row : row + 1])[0], together[row])


@given(texts=st.lists(texts_of_bytes, min_size=1, max_size=6), seed=st.integers(0, 99), banned=st.booleans())
def test_tokens_alone_and_in_any_batch_are_equal(texts: list[RowHistory], seed: int, banned: bool) -> None:
    """Rows of different strategies, in float64 and float32, with the same random numbers."""
    choices = [
        Strategy((TopK(5), TopP(0.9)), sample=True),
        GREEDY,
        Strategy((Temperature(0.8), MinP(0.2)), sample=True),
        Strategy((), sample=True),
    ]
    strategies = [choices[row % 4] for row in range(len(texts))]
    for dtype in (torch.float64, torch.float32):
        table = rows_of_logits(len(texts), seed, banned).to(dtype)
        together = choose(strategies, texts, table, generators(*range(len(texts))))
        alone = [
            choose([strategies[row]], [text], table[row : row + 1], generators(row))[0]
            for row, text in enumerate(texts)
        ]
        assert together == alone


@given(
    shapes=st.lists(
        st.sampled_from(
            [
                Temperature(0.7),
                Temperature(2.0, 0.5),
                EntropyTemperature(0.5, 1.5, 5000),
                TopK(9),
                TopK(40),
                Typical(0.9),
                TopP(0.9),
                MinP(0.05),
            ]
        ),
        max_size=5,
        unique=True,
    ),
    late=st.none() | st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_packed_candidates_give_the_same_tokens(shapes: list[Processor], late: int | None, seed: int) -> None:
    """After a filter only the kept tokens are processed; also if a rule about the text comes later."""
    if late is not None:
        shapes.insert(late, BadWords(("a",), BYTES))
    table, texts = (
        3 * random_logits(4, 5000, seed=seed).float(),
        [RowHistory([256, 98], 1, 3 + row) for row in range(4)],
    )
    processed = table
    for process in shapes:
        processed = process(texts, processed)
    for peaks in (None, find_peaks(table.numpy())):
        found = choose([Strategy(tuple(shapes), sample=True)] * 4, texts, table, generators(1, 2, 3, 4), peaks)
        assert found == draw(processed, generators(1, 2, 3, 4))


# ---- the choice ------------------------------------------------------------------------------------------------------


def test_greedy_takes_the_first_of_the_likeliest() -> None:
    table = torch.tensor([[1.0, 3.0, 3.0], [5.0, 5.0, 0.0], [-math.inf, -2.0, -3.0]])
    assert choose([GREEDY] * 3, [NO_TEXT] * 3, table, generators(0, 1, 2)) == [1, 0, 1]


def chi_square(counts: list[int], expected: list[float]) -> float:
    total = sum(counts)
    return sum((count - total * share) ** 2 / (total * share) for count, share in zip(counts, expected, strict=True))


@pytest.mark.parametrize("ruled_out", [0, 60])
@pytest.mark.parametrize("one_generator", [True, False])
def test_draws_follow_the_softmax(one_generator: bool, ruled_out: int) -> None:
    """Many draws of one row, and the first draw of many rows: neighbouring seeds must be independent."""
    row = torch.cat((torch.full((1, ruled_out), -math.inf), torch.tensor([[1.0, -1.0, 0.3, 2.0, 0.0, -0.5]])), dim=1)
    if one_generator:
        own = generators(5)
        drawn = [draw(row, own)[0] for _ in range(6000)]
    else:
        drawn = draw(row.expand(6000, -1), generators(*range(6000)))
    counts = [drawn.count(ruled_out + token) for token in range(6)]
    assert sum(counts) == 6000
    assert chi_square(counts, row.double().softmax(dim=-1)[0, ruled_out:].tolist()) < CHI_SQUARE_5


@given(row=st.lists(st.just(-math.inf) | st.floats(-30, 30), min_size=1, max_size=40), seed=st.integers(0, 2**32 - 1))
def test_a_draw_inverts_the_cumulative_sum(row: list[float], seed: int) -> None:
    assume(max(row) > -math.inf)
    number = Draws(seed).next()
    sums = [0.0, *accumulate(shares(row))]
    (token,) = draw(torch.tensor([row], dtype=torch.float64), generators(seed))
    assert row[token] > -math.inf
    assert sums[token] - MARGIN <= number <= sums[token + 1] + MARGIN


def test_a_forbidden_token_is_never_drawn() -> None:
    row = torch.tensor([[-math.inf, 0.0, -math.inf, 1.0, -math.inf]])
    assert set(draw(row.expand(3000, -1), generators(*range(3000)))) == {1, 3}
    only = torch.tensor([[-math.inf, -math.inf, 3.0]]).expand(50, -1)
    assert set(draw(only, generators(*range(50)))) == {2}


class Always(Draws):
    """Always the same number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def next(self) -> float:
        return self.number


@pytest.mark.parametrize("left", [34, 5])
@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-53])
def test_the_extreme_random_numbers_draw_a_token_with_mass(number: float, left: int) -> None:
    """With few tokens left (packed) and with many."""
    for seed in range(50):
        row = random_logits(1, 40, seed=seed)
        row[0, :3] = row[0, 3 + left :] = -math.inf
        (token,) = draw(row, [Always(number)])
        assert token == (3 if number == 0.0 else 2 + left)


@given(rows=st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True), steps=st.integers(1, 4))
def test_a_rows_draws_do_not_depend_on_the_batch(rows: list[int], steps: int) -> None:
    """Row r has 30 / (r + 1) tokens left: alone the later rows are packed, with the first they are not."""
    table = random_logits(6, 30, seed=1)
    for row in range(6):
        table[row][torch.arange(30) % (row + 1) > 0] = -math.inf
    together, alone = generators(*(10 + row for row in rows)), generators(*range(10, 16))
    for _ in range(steps):
        chosen = draw(table[rows], together)
        assert chosen == [draw(table[row : row + 1], [alone[row]])[0] for row in rows]


def test_blocks_of_rows_equal_each_row_alone() -> None:
    table = random_logits(9, 5000, seed=3)
    chosen = draw(table, generators(*range(9)))
    assert chosen == [draw(table[row : row + 1], generators(row))[0] for row in range(9)]
    assert len(set(chosen)) > 5


@given(row=banned_logits, others=st.lists(banned_logits, max_size=3), ahead=st.integers(0, 99))
def test_packing_keeps_values_ids_and_their_order(row: list[float], others: list[list[float]], ahead: int) -> None:
    rows = [[*[-math.inf] * ahead, *own, *[-math.inf] * (9 - len(own))] for own in (row, *others)]
    values = np.array(rows)
    packed, ids, _ = pack(values, values > -np.inf)
    if ids is None:
        assert packed.tolist() == rows
        return
    for own, kept, places in zip(rows, packed.tolist(), ids, strict=True):
        there = [place for place, value in enumerate(own) if value > -math.inf]
        assert places[: len(there)].tolist() == there
        assert kept[: len(there)] == [own[place] for place in there]
        assert set(kept[len(there) :]) <= {-math.inf}


def test_random_numbers_equal_those_of_torch_rand() -> None:
    """Also beyond the numbers drawn ahead."""
    draws, generator = Draws(1), torch.Generator().manual_seed(1)
    for _ in range(3 * AHEAD):
        assert draws.next() == torch.rand(1, dtype=torch.float64, generator=generator).item()


# ---- from settings ---------------------------------------------------------------------------------------------------


def test_settings_that_are_off_add_no_processor() -> None:
    assert build_strategy(GenerateSettings(temperature=0.0), BYTES) == GREEDY
    assert build_strategy(GenerateSettings(temperature=1.0), BYTES) == Strategy((), sample=True)
    ones = GenerateSettings(temperature=1.0, top_p=1.0, typical=1.0)
    assert build_strategy(ones, BYTES) == Strategy((), sample=True)
    assert build_strategy(GenerateSettings(temperature=0.7, top_k=5), BYTES) == Strategy(
        (Temperature(0.7), TopK(5)), sample=True
    )
    assert build_strategy(GenerateSettings(temperature=0.1), BYTES).sample


EVERYTHING = GenerateSettings(
    tokens=50,
    min_tokens=4,
    temperature=1.0,
    final_temperature=0.5,
    top_k=9,
    top_p=0.9,
    min_p=0.05,
    typical=0.95,
    repetition_penalty=1.2,
    frequency_penalty=0.1,
    presence_penalty=0.2,
    penalise_prompt=False,
    repetition_window=64,
    no_repeat_ngram=3,
    bad_words=("cat",),
    forced_words=("dog",),
)
RULES: tuple[Processor, ...] = (
    Penalties(1.2, 0.1, 0.2, prompt=False, end=256, window=64),
    BadWords(("cat",), BYTES),
    MinTokens(4, end=256),
    ForcedWords(("dog",), BYTES),
    NoRepeat(3, prompt=False, end=256),
)


def test_the_order_of_a_strategy() -> None:
    shapes = (Temperature(1.0, 0.5), TopK(9), Typical(0.95), TopP(0.9), MinP(0.05))
    assert build_strategy(EVERYTHING, BYTES) == Strategy((*RULES, *shapes), sample=True)
    assert hash(build_strategy(EVERYTHING, BYTES)) == hash(build_strategy(EVERYTHING, BYTES))
    by_entropy = replace(EVERYTHING, final_temperature=None, entropy_temperature=1.2)
    shapes = (EntropyTemperature(1.0, 1.2, 257), *shapes[1:])
    assert build_strategy(by_entropy, BYTES) == Strategy((*RULES, *shapes), sample=True)


def test_without_sampling_there_is_no_temperature_and_no_filter() -> None:
    assert build_strategy(replace(EVERYTHING, temperature=0.0), BYTES) == Strategy(RULES)
    assert build_strategy(replace(EVERYTHING, beams=4), BYTES) == Strategy(RULES)
    drawn = build_strategy(replace(EVERYTHING, beams=4, sample_beams=True), BYTES)
    assert drawn == build_strategy(EVERYTHING, BYTES)


def test_each_penalty_alone_adds_the_processor() -> None:
    for change in ({"repetition_penalty": 0.9}, {"frequency_penalty": -0.1}, {"presence_penalty": 0.1}):
        (rule,) = build_strategy(GenerateSettings(temperature=0.0, **change), BYTES).processors  # type: ignore[arg-type]
        assert isinstance(rule, Penalties)


def test_forced_words_longer_than_the_token_limit_are_an_error() -> None:
    error = refused(lambda: build_strategy(GenerateSettings(tokens=8, forced_words=("cat", "mouse")), BYTES))
    assert (error.code, error.setting) == ("setting.conflict", "generate.forced_words")
    assert "10" in error.what and "generate.tokens to 10" in error.fix
    assert build_strategy(GenerateSettings(tokens=10, forced_words=("cat", "mouse")), BYTES).processors


def test_a_rule_that_leaves_no_token_is_ignored() -> None:
    """Every token is a bad word except two: one is a repetition, the other is end-of-text before the minimum length."""
    words = tuple(chr(byte) for byte in range(128) if chr(byte) != "b")
    rules = (BadWords(words, BYTES), MinTokens(5, end=256), NoRepeat(1, prompt=True, end=256))
    table = random_logits(1, 257, seed=1)
    table[0, 128:256] = -math.inf
    for drawn in (False, True):
        text = RowHistory([256, *b"b "], 1, 9)
        (chosen,) = choose([Strategy(rules, drawn)], [text], table, generators(0))
        assert chosen == ord("b")
    table[0, ord("b")] = -math.inf  # now only end-of-text is left
    for drawn in (False, True):
        assert choose([Strategy(rules, drawn)], [RowHistory([256], 1, 9)], table, generators(0)) == [256]
