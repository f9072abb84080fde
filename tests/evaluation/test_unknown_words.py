"""The cost of spelling: a distribution over all words, exact, that grows with the letters and knows what words look like."""

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
def test_what_can_come_next_sums_to_one(context: tuple[int, ...]) -> None:
    speller = Speller(WORDS)
    assert math.fsum(speller.chance(symbol, context) for symbol in range(SYMBOLS)) == pytest.approx(1.0, abs=1e-14)


def test_all_strings_of_bytes_sum_to_one() -> None:
    """Words of at most n bytes have what is left when all longer ones are taken away: the chance of n + 1 bytes without an end,
    found by carrying the chance of each context along."""
    speller = Speller(["a", "ab", "ba"])
    alive, ended = {(START, START): 1.0}, 0.0
    letters = [ord("a"), ord("b"), 7]  # 7 stands for the 254 bytes that were never seen, which are all alike
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


def test_nats_are_those_of_the_rule_by_hand() -> None:
    """One word of one letter: each context has been seen once with one continuation, so it gives half to the shorter one."""
    speller = Speller(["a"])
    none = [(1 + 2 * (1 / SYMBOLS)) / 4] * 2  # "a" and the end among two sights of two symbols, then uniform
    letter = (1 + (1 + none[0]) / 2) / 2
    end = (1 + (1 + none[1]) / 2) / 2
    assert speller.nats("a") == pytest.approx(-math.log(letter) - math.log(end), rel=1e-13)


def test_words_that_look_like_words_are_cheaper() -> None:
    speller = Speller(WORDS)
    assert speller.nats("hen") < speller.nats("xqj") < speller.nats("xqjxqj")
    assert all(speller.nats("".join(word)) > 0 for word in itertools.product("he", repeat=3))
    assert math.isfinite(speller.nats("\U0001f41d")), "bytes that no word of the vocabulary has"


def test_unknown_words_of_each_document() -> None:
    tokenizer = make_tokenizer(TokenizerSettings(kind="word"), ["the honey the hive"])
    texts = ["the hive", "The bees bees", "honey xyz"]
    unknown = np.array([0, 3, 1])
    speller = fit_speller(tokenizer)
    wanted = [0.0, speller.nats("The") + 2 * speller.nats("bees"), speller.nats("xyz")]
    assert spell_unknown(tokenizer, texts, unknown).tolist() == pytest.approx(wanted, rel=1e-13)
    assert speller.totals[()] == sum(len(word) + 1 for word in ("the", "honey", "hive")), "special tokens are no words"


def test_what_is_lost_is_told() -> None:
    def lost(unknown: bool = False, **settings: object) -> list[str]:
        chosen = TokenizerSettings(**settings)  # type: ignore[arg-type]
        return list_lost(make_tokenizer(chosen, ["the honey, the hive"]), chosen, unknown)

    assert lost(kind="byte", unknown=True) == []
    assert lost(kind="word") == ["white space"]
    assert lost(kind="word", unknown=True) == ["which words were unknown", "white space"]
    assert lost(kind="word", lowercase=True, punctuation="strip")[1:] == ["punctuation marks", "capital letters"]
    assert lost(kind="character") == []
