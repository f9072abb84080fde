"""Text as it becomes certain: all of it up to the first stop string, and never a part of one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import tokenizers as library
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from lilliput.data.tokenizers import TokenDecoder, Tokenizer, byte_tokenizer, make_tokenizer, train_bpe
from lilliput.decoding.stop_strings import (
    IncrementalDecoder,
    build_stop_check,
    count_partial,
    find_separator,
    find_stop,
    text_after,
)
from lilliput.settings.tree import TokenizerSettings

TEXT = "ab ba, aab é ééa b. The end, the end of the bee. " * 3


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    if kind == "bpe":
        return train_bpe([TEXT], 275)
    if kind == "wordpiece":  # rewrites what it wrote: "a" and "##b" become "ab"
        pieces = ["[UNK]", "[CLS]", "[SEP]", "a", "##b", "b", "##é", "end", ".", ","]
        inner = library.Tokenizer(models.WordPiece({piece: id_ for id_, piece in enumerate(pieces)}, unk_token="[UNK]"))
        inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        return Tokenizer(inner)
    return make_tokenizer(TokenizerSettings(kind=kind), [TEXT])  # type: ignore[arg-type]


def cut_plainly(text: str, stops: Sequence[str]) -> str:
    """Read on until a stop string is complete; the longest of those that are goes."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)]
    return text


KINDS = ["byte", "bpe", "word", "character", "wordpiece"]
stop_strings = st.lists(st.text("ab é.e", min_size=1, max_size=4), max_size=4)


def draw_ids(data: st.DataObject, tokenizer: Tokenizer) -> list[int]:
    """Tokens of which many are parts of the stop strings above; bytes also as no text has them."""
    if tokenizer.kind == "byte":
        return data.draw(st.lists(st.sampled_from([*b"ab .e", 0xC3, 0xA9]), max_size=16))
    return data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), stops=stop_strings)
def test_what_is_told_is_the_text_before_its_first_stop(kind: str, data: st.DataObject, stops: list[str]) -> None:
    tokenizer = tokenizer_of(kind)
    ids = draw_ids(data, tokenizer)
    teller, decoder = IncrementalDecoder(tokenizer, stops=stops), TokenDecoder(tokenizer)
    told, certain, pushed = "", "", 0
    for id_ in ids:
        pushed += 1
        stopped = teller.push(id_)
        told += teller.take()
        certain += decoder.push(id_)
        if stopped:
            break
        for stop in stops:
            for part in range(1, len(stop)):
                assert not certain.endswith(stop[:part]) or len(told) <= len(certain) - part, "a part was told"
        assert certain.startswith(told)
        assert told == certain or any(stop.startswith(certain[len(told) :]) for stop in stops), "held without need"
    told += teller.flush()
    assert told == cut_plainly(tokenizer.decode(ids[:pushed]), stops)
    held = [at for at in range(pushed + 1) if any(stop in tokenizer.decode(ids[:at]) for stop in stops)]
    assert held == ([pushed] if teller.stopped else []), "stops with the token that completes it"
    assert build_stop_check(tokenizer, stops)([], ids[:pushed]) == (told, teller.stopped)
    assert teller.flush() == teller.take() == ""


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), stops=st.lists(st.text("ab é.e\ufffd", min_size=1, max_size=4), max_size=4))
def test_after_a_prompt_both_rules_stop_with_the_same_token(kind: str, data: st.DataObject, stops: list[str]) -> None:
    """What joins the two is text, too: what is told is what was looked through for stop strings. Half a character is none."""
    tokenizer = tokenizer_of(kind)
    prompt, ids = draw_ids(data, tokenizer), draw_ids(data, tokenizer)
    teller, stopped = IncrementalDecoder(tokenizer, prompt, stops), build_stop_check(tokenizer, stops)
    pushed = 0
    for id_ in ids:
        pushed += 1
        assert teller.push(id_) == stopped(prompt, ids[:pushed])[1]
        if teller.stopped:
            break
    assert teller.flush() == cut_plainly(text_after(tokenizer, prompt, ids[:pushed]), stops)


def test_a_stop_string_may_begin_with_what_joins_text_and_prompt() -> None:
    tokenizer = make_tokenizer(TokenizerSettings(kind="word"), ["the bee saw the end"])
    prompt, ids = tokenizer.encode("the bee"), tokenizer.encode("saw the end")
    teller, stopped = IncrementalDecoder(tokenizer, prompt, [" saw"]), build_stop_check(tokenizer, [" saw"])
    assert [teller.push(id_) for id_ in ids] == [True, True, True]
    assert [stopped(prompt, ids[: count + 1]) for count in range(3)] == [("", True)] * 3
    assert stopped([], ids) == ("saw the end", False), "nothing is joined to no prompt"


@given(text=st.text("ab", max_size=12), stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1))
@example(text="abc", stops=["abc", "b"])
def test_the_first_stop_is_the_one_that_is_complete_first(text: str, stops: list[str]) -> None:
    at = find_stop(text, stops)
    assert (text if at is None else text[:at]) == cut_plainly(text, stops)
    assert (at is None) == (not any(stop in text for stop in stops))


@given(text=st.text("ab", max_size=8), stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1))
def test_an_open_end_is_the_longest_beginning_of_a_stop(text: str, stops: list[str]) -> None:
    text = cut_plainly(text, stops)  # none is complete
    beginnings = {stop[:part] for stop in stops for part in range(1, len(stop))}
    assert count_partial(text, stops) == max((len(part) for part in beginnings if text.endswith(part)), default=0)


def tell(tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str], prompt: Sequence[int] = ()) -> list[str]:
    """What becomes certain with each token, and at the end; a stop is the end."""
    teller, told = IncrementalDecoder(tokenizer, prompt, stops), list[str]()
    for id_ in ids:
        stopped = teller.push(id_)
        told.append(teller.take())
        if stopped:
            break
    return [*told, teller.flush()]


@pytest.mark.parametrize(
    ("text", "stops", "told"),
    [
        ("abc", [], ["a", "b", "c", ""]),
        ("abc", ["bc"], ["a", "", "", ""]),
        ("abd", ["bc"], ["a", "", "bd", ""]),
        ("ab", ["bc"], ["a", "", "b"]),  # the end settles it
        ("aab", ["ab"], ["", "a", "", ""]),  # not this a, but the next
        ("abab!", ["abac", "b!"], ["", "", "", "ab", "a", ""]),  # another stop string inside of what was held
        ("abc", ["abcd", "b"], ["", "a", ""]),  # complete first, begun later
        ("the end", ["end", "the end"], ["", "", "", "", "", "", "", ""]),  # complete together: the longer one
        ("the end", ["the", "the end"], ["", "", "", ""]),  # one is the beginning of the other
        ("zé!", ["é"], ["z", "", "", ""]),
        ("zé!", ["é?"], ["z", "", "", "é!", ""]),
        ("zé", ["è"], ["z", "", "é", ""]),  # shares its first byte only
    ],
)
def test_letter_by_letter(text: str, stops: list[str], told: list[str]) -> None:
    assert tell(byte_tokenizer(), [*text.encode()], stops) == told


def test_half_a_character_at_the_end_is_told_as_such() -> None:
    assert tell(byte_tokenizer(), [*"é".encode()[:1]], ["é"]) == ["", "\ufffd"]


def test_half_a_character_is_no_stop_string_yet() -> None:
    """Neither by itself nor for beams; it is one when it is known that its rest does not come."""
    stopped = build_stop_check(byte_tokenizer(), ["\ufffd"])
    assert tell(byte_tokenizer(), [*"aé".encode()], ["\ufffd"]) == ["a", "", "é", ""]
    assert [stopped([], [*"aé".encode()][:count]) for count in (2, 3)] == [("a\ufffd", False), ("aé", False)]
    assert tell(byte_tokenizer(), [97, 0xC3, 98], ["\ufffd"]) == ["a", "", "", ""]
    assert stopped([], [97, 0xC3, 98]) == ("a", True)


def test_words_are_joined_to_the_prompt_and_the_joint_is_text() -> None:
    tokenizer = tokenizer_of("word")
    prompt, ids = tokenizer.encode("The end"), tokenizer.encode("of the bee")
    assert tell(tokenizer, ids, [], prompt) == ["", " of", " the", " bee"]
    assert tell(tokenizer, ids, ["the"], prompt) == ["", " of ", ""]
    assert tell(tokenizer, ids, [" of"], prompt) == ["", ""]
    assert tell(tokenizer, tokenizer.encode(", the end"), ["end"], prompt) == ["", ",", " the ", ""]


def test_a_stop_is_complete_with_the_word_that_completes_it() -> None:
    tokenizer = tokenizer_of("word")
    teller = IncrementalDecoder(tokenizer, stops=["the bee"])
    assert [teller.push(id_) for id_ in tokenizer.encode("of the bee")] == [False, False, True]
    assert teller.push(tokenizer.encode("the")[0])
    assert teller.flush() == "of ", "what comes after a stop is not told"


def test_bytes_are_joined_without_anything() -> None:
    tokenizer = byte_tokenizer()
    assert {find_separator(tokenizer, [*"Zoë".encode()], [first]) for first in range(256)} == {""}


def test_an_empty_stop_is_the_callers_mistake() -> None:
    with pytest.raises(AssertionError, match="every text"):
        IncrementalDecoder(byte_tokenizer(), stops=["a", ""])
