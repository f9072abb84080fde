"""Annotations of the storybook: the same bytes, valid trees, every sentence of the table, and antecedents."""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import cache
from itertools import islice

import pytest

from lilliput.data.corpora.conllu import AnnotatedDocument, Word, format_conllu, parse_conllu
from lilliput.data.storybook import stories, word_lists
from lilliput.data.storybook.annotation_templates import LISTS, OPTIONS, PARTS, PHRASE_LISTS, PHRASES, SENTENCES, WORDS
from lilliput.data.storybook.annotations import annotate, parse_items, phrases, templates
from lilliput.interpret.word_alignment import RELATIONS

UPOS = {
    *[
        "ADJ",
        "ADP",
        "ADV",
        "AUX",
        "CCONJ",
        "DET",
        "INTJ",
        "NOUN",
        "NUM",
        "PART",
        "PRON",
        "PROPN",
        "PUNCT",
        "SCONJ",
        "VERB",
    ]
}


@cache
def drawn() -> list[tuple[str, AnnotatedDocument]]:
    return [(text, annotate(text)) for text in islice(stories("train", 3), 600)]


def words_of(document: AnnotatedDocument) -> list[Word]:
    return [word for sentence in document.sentences for word in sentence]


def test_the_bytes_of_the_corpus_stay_the_same() -> None:
    texts = [text for text, _ in drawn()]
    assert [document.text for _, document in drawn()] == texts
    digest = hashlib.sha256("\n".join(texts[:100]).encode()).hexdigest()
    assert digest == "9e6e18a1791519fae2efebd6e2439f5642b17800f1afe9dd512f1185b204d7a2"
    annotated = "".join(format_conllu([document for _, document in drawn()[:100]]))
    assert (
        hashlib.sha256(annotated.encode()).hexdigest()
        == "2a31b2bb05edda8bfb2f5360cb6b69aab2b645048861280d9e6c093739c4116b"
    )


def test_written_annotations_are_read_again() -> None:
    documents = [document for _, document in drawn()[:60]]
    assert parse_conllu("".join(format_conllu(documents))) == documents


def test_words_cover_the_text_and_sentences_are_trees() -> None:
    for text, document in drawn():
        words = words_of(document)
        assert all(text[word.start : word.end] == word.form for word in words)
        covered = {at for word in words for at in range(word.start, word.end)}
        assert all(at in covered or text[at] in " \n" for at in range(len(text)))
        for sentence in document.sentences:
            assert [word.id for word in sentence] == list(range(1, len(sentence) + 1))
            assert [word.relation for word in sentence if word.head == 0] == ["root"]
            assert {word.upos for word in sentence} <= UPOS
            for word in sentence:
                seen, at = set[int](), word
                while at.head:
                    assert at.id not in seen
                    seen.add(at.id)
                    at = sentence[at.head - 1]


def test_every_sentence_and_phrase_of_the_table_is_used() -> None:
    used, spoken = set[int](), Counter[str]()
    for text, document in drawn():
        for sentence in document.sentences:
            part = text[sentence[0].start : sentence[-1].end]
            used |= {number for number, one in enumerate(templates()) if one.pattern.fullmatch(part)}
            spoken.update(phrase for phrase in phrases() if phrase in part)
    assert used == {*range(len(SENTENCES))}
    assert spoken.keys() == phrases().keys() == {one for name in PHRASE_LISTS for one in getattr(word_lists, name)}


def test_every_word_of_the_table_is_used() -> None:
    literal = {item.form.lower() for text in (*SENTENCES, *PHRASES) for item in parse_items(text)}
    assert PARTS.keys() <= literal
    assert len(PARTS) == sum(len(words.split()) for words in WORDS.values()), "each word has one part of speech"
    names = [name for lists in LISTS.values() for name in lists.split()]
    assert len(names) == len(set(names)) and {*names} <= OPTIONS.keys()
    assert {*names} <= {item.form for text in SENTENCES for item in parse_items(text)}


def test_relations_have_the_right_parts_of_speech() -> None:
    """Check what a relation implies of the word and its head, independent of the table."""
    article = {"a", "an", "the"}
    for _, document in drawn():
        for sentence in document.sentences:
            for word in sentence:
                head = sentence[word.head - 1] if word.head else None
                if word.relation == "amod":
                    assert head is not None and (word.upos, head.upos in ("NOUN", "PROPN")) == ("ADJ", True)
                    assert head.id > word.id
                if word.relation == "case":
                    assert head is not None and word.upos == "ADP" and head.id > word.id
                if word.relation == "nmod:poss":
                    assert head is not None and word.upos == "PRON" and head.upos == "NOUN"
                if word.relation in ("obj", "iobj", "aux"):
                    assert head is not None and head.upos == "VERB"
                assert (word.features == "PronType=Art") == (word.form.lower() in article)
                assert (word.form == "and") <= (word.upos == "CCONJ")


def test_antecedents() -> None:
    found = Counter[str]()
    for text, document in drawn():
        names = [word for word in words_of(document) if word.form in word_lists.HERO_NAMES]
        (hero,) = {word.form for word in names}
        first = names[0]
        for number, sentence in enumerate(document.sentences, start=1):
            for word in sentence:
                if word.antecedent is None:
                    continue
                before = document.sentences[word.antecedent[0] - 1][word.antecedent[1] - 1]
                assert before.start < word.start and before.upos != "PRON" and word.antecedent[0] <= number
                if word.upos != "PRON":
                    assert before.form == word.form, text
                    found["repeated"] += 1
                if word.form.lower() in ("my", "you", "him") and word.start > first.start:
                    assert before.form == hero or before.form in word_lists.RELATIVES
                if word.form.lower() in ("his", "her") and word.relation == "nmod:poss":
                    assert before.form == hero
                    found["his"] += 1
        last = {word.form: word for word in document.sentences[-1]}
        kept = [word for word in last.values() if word.form in (*word_lists.RELATIVES, *word_lists.TREASURES)]
        assert len(kept) == 2 and all(word.antecedent is not None for word in kept)
        assert kept[0].antecedent is not None
    assert found["repeated"] > 10 * 600 and found["his"] > 600


def test_every_relation_has_examples() -> None:
    found = Counter[str]()
    for _, document in drawn()[:50]:
        for sentence in document.sentences:
            for word in sentence:
                if word.head:
                    found.update(name for name, holds in RELATIONS.items() if holds(word, sentence[word.head - 1]))
    assert found.keys() == RELATIONS.keys() and min(found.values()) > 100


def test_a_text_that_is_no_story_raises() -> None:
    text = drawn()[0][0]
    for other in ("Hello.", text + " And", text.replace(".", ";", 1)):
        with pytest.raises(ValueError, match="match at character"):
            annotate(other)
