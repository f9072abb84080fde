"""Incremental decoding: all text up to the first stop string, and never a part of one."""

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
    if kind == "wordpiece":  # later tokens change earlier text: "a" and "##b" become "ab"
        pieces = ["[UNK]", "[CLS]", "[SEP]", "a", "##b", "b", "##é", "end", ".", ","]
        inner = library.Tokenizer(models.WordPiece({piece: id_ for id_, piece in enumerate(pieces)}, unk_token="[UNK]"))
        inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        return Tokenizer(inner)
    return make_tokenizer(TokenizerSettings(kind=kind), [TEXT])  # type: ignore[arg-type]


def text_before_stop(text: str, stops: Sequence[str]) -> str:
    """Return the text before the first complete stop string (the longest of those complete at the same place)."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)]
    return text


KINDS = ["byte", "bpe", "word", "character", "wordpiece"]
stop_strings = st.lists(st.text("ab é.e", min_size=1, max_size=4), max_size=4)


def draw_ids(data: st.DataObject, tokenizer: Tokenizer) -> list[int]:
    """Draw tokens that are often parts of the stop strings above; also invalid UTF-8."""
    if tokenizer.kind == "byte":
        return data.draw(st.lists(st.sampled_from([*b"ab .e", 0xC3, 0xA9]), max_size=16))
    return data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), stops=stop_strings)
def test_the_output_is_the_text_before_the_first_stop_string(kind: str, data: st.DataObject, stops: list[str]) -> None:
    tokenizer = tokenizer_of(kind)
    ids = draw_ids(data, tokenizer)
    decoder, reference = IncrementalDecoder(tokenizer, stops=stops), TokenDecoder(tokenizer)
    output, certain, pushed = "", "", 0
    for id_ in ids:
        pushed += 1
        stopped = decoder.push(id_)
        output += decoder.take()
        certain += reference.push(id_)
        if stopped:
            break
        for stop in stops:
            for part in range(1, len(stop)):
                assert not certain.endswith(stop[:part]) or len(output) <= len(certain) - part, "a part was returned"
        assert certain.startswith(output)
        assert output == certain or any(stop.startswith(certain[len(output) :]) for stop in stops), "held back too much"
    output += decoder.flush()
    assert output == text_before_stop(tokenizer.decode(ids[:pushed]), stops)
    held = [at for at in range(pushed + 1) if any(stop in tokenizer.decode(ids[:at]) for stop in stops)]
    assert held == ([pushed] if decoder.stopped else []), "it stops at the token that completes the stop string"
    assert build_stop_check(tokenizer, stops)([], ids[:pushed]) == (output, decoder.stopped)
    assert decoder.flush() == decoder.take() == ""


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), stops=st.lists(st.text("ab é.e\ufffd", min_size=1, max_size=4), max_size=4))
def test_after_a_prompt_both_checks_stop_at_the_same_token(kind: str, data: st.DataObject, stops: list[str]) -> None:
    """The separator after the prompt is part of the text. An incomplete character is not."""
    tokenizer = tokenizer_of(kind)
    prompt, ids = draw_ids(data, tokenizer), draw_ids(data, tokenizer)
    decoder, stopped = IncrementalDecoder(tokenizer, prompt, stops), build_stop_check(tokenizer, stops)
    pushed = 0
    for id_ in ids:
        pushed += 1
        assert decoder.push(id_) == stopped(prompt, ids[:pushed])[1]
        if decoder.stopped:
            break
    assert decoder.flush() == text_before_stop(text_after(tokenizer, prompt, ids[:pushed]), stops)


def test_a_stop_string_may_begin_with_the_separator_after_the_prompt() -> None:
    tokenizer = make_tokenizer(TokenizerSettings(kind="word"), ["the bee saw the end"])
    prompt, ids = tokenizer.encode("the bee"), tokenizer.encode("saw the end")
    decoder, stopped = IncrementalDecoder(tokenizer, prompt, [" saw"]), build_stop_check(tokenizer, [" saw"])
    assert [decoder.push(id_) for id_ in ids] == [True, True, True]
    assert [stopped(prompt, ids[: count + 1]) for count in range(3)] == [("", True)] * 3
    assert stopped([], ids) == ("saw the end", False), "an empty prompt has no separator"


@given(text=st.text("ab", max_size=12), stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1))
@example(text="abc", stops=["abc", "b"])
def test_the_first_stop_string_is_the_one_that_ends_first(text: str, stops: list[str]) -> None:
    at = find_stop(text, stops)
    assert (text if at is None else text[:at]) == text_before_stop(text, stops)
    assert (at is None) == (not any(stop in text for stop in stops))


@given(text=st.text("ab", max_size=8), stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1))
def test_a_partial_stop_string_is_the_longest_possible(text: str, stops: list[str]) -> None:
    text = text_before_stop(text, stops)  # none is complete
    beginnings = {stop[:part] for stop in stops for part in range(1, len(stop))}
    assert count_partial(text, stops) == max((len(part) for part in beginnings if text.endswith(part)), default=0)


def decode_steps(
    tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str], prompt: Sequence[int] = ()
) -> list[str]:
    """Return the text that each token makes certain up to a stop string, and the rest at the end."""
    decoder, steps = IncrementalDecoder(tokenizer, prompt, stops), list[str]()
    for id_ in ids:
        stopped = decoder.push(id_)
        steps.append(decoder.take())
        if stopped:
            break
    return [*steps, decoder.flush()]


@pytest.mark.parametrize(
    ("text", "stops", "steps"),
    [
        ("abc", [], ["a", "b", "c", ""]),
        ("abc", ["bc"], ["a", "", "", ""]),
        ("abd", ["bc"], ["a", "", "bd", ""]),
        ("ab", ["bc"], ["a", "", "b"]),  # the end decides
        ("aab", ["ab"], ["", "a", "", ""]),  # not the first a, but the second
        ("abab!", ["abac", "b!"], ["", "", "", "ab", "a", ""]),  # another stop string in the text held back
        ("abc", ["abcd", "b"], ["", "a", ""]),  # ends first, begins later
        ("the end", ["end", "the end"], ["", "", "", "", "", "", "", ""]),  # both end at the same place: the longer one
        ("the end", ["the", "the end"], ["", "", "", ""]),  # one begins the other
        ("zé!", ["é"], ["z", "", "", ""]),
        ("zé!", ["é?"], ["z", "", "", "é!", ""]),
        ("zé", ["è"], ["z", "", "é", ""]),  # shares its first byte only
    ],
)
def test_letter_by_letter(text: str, stops: list[str], steps: list[str]) -> None:
    assert decode_steps(byte_tokenizer(), [*text.encode()], stops) == steps


def test_an_incomplete_character_at_the_end_is_replaced() -> None:
    assert decode_steps(byte_tokenizer(), [*"é".encode()[:1]], ["é"]) == ["", "\ufffd"]


def test_an_incomplete_character_is_no_stop_string_yet() -> None:
    """It counts only when the next byte shows that it stays incomplete; also in beam search."""
    stopped = build_stop_check(byte_tokenizer(), ["\ufffd"])
    assert decode_steps(byte_tokenizer(), [*"aé".encode()], ["\ufffd"]) == ["a", "", "é", ""]
    assert [stopped([], [*"aé".encode()][:count]) for count in (2, 3)] == [("a\ufffd", False), ("aé", False)]
    assert decode_steps(byte_tokenizer(), [97, 0xC3, 98], ["\ufffd"]) == ["a", "", "", ""]
    assert stopped([], [97, 0xC3, 98]) == ("a", True)


def test_words_after_the_prompt_include_the_separator() -> None:
    tokenizer = tokenizer_of("word")
    prompt, ids = tokenizer.encode("The end"), tokenizer.encode("of the bee")
    assert decode_steps(tokenizer, ids, [], prompt) == ["", " of", " the", " bee"]
    assert decode_steps(tokenizer, ids, ["the"], prompt) == ["", " of ", ""]
    assert decode_steps(tokenizer, ids, [" of"], prompt) == ["", ""]
    assert decode_steps(tokenizer, tokenizer.encode(", the end"), ["end"], prompt) == ["", ",", " the ", ""]


def test_a_stop_string_is_complete_with_its_last_word() -> None:
    tokenizer = tokenizer_of("word")
    decoder = IncrementalDecoder(tokenizer, stops=["the bee"])
    assert [decoder.push(id_) for id_ in tokenizer.encode("of the bee")] == [False, False, True]
    assert decoder.push(tokenizer.encode("the")[0])
    assert decoder.flush() == "of ", "text after a stop string is not returned"


def test_bytes_have_no_separator() -> None:
    tokenizer = byte_tokenizer()
    assert {find_separator(tokenizer, [*"Zoë".encode()], [first]) for first in range(256)} == {""}


def test_an_empty_stop_string_is_rejected() -> None:
    with pytest.raises(AssertionError, match="every text"):
        IncrementalDecoder(byte_tokenizer(), stops=["a", ""])
