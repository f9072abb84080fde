"""CoNLL-U: words and characters of real files, round trips, and errors with their line."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.user_errors import refused
from lilliput.data.corpora.conllu import AnnotatedDocument, Word, format_conllu, parse_conllu, read_conllu


def line(id_: object, form: str, upos: str = "_", head: object = "_", relation: str = "_", misc: str = "_") -> str:
    return "\t".join([str(id_), form, "_", upos, "_", "_", str(head), relation, "_", misc])


FILE = "\n".join(
    [
        "# newdoc id = a",
        "# sent_id = 1",
        "# text = She can't sing, can she?",
        line(1, "She", "PRON", 4, "nsubj"),
        line("2-3", "can't"),
        line(2, "ca", "AUX", 4, "aux"),
        line(3, "n't", "PART", 4, "advmod"),
        line(4, "sing", "VERB", 0, "root", "SpaceAfter=No"),
        line(5, ",", "PUNCT", 4, "punct"),
        line(6, "can", "AUX", 4, "aux:x"),
        line(7, "she", "PRON", 4, "nsubj:pass", "Antecedent=1:1|SpaceAfter=No"),
        line("7.1", "nothing"),
        line(8, "?", "PUNCT", 4, "punct", "SpacesAfter=\\n\\n"),
        "",
        line("1-2", "du", misc="SpaceAfter=No"),
        line(1, "de", "ADP", 3, "case"),
        line(2, "le", "DET", 3, "det", "Antecedent=1:4"),
        line(3, "!", "PUNCT", 0, "root"),
        "",
        "# newdoc",
        line(1, "New", misc="SpacesAfter=\\s\\s"),
        line(2, "one", head=1),
        "",
    ]
)


def test_words_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(FILE, "utf-8")
    first, second = read_conllu(tmp_path / "a.conllu")
    assert first.text == "She can't sing, can she?\n\ndu!" and second.text == "New  one"
    spelled = [[first.text[word.start : word.end] for word in sentence] for sentence in first.sentences]
    assert spelled == [["She", "ca", "n't", "sing", ",", "can", "she", "?"], ["du", "du", "!"]]
    she = first.sentences[0][6]
    assert (she.upos, she.head, she.relation, she.antecedent) == ("PRON", 4, "nsubj:pass", (1, 1))
    assert she.basic_relation == "nsubj"
    assert first.sentences[1][1].antecedent == (1, 4)
    assert [word.head for word in second.sentences[0]] == [None, 1]


def test_sentences_without_documents_are_documents() -> None:
    text = FILE.replace("# newdoc id = a\n", "").replace("# newdoc\n", "").replace("Antecedent=1:4", "_")
    assert [document.text for document in parse_conllu(text.replace("\n", "\r\n"))] == [
        "She can't sing, can she?",
        "du!",
        "New  one",
    ]


def test_a_part_of_a_document() -> None:
    document = parse_conllu(FILE)[0]
    assert document.cut(0, 2) == document
    part = document.cut(1, 2)
    assert part.text == "du!" and part.sentences[0][1].antecedent is None
    assert document.cut(0, 1).sentences[0][6].antecedent == (1, 1)


WORDS = st.text(string.ascii_letters + ".,é", min_size=1, max_size=4)


@given(st.lists(st.lists(st.lists(st.tuples(WORDS, st.sampled_from(["", " ", "\n", " \t"])), min_size=1), min_size=1)))
def test_written_documents_are_read_again(stories: list[list[list[tuple[str, str]]]]) -> None:
    documents = []
    for story in stories:
        text, sentences = "", []
        for pairs in story:
            words: list[Word] = []
            for id_, (form, gap) in enumerate(pairs, start=1):
                before = (len(sentences), 1) if sentences else None
                words.append(Word(id_, form, "X", "_", id_ - 1, "dep", before, len(text), len(text) + len(form)))
                text += form + (gap if id_ < len(pairs) else " ")
            sentences.append(tuple(words))
        documents.append(AnnotatedDocument(text.rstrip(), tuple(sentences)))
    # White space inside a sentence is part of its comment; a line break there cannot be written.
    if not any("\n" in text for story in stories for pairs in story for _, text in pairs[:-1]):
        assert parse_conllu("".join(format_conllu(documents))) == documents


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (["1\ta"], 1),
        (["# text = a", line(1, "b")], 2),
        ([line(1, "a"), line(3, "b")], 2),
        ([line(1, "a", head=2)], 1),
        ([line(1, "a", head=1)], 1),
        ([line(1, "a", head="x")], 1),
        ([line(1, " ")], 1),
        ([line("1-2", "ab"), line(1, "a")], 2),
        ([line("2-1", "ab"), line(1, "a")], 1),
        ([line(1, "a"), line(2, "b", misc="Antecedent=b")], 2),
        ([line(1, "a", misc="Antecedent=1:2"), line(2, "b")], 1),
        ([line(1, "a", misc="Antecedent=2:1")], 1),
    ],
)
def test_errors_have_the_line(lines: list[str], number: int) -> None:
    error = refused(lambda: parse_conllu("\n".join(["", "# comment", "", *lines]), "file"))
    assert (error.code, error.where) == ("conllu.syntax", f"file, line {number + 3}")


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "latin.conllu").write_bytes("1\té".encode("latin-1"))
    (tmp_path / "empty.conllu").write_text("# nothing\n\n")
    codes = {"missing": "file.unreadable", "latin": "file.encoding", "empty": "data.empty"}
    for name, code in codes.items():
        error = refused(lambda name=name: read_conllu(tmp_path / f"{name}.conllu"))  # type: ignore[misc]
        assert (error.code, error.setting) == (code, "conllu")
