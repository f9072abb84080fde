"""The storybook: stories, splits, exact probabilities, and texts that are not stories."""

from __future__ import annotations

import hashlib
import math
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lilliput.data import storybook
from lilliput.data.storybook import BOOK, StoryFacts, floor_bits_per_byte, score, split_of, stories, validity
from lilliput.data.storybook import probabilistic_program as chance
from lilliput.data.storybook import word_lists as storybook_words
from lilliput.data.storybook.enumeration import enumerate_texts, narrow
from lilliput.data.storybook.probabilistic_program import Sampler
from lilliput.data.storybook.word_lists import HELPERS, HERO_NAMES, HEROES, RELATIVES, SHADES, TREASURES


@cache
def book(split: str = "train", count: int = 2000) -> tuple[str, ...]:
    return tuple(islice(stories(split, 1), count))


class Recorder(Sampler):
    """A sampler that records the log-probability of its derivation."""

    def __init__(self, generator: random.Random) -> None:
        super().__init__(generator)
        self.logprob = 0.0

    def choose(self, options, weights=None):  # type: ignore[no-untyped-def]
        index = super().choose(range(len(options)), weights)
        self.logprob += math.log(weights[index] / math.fsum(weights) if weights else 1 / len(options))
        return options[index]


def recorded(seed: int) -> tuple[str, float]:
    teller = Recorder(random.Random(seed))
    facts, scene = BOOK.first(teller, BOOK.facts)
    while scene is not None:
        facts, scene = scene(teller, facts)
    return teller.take(), teller.logprob


# The probabilities


def reduced(seed: int) -> chance.Program[StoryFacts]:
    """The storybook with one option per choice, and two for one choice in most scenes; the seed selects them."""
    generator = random.Random(seed)
    options_kept: dict[tuple[str, int, int], list[int]] = {}
    wide = Counter[str]()

    def keep(scene: str, number: int, options: int) -> Sequence[int]:
        key = (scene, number, options)
        if key not in options_kept:
            width = 2 if options > 1 and wide[scene] < 1 and generator.random() < 0.6 else 1
            wide[scene] += width - 1
            options_kept[key] = sorted(generator.sample(range(options), width))
        return options_kept[key]

    return narrow(BOOK, keep)


@pytest.mark.parametrize("seed", range(6))
def test_a_reduced_book_sums_to_one_and_scores_as_enumerated(seed: int) -> None:
    program = reduced(seed)
    texts = enumerate_texts(program)
    assert 50 < len(texts) < 50_000
    assert abs(math.fsum(texts.values()) - 1) < 1e-12
    for text in random.Random(seed).sample(sorted(texts), 40):
        result = chance.score(program, text)
        assert result.logprob == pytest.approx(math.log(texts[text]), abs=1e-12)
        assert score(text).valid


def test_score_is_the_log_probability_of_the_draws() -> None:
    """Every story has one derivation; with more, its score would be higher than that of its draws."""
    for seed in range(500):
        text, logprob = recorded(seed)
        assert score(text).logprob == pytest.approx(logprob, abs=1e-9)


def test_there_are_more_than_ten_to_the_twenty_stories() -> None:
    """N stories have an entropy of at most log N. The estimate of the entropy is reduced by four standard errors."""
    texts = islice(chance.samples(BOOK, random.Random("size of the storybook")), 200)
    surprises = [-(score(text).logprob or 0.0) for text in texts]
    error = statistics.stdev(surprises) / math.sqrt(len(surprises))
    assert 20 < (statistics.fmean(surprises) - 4 * error) / math.log(10) < 100


def test_the_floor_is_the_mean_negative_log_probability_per_byte() -> None:
    texts = book("validation", 200)
    nats = -math.fsum(score(text).logprob or math.nan for text in texts)
    assert floor_bits_per_byte(iter(texts)) == pytest.approx(nats / math.log(2) / len("".join(texts)), rel=1e-12)
    assert 0.1 < floor_bits_per_byte(texts) < 0.4
    assert 150 < nats / math.log(2) / len(texts) < 300
    with pytest.raises(ValueError, match=r"text 1 .*character 0"):
        floor_bits_per_byte([texts[0], "Zebra"])
    with pytest.raises(ValueError, match="empty"):
        floor_bits_per_byte([])


# The stories


def test_the_stories_of_a_seed_never_change() -> None:
    text = "\n\n".join(islice(stories("train", 0), 200)) + "\n\n".join(islice(stories("validation", 0), 20))
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "2b72cb8ac0facbcd08cfc0381e2b9af376b2db2ab20b0ab08331d3b0a778d6c0"
    )


def test_seeds_differ() -> None:
    firsts = {next(stories("train", seed)) for seed in (-1, 0, 1, 2, 10**30)}
    assert len(firsts) == 5


def test_splits_are_disjoint_by_construction() -> None:
    for split in ("train", "validation", "test"):
        assert {split_of(text) for text in book(split, 100)} == {split}
    # The train, validation and test streams of a seed share one sequence of draws; each story is in one of them.
    drawn = islice(chance.samples(BOOK, random.Random("storybook 1")), 4000)
    shares = Counter(map(split_of, drawn))
    assert 0.85 < shares["train"] / 4000 < 0.90
    assert 0.05 < shares["validation"] / 4000 < 0.075
    assert 0.05 < shares["test"] / 4000 < 0.075


def test_an_unknown_split_raises() -> None:
    with pytest.raises(ValueError, match=r"test, train, validation .*'dev'"):
        next(stories("dev", 0))


def test_lengths_and_characters() -> None:
    for text in book():
        assert 100 <= len(text.split()) <= 250
        assert text.isascii()
        assert text == text.strip()
        assert "\n\n" not in text
        assert "  " not in text
        assert re.fullmatch(r'[A-Za-z ,.!?:"\n]+', text)
        assert text.count('"') % 2 == 0
        assert text.count("\n") == 2


def test_stories_are_distinct_and_the_vocabulary_is_small() -> None:
    assert len(set(book())) == len(book())
    seen = Counter(word for text in book() for word in re.findall("[a-z]+", text.lower()))
    assert 300 <= len(seen) <= 700
    assert min(seen.values()) >= 2  # every word occurs often enough to be learned


def test_lists_are_short_without_repeated_options() -> None:
    lists = {name: value for name, value in vars(storybook_words).items() if name.isupper() and type(value) is tuple}
    assert len(lists) > 50
    for name, options in lists.items():
        assert 4 <= len(options) <= 20, name
        assert len(set(options)) == len(options), name
    for name in ("NATURES", "MANNERS", "EFFORTS", "JOYS"):
        other = {"NATURES": "OTHER_NATURES"}.get(name, f"MORE_{name}")
        assert not set(lists[name]) & set(lists[other])


def test_options_are_drawn_uniformly() -> None:
    """A first sentence contains one relative, one shade and one treasure, each drawn uniformly."""
    relatives, shades, treasures = Counter[str](), Counter[str](), Counter[str]()
    for text in book():
        relative, shade, treasure = promise(text)
        relatives[relative] += 1
        shades[shade] += 1
        treasures[treasure] += 1
    for counts, options in ((relatives, RELATIVES), (shades, SHADES), (treasures, TREASURES)):
        expected = len(book()) / len(options)
        chi_square = sum((counts[option] - expected) ** 2 / expected for option in options)
        assert set(counts) == set(options)
        assert chi_square < len(options) + 5 * math.sqrt(2 * len(options))


def promise(text: str) -> tuple[str, str, str]:
    first = text.split(".")[0] + "."
    shade, treasure = re.search(rf"an? ({'|'.join(SHADES)}) ({'|'.join(TREASURES)}) for the", first).groups()  # type: ignore[union-attr]
    (relative,) = re.search(rf"(?:his|her) ({'|'.join(RELATIVES)})\b", first).groups()  # type: ignore[union-attr]
    return relative, shade, treasure


def test_the_last_sentence_keeps_the_promise_of_the_first() -> None:
    for text in book():
        relative, shade, treasure = promise(text)
        last = re.split(r'(?<=[.!?"]) (?=["A-Z])', text.split("\n")[-1])[-1]
        assert f"{relative} " in last
        assert f"the {shade} {treasure}" in last
        assert "promise" in last


def test_another_promise_is_not_kept() -> None:
    for text in book()[:50]:
        _, shade, treasure = promise(text)
        place = text.rindex(f"{shade} {treasure}")
        other = next(option for option in SHADES if option[0] != shade[0])
        result = score(text[:place] + other + text[place + len(shade) :])
        assert (result.logprob, result.position, result.scene) == (None, place, "promise_kept")
        # After the start of the sentence, only the promised treasure is valid.
        assert result.expected == (shade,)


def test_articles_agree() -> None:
    for text in book():
        for article, letter in re.findall(r"\b([Aa]n?) ([a-z])", text):
            assert (article.lower() == "an") == (letter in "aeiou")
    # "a unicorn", "an hour": the rule by spelling would be wrong.
    for name, options in vars(storybook_words).items():
        if name.startswith(("A_", "AN_")):
            assert not any(re.match(r"an? (uni|use|eu|one|hour|honest|heir)", option) for option in options), name


def test_pronouns_agree_with_the_hero() -> None:
    swaps = {"he": "she", "she": "he", "his": "her", "He": "She", "She": "He", "him": "her"}
    swapped = 0
    for text in book()[:60]:
        for match in re.finditer(r"\b(he|she|his|He|She|him)\b", text):
            swapped += 1
            changed = text[: match.start()] + swaps[match.group()] + text[match.end() :]
            result = score(changed)
            assert result.logprob is None
            assert result.position is not None
            assert match.start() <= result.position <= match.start() + 3
    assert swapped > 200


def test_names_do_not_change_within_a_story() -> None:
    for text in book()[:60]:
        (hero,) = {name for name in HERO_NAMES if re.search(rf"\b{name}\b", text)}
        (helper,) = {name for name in HELPERS if re.search(rf"\b{name}\b", text)}
        for name, cast in ((hero, HEROES), (helper, HELPERS)):
            places = [match.start() for match in re.finditer(rf"\b{name}\b", text)]
            assert len(places) >= 3
            other = next(n for n in cast if n[0] != name[0] and cast[n].he == cast[name].he)
            for place in places[1:]:
                result = score(text[:place] + other + text[place + len(name) :])
                # "Milo" for "Hugo" may match one more letter, of "Most of all".
                assert result.position is not None
                assert place <= result.position <= place + 1


# Texts that are not stories


@settings(max_examples=150)
@given(st.integers(0, 499), st.data())
def test_a_corrupted_story_is_rejected_where_it_is_corrupt(number: int, data: st.DataObject) -> None:
    text = book()[number]
    place = data.draw(st.integers(0, len(text) - 1))
    # A character that no story contains, so that no story matches beyond it.
    result = score(text[:place] + data.draw(st.sampled_from("#Z9\t\u00e9\U0001f600")) + text[place + 1 :])
    assert (result.logprob, result.position) == (None, place)
    assert result.expected
    assert result.scene is not None
    assert any(text.startswith(word, place) for word in result.expected) or len(result.expected) == 8


@settings(max_examples=100)
@given(st.integers(0, 499), st.data())
def test_a_truncated_or_continued_story_is_not_valid(number: int, data: st.DataObject) -> None:
    text = book()[number]
    place = data.draw(st.integers(0, len(text) - 1))
    cut = score(text[:place])
    assert (cut.logprob, cut.position) == (None, place)
    longer = score(text + data.draw(st.text(min_size=1, max_size=5)))
    assert (longer.logprob, longer.position, longer.expected) == (None, len(text), ("",))
    assert longer.scene == "promise_kept"


@given(st.text(max_size=200))
def test_garbage_is_never_a_story(text: str) -> None:
    result = score(text)
    assert result.logprob is None
    assert result.position is not None
    assert 0 <= result.position <= len(text)


def test_empty_and_huge_texts_fail_fast() -> None:
    assert score("").position == 0
    assert score("").scene == "opening"
    story = book()[0]
    began = time.process_time()
    for text in ("a" * 10**7, story * 10_000, "\n" * 10**7, " " + story, story + "\n"):
        assert not score(text).valid
    assert score(story * 10_000).position == len(story)
    assert score("\ud800").position == 0
    assert time.process_time() - began < 2


def test_validity_counts_texts_and_places_of_mismatch() -> None:
    good = book()[:6]
    cut = [text[:-3] for text in good[:3]]
    result = validity(iter([*good, *cut, "Zebra"]))
    assert (result.count, result.valid, result.share) == (10, 6, 0.6)
    first, second = result.breaks
    assert (first.scene, first.count, first.example, first.position) == ("promise_kept", 3, cut[0], len(cut[0]))
    assert (second.scene, second.count, second.position) == ("opening", 1, 0)
    assert "Once" in second.expected
    assert (validity([]).count, validity([]).share) == (0, 0.0)


# Speed, with a wide margin for busy machines


def test_sampling_and_scoring_are_fast() -> None:
    def seconds(texts: Iterator[str]) -> tuple[float, int]:
        began = time.process_time()
        written = sum(map(len, islice(texts, 1000)))
        return time.process_time() - began, written

    best = max(written / elapsed for elapsed, written in (seconds(stories("train", seed)) for seed in range(3)))
    assert best > 1e6, f"{best:.0f} bytes a second"
    began = time.process_time()
    for text in book()[:200]:
        storybook.score(text)
    assert (time.process_time() - began) / 200 < 0.01
