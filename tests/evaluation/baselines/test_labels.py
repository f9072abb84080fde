"""The linear classifier of words: the figure that is known of the speeches, and texts that have nothing to tell labels by."""

from __future__ import annotations

import sys

import pytest

from labelled import SPEAKERS
from lilliput.errors import UserError
from lilliput.evaluation.baselines.labels import commonest, tell_by_words
from shared_data import DATA, needs_data


def said(times: int) -> tuple[list[str], list[str]]:
    pairs = [(f"the {words} {number}", name) for number in range(times) for name, words in SPEAKERS.items()]
    return [text for text, _ in pairs], [label for _, label in pairs]


@pytest.mark.parametrize("times", [1, 2, 6], ids=["too few to cross-validate", "two folds", "five folds"])
def test_words_tell_who_said_it(times: int) -> None:
    texts, labels = said(times)
    judged = ["clover and hive", "salmon in the river", "a mouse, the moon", "Wax, WAX!"]
    assert tell_by_words(texts, labels, judged) == ["bee", "bear", "owl", "bee"]


def test_nothing_to_tell_by() -> None:
    assert tell_by_words(["one text", "another"], ["bee", "bee"], ["text"]) is None
    assert tell_by_words(["!", "?", ""], ["bee", "owl", "owl"], ["!"]) is None


def test_the_commonest_label() -> None:
    assert commonest(["owl", "bee", "owl"]) == "owl"
    assert commonest(["owl", "bee", "owl", "bee"]) == "bee"


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.pipeline", None)
    with pytest.raises(UserError) as caught:
        tell_by_words(["a bee", "an owl"], ["bee", "owl"], ["bee"])
    assert str(caught.value) == (
        "the linear baseline of labels needs scikit-learn, which is not installed\n"
        '  try pip install "lilliput[baselines]"'
    )


@needs_data
def test_the_published_speakers() -> None:
    """89.5% of a test of which three quarters stand in training; 62.4% where these are not learned from."""

    def read(name: str) -> tuple[list[str], list[str]]:
        lines = (DATA / "speeches" / "tokenised" / f"{name}_CLS.tok.txt").read_text("utf-8").splitlines()
        pairs = [line.split("\t", 1) for line in lines]
        return [text for _, text in pairs], [label for label, _ in pairs]

    (texts, labels), (judged, right) = read("train"), read("test")
    known = set(judged)
    new = [index for index, text in enumerate(texts) if text not in known]
    for some, expected in ((range(len(texts)), 671), (new, 468)):
        told = tell_by_words([texts[at] for at in some], [labels[at] for at in some], judged, strengths=[100.0])
        assert told is not None
        found = sum(one == other for one, other in zip(told, right, strict=True))
        assert abs(found - expected) <= 1  # of 750; another solver may round a tie the other way
