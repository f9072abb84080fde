"""Text statistics compared with manual counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lilliput.evaluation.text_statistics import TextStatistics, count_names, is_finished, measure_texts, split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Tom ran. He fell! Why?", ["Tom ran.", "He fell!", "Why?"]),
        ('"Hi!" said Tom. "Come in," he said.', ['"Hi!" said Tom.', '"Come in," he said.']),
        ('He said "No." Then he left', ['He said "No."', "Then he left"]),
        ("It cost 3.5 dollars... and more. 7 men came.", ["It cost 3.5 dollars... and more.", "7 men came."]),
        ("no capitals. none at all", ["no capitals.", "none at all"]),
        ("(He slept.)\n\nShe did not!?", ["(He slept.)", "She did not!?"]),
        ("", []),
        (' ... "! ', []),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@given(st.text(st.sampled_from("Aa .!?\"'\n…é1"), max_size=60))
def test_sentences_contain_every_word_once(text: str) -> None:
    kept = "".join(" ".join(split_sentences(text)).split())
    assert [letter for letter in kept if letter.isalnum()] == [letter for letter in text if letter.isalnum()]


@pytest.mark.parametrize("text", ["The end.", 'He said "No!"\n', "Why?)", "And so…", "Stop.'"])
def test_finished(text: str) -> None:
    assert is_finished(text)


@pytest.mark.parametrize("text", ["The end", "", "  ", "The end. And", "He said,", "version 3.5", "The end.\n<"])
def test_unfinished(text: str) -> None:
    assert not is_finished(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("One day Tom met Ann. Tom ran.", {"Tom": 2, "Ann": 1}),
        ("Tom ran. Tom fell.", {}),  # never inside a sentence
        ("Lily saw it. Then Lily's mom came with Lily.", {"Lily": 3}),
        ("Here I am, and I'm glad, I'll say.", {}),
        ('Ben said, "We can go." "Yes," said Ben.', {"Ben": 2}),
        ("He cried NO and left.", {}),
        ("so tom met ann. tom ran.", {}),
        ("There was Zoë. Zoë sang.", {"Zoë": 2}),
    ],
)
def test_names(text: str, names: dict[str, int]) -> None:
    assert count_names(split_sentences(text)) == names


def test_statistics_of_several_texts() -> None:
    texts = ["One day Tom met Ann. Tom ran. He ran. HE  ran.", "She saw Sue and", ""]
    assert measure_texts(texts) == TextStatistics(
        texts=3,
        words=15 / 3,
        sentences=5 / 3,
        sentence_words=15 / 5,
        unfinished=2 / 3,
        names=3 / 3,
        names_kept=1 / 3,
        repeated_sentences=1 / 5,
    )


def test_texts_without_words_have_no_shares() -> None:
    found = measure_texts(["", "?"])
    assert (found.sentence_words, found.names_kept, found.repeated_sentences) == (None, None, None)
    assert found.unfinished == 0.5
    assert found.texts == 2


@given(st.lists(st.sampled_from(["Tom ran off.", "He met Ann there.", "It was Ann!"]), min_size=1, max_size=5))
def test_repeating_a_text_repeats_its_sentences(sentences: list[str]) -> None:
    once, twice = " ".join(sentences), " ".join(sentences * 2)
    before, after = measure_texts([once]), measure_texts([twice])
    assert before.repeated_sentences is not None and after.repeated_sentences is not None
    assert after.repeated_sentences == pytest.approx((1 + before.repeated_sentences) / 2)
    assert after.names_kept in (None, 1.0)
    assert after.sentence_words == before.sentence_words
