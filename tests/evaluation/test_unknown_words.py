"""Spelling cost: an exact, normalised distribution over words, lower for plausible words."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lilliput.data.tokenizers import make_tokenizer
from lilliput.evaluation.unknown_words import END, START, SYMBOLS, Speller, fit_speller, list_lost, spell_unknown
from lilliput.settings.tree import TokenizerSettings

WORDS = ["honey", "hive", "the", "then", "Zoë"]


@pytest.mark.parametrize("context", [(START, START), (START, ord("h")), (ord("h"), ord("e")), (7, 8), (START, 0xC3)])
def test_next_symbols_sum_to_one(context: tuple[int, ...]) -> None:
    speller = Speller(WORDS)
    assert math.fsum(speller.chance(symbol, context) for symbol in range(SYMBOLS)) == pytest.approx(1.0, abs=1e-14)


def test_all_byte_strings_sum_to_one() -> None:
    """Propagate the probability of each context, and sum the probability of ended words."""
    speller = Speller(["a", "ab", "ba"])
    alive, ended = {(START, START): 1.0}, 0.0
    letters = [ord("a"), ord("b"), 7]  # 7 represents the 254 unseen bytes, which have equal probabilities
    weight = {ord("a"): 1, ord("b"): 1, 7: 254}
    for _ in range(400):
        after: dict[tuple[int, ...], float] = {}
        for context, chance in alive.items():
            ended += chance * speller.chance(END, context)
            for letter in letters:
                key = (context[1], letter)
                after[key] = after.get(key, 0.0) + chance * weight[letter] * speller.chance(letter, context)
        alive = after
    assert ended + sum(alive.values()) == pytest.approx(1.0, abs=1e-12)
    assert ended == pytest.approx(1.0, abs=1e-3), "every word ends"


def test_nats_of_a_hand_computed_case() -> None:
    """One word of one letter: each context has one continuation, seen once, so half of the weight is the shorter
    context's.
    """
    speller = Speller(["a"])
    none = [(1 + 2 * (1 / SYMBOLS)) / 4] * 2  # "a" and the end: two counts of two symbols, then uniform
    letter = (1 + (1 + none[0]) / 2) / 2
    end = (1 + (1 + none[1]) / 2) / 2
    assert speller.nats("a") == pytest.approx(-math.log(letter) - math.log(end), rel=1e-13)


def test_plausible_words_cost_less() -> None:
    speller = Speller(WORDS)
    assert speller.nats("hen") < speller.nats("xqj") < speller.nats("xqjxqj")
    assert all(speller.nats("".join(word)) > 0 for word in itertools.product("he", repeat=3))
    assert math.isfinite(speller.nats("\U0001f41d")), "bytes that are not in the vocabulary"


def test_unknown_words_of_each_document() -> None:
    tokenizer = make_tokenizer(TokenizerSettings(kind="word"), ["the honey the hive"])
    texts = ["the hive", "The bees bees", "honey xyz"]
    unknown = np.array([0, 3, 1])
    speller = fit_speller(tokenizer)
    expected = [0.0, speller.nats("The") + 2 * speller.nats("bees"), speller.nats("xyz")]
    assert spell_unknown(tokenizer, texts, unknown).tolist() == pytest.approx(expected, rel=1e-13)
    assert speller.totals[()] == sum(len(word) + 1 for word in ("the", "honey", "hive")), "special tokens are not words"


def test_list_lost() -> None:
    def lost(unknown: bool = False, **settings: object) -> list[str]:
        chosen = TokenizerSettings(**settings)  # type: ignore[arg-type]
        return list_lost(make_tokenizer(chosen, ["the honey, the hive"]), chosen, unknown)

    assert lost(kind="byte", unknown=True) == []
    assert lost(kind="word") == ["white space"]
    assert lost(kind="word", unknown=True) == ["which words were unknown", "white space"]
    assert lost(kind="word", lowercase=True, punctuation="strip")[1:] == ["punctuation marks", "capital letters"]
    assert lost(kind="character") == []
    every = {"lowercase": True, "ascii_punctuation": True, "single_spaces": True}
    for kind in ("word", "character", "bpe", "byte"):
        assert lost(kind=kind, **every) == ["white space", "typographic punctuation", "capital letters"]
    assert lost(kind="bpe", single_spaces=True) == ["white space"]
