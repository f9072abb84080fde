"""Probabilistic programs: enumeration, scores and samples agree."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lilliput.data.storybook.enumeration import enumerate_texts, narrow
from lilliput.data.storybook.probabilistic_program import (
    ChoiceHandler,
    Program,
    Sampler,
    Scene,
    TextScore,
    sample,
    samples,
    score,
)

Facts = tuple[str, ...]
Ending = tuple[Facts, Scene[Facts] | None]


def early(handler: ChoiceHandler, facts: Facts) -> Ending:
    """Two facts that appear two scenes later, one of them drawn with weights, and an option of weight zero."""
    sound = handler.choose(("moo", "baa", "quack", "never"), (3, 1, 0.5, 0))
    (animal,) = handler.say("The ", ("cow", "cowbird", "ox"), handler.choose(("", " slept")))
    return (sound, animal), middle


def middle(handler: ChoiceHandler, facts: Facts) -> Ending:
    if handler.choose((True, False), (1, 2)):
        handler.say(" and", (" a", " ab", " abc"), ("", "b", "bc", "c"))
        return facts, middle_again
    return facts, late


def middle_again(handler: ChoiceHandler, facts: Facts) -> Ending:
    handler.say(("!", "?", "!!"), ("", "!"))
    return facts, late


def late(handler: ChoiceHandler, facts: Facts) -> Ending:
    sound, animal = facts
    handler.say(f" {sound}, said the {animal}", (".", ".."))
    return (), None


PROGRAM: Program[Facts] = Program(early, ())


def two_ways(handler: ChoiceHandler, facts: Facts) -> Ending:
    handler.say(handler.choose(("a", "ab"), (1, 3)))
    handler.say(handler.choose(("bc", "c"), (1, 1)))
    return facts, None


def test_probabilities_of_all_texts_sum_to_one() -> None:
    texts = enumerate_texts(PROGRAM)
    assert len(texts) > 500
    assert abs(math.fsum(texts.values()) - 1) < 1e-12
    assert not any("never" in text for text in texts)


def test_score_equals_enumeration_for_every_text() -> None:
    for text, probability in enumerate_texts(PROGRAM).items():
        result = score(PROGRAM, text)
        assert result.logprob is not None
        assert math.isclose(result.logprob, math.log(probability), rel_tol=0, abs_tol=1e-12), text


def test_two_derivations_of_one_text_are_summed() -> None:
    program: Program[Facts] = Program(two_ways, ())
    texts = enumerate_texts(program)
    assert texts == pytest.approx({"abc": 1 / 8 + 3 / 8, "ac": 1 / 8, "abbc": 3 / 8}, abs=1e-15)
    logprob = score(program, "abc").logprob
    assert logprob == pytest.approx(math.log(1 / 2), abs=1e-15)


def test_equal_options_are_two_derivations() -> None:
    def scene(handler: ChoiceHandler, facts: Facts) -> Ending:
        handler.say(("x", "y", "x"))
        return facts, None

    assert score(Program(scene, ()), "x").logprob == pytest.approx(math.log(2 / 3), abs=1e-15)


def test_equal_states_are_merged() -> None:
    runs = Counter[str]()

    def link(left: int) -> Scene[Facts]:
        def scene(handler: ChoiceHandler, facts: Facts) -> Ending:
            runs["scene"] += 1
            handler.choose(range(2))
            handler.say(("a", "aa"))
            return facts, chain[left - 1] if left else None

        return scene

    chain: list[Scene[Facts]] = []
    for left in range(40):
        chain.append(link(left))
    result = score(Program(chain[-1], ()), "a" * 60)
    # 20 of the 40 scenes drew "aa". There are 4**40 derivations, merged into fewer than 40 x 40 states.
    assert result.logprob == pytest.approx(math.log(math.comb(40, 20)) - 40 * math.log(2), abs=1e-11)
    assert runs["scene"] < 10_000


def test_sampled_frequencies_equal_the_enumerated_probabilities() -> None:
    texts = enumerate_texts(PROGRAM)
    count = 60_000
    drawn = Counter(islice(samples(PROGRAM, random.Random(3)), count))
    assert set(drawn) <= set(texts)
    distance = sum(abs(drawn[text] / count - probability) for text, probability in texts.items()) / 2
    # The expected total variation distance of n draws is at most sqrt(texts / n) / 2.
    assert distance < math.sqrt(len(texts) / count) / 2


def test_samples_do_not_depend_on_earlier_samples() -> None:
    generator = random.Random(5)
    singly = [sample(PROGRAM, generator) for _ in range(20)]
    assert singly == list(islice(samples(PROGRAM, random.Random(5)), 20))


@given(st.text(alphabet="The cowbirdxslpan!?.,qukm", max_size=30))
def test_position_is_the_end_of_the_longest_matching_prefix(given_text: str) -> None:
    check_failure(given_text)


@given(st.integers(0, 10**6), st.data())
def test_position_of_a_changed_text(seed: int, data: st.DataObject) -> None:
    text = sample(PROGRAM, random.Random(seed))
    place = data.draw(st.integers(0, len(text)))
    check_failure(text[:place] + data.draw(st.sampled_from(["", "z", "a", "!", "The"])) + text[place + 1 :])


ALL_TEXTS = enumerate_texts(PROGRAM)


def check_failure(text: str) -> None:
    result = score(PROGRAM, text)
    if text in ALL_TEXTS:
        assert result.valid
        assert result == TextScore(result.logprob)
        return

    def agreement(other: str) -> int:
        return next(
            (i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other))
        )

    farthest = max(map(agreement, ALL_TEXTS))
    assert (result.logprob, result.position) == (None, farthest)
    assert result.expected
    assert result.scene in {"early", "middle", "middle_again", "late"}
    for continuation in result.expected:
        begun = text[:farthest] + continuation
        assert begun in ALL_TEXTS if continuation == "" else any(other.startswith(begun) for other in ALL_TEXTS)


def test_narrowed_programs() -> None:
    def keep(scene: str, number: int, options: int) -> list[int]:
        return [options - 1] if scene == "middle_again" else list(range(min(options, 2)))

    program = narrow(PROGRAM, keep)
    texts = enumerate_texts(program)
    assert len(texts) < len(ALL_TEXTS)
    assert set(texts) <= set(ALL_TEXTS)
    assert abs(math.fsum(texts.values()) - 1) < 1e-12
    for text, probability in texts.items():
        assert score(program, text).logprob == pytest.approx(math.log(probability), abs=1e-12)
    assert score(program, "The ox").scene == "early"


@pytest.mark.parametrize(
    ("options", "weights"),
    [((), None), ((), ()), (("a",), (1, 2)), (("a", "b"), (0, 0)), (("a", "b"), (1, -1)), (("a",), (math.nan,))],
)
def test_invalid_choices_raise_in_every_handler(options: tuple[str, ...], weights: tuple[float, ...] | None) -> None:
    def scene(handler: ChoiceHandler, facts: Facts) -> Ending:
        handler.choose(options, weights)
        return facts, None

    program: Program[Facts] = Program(scene, ())
    with pytest.raises(ValueError, match=r"options must|weights must be"):
        sample(program, random.Random(0))
    with pytest.raises(ValueError, match=r"options must|weights must be"):
        score(program, "a")
    with pytest.raises(ValueError, match=r"options must|weights must be"):
        enumerate_texts(program)


def test_an_option_of_weight_zero_is_never_drawn() -> None:
    class Edge(random.Random):
        def random(self) -> float:
            return self.value

        value = 0.0

    edge = Edge()
    for edge.value in (0.0, 0.1, 0.5, 1 - 2**-53):
        assert Sampler(edge).choose("abcd", (0, 0.1, 0.2, 0)) in "bc"
