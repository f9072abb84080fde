"""Stories with parts of speech, syntactic relations and antecedents, from the hand-made table `annotation_templates`.

Owns: matching a story with the table, and antecedents. Does not own: the table, or CoNLL-U (`corpora.conllu`). Nothing is
guessed: a text that is not made of sentences of the table is an error.

The antecedent of a pronoun is the last earlier name of the character, or noun for the thing; the antecedent of another word that
repeats a fact of the story (a name, the place, the tool, the treasure, ...) is the last earlier occurrence of the same word for
it. "They" has two antecedents and so none here; neither has a pronoun before the first mention.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import NamedTuple

from lilliput.data.corpora.conllu import AnnotatedDocument, Word
from lilliput.data.storybook import stories, word_lists
from lilliput.data.storybook.annotation_templates import (
    EXCEPTIONS,
    FACTS,
    OPTIONS,
    PARTS,
    PHRASE_LISTS,
    PHRASES,
    SENTENCES,
    SLOTS,
)

MARKS = {"“": '"', "”": '"', **{mark: mark for mark in ".,!?:"}}
ARTICLES = ("a", "an", "the")


class Item(NamedTuple):
    """A word, slot or mark of a template. `head` is the index of an item; None for the root."""

    form: str
    upos: str
    relation: str
    head: int | None
    fact: str | None


@dataclass(frozen=True)
class Template:
    items: tuple[Item, ...]
    pattern: re.Pattern[str]


def parse_items(text: str) -> tuple[Item, ...]:
    """Parse a line of the table."""
    words = [
        re.fullmatch(r"([^/:@=]+)(?::(\w+))?(?:@(\w+))?(?:=(\w+))?/([\w:]+)(?:/(\w*))?", one) for one in text.split()
    ]
    labels = [found and (found[4] or found[1]) for found in words]
    root = next(place for place, found in enumerate(words) if found and found[5] == "root")
    items = []
    for one, found in zip(text.split(), words, strict=True):
        if found is None:
            items.append(Item(one, "PUNCT", "punct", root, None))
            assert one in MARKS, one
            continue
        form, upos, fact, _, relation, label = found.groups()
        assert bool(label) == (relation != "root") and (not label or labels.count(label) == 1), (one, text)
        items.append(
            Item(
                form,
                upos or SLOTS.get(form) or ("X" if form in PHRASE_LISTS else PARTS[form.lower()]),
                relation,
                labels.index(label) if label else None,
                fact or FACTS.get(form),
            )
        )
    return tuple(items)


def forms_of(item: Item) -> tuple[str, ...]:
    if item.form in PHRASE_LISTS:
        phrases: tuple[str, ...] = getattr(word_lists, item.form)
        return phrases
    if item.form in OPTIONS:
        return OPTIONS[item.form]
    return ("a", "an") if item.form == "a" else (MARKS.get(item.form, item.form),)


@cache
def templates() -> list[Template]:
    found = []
    for text in SENTENCES:
        items, pattern, space = parse_items(text), "", ""
        for item in items:
            pattern += space if item.form == "“" or item.form not in MARKS else ""
            pattern += "(" + "|".join(map(re.escape, sorted(forms_of(item), key=len, reverse=True))) + ")"
            space = "" if item.form == "“" else " "
        found.append(Template(items, re.compile(pattern + r"(?=[ \n]|$)")))
    return found


@cache
def phrases() -> dict[str, tuple[Item, ...]]:
    """Return the words of each phrase by its text."""
    parsed = map(parse_items, PHRASES)
    return {" ".join(item.form for item in items): items for items in parsed}


def annotated_stories(count: int, split: str = "validation", seed: int = 1) -> list[AnnotatedDocument]:
    """Return the first stories of a split."""
    return [annotate(text) for text in islice(stories(split, seed), count)]


def annotate(text: str) -> AnnotatedDocument:
    """Return the words of a story; raise ValueError if a sentence is not in the table."""
    sentences: list[tuple[Word, ...]] = []
    mentions: dict[str, list[tuple[int, int, str]]] = {}  # by fact: sentence, ID and form of each noun or name
    at = 0
    while at < len(text):
        matches = [(one, found) for one in templates() if (found := one.pattern.match(text, at))]
        if len(matches) != 1:
            raise ValueError(f"{len(matches)} sentences of the table match at character {at}: {text[at : at + 60]!r}")
        ((template, found),) = matches
        sentences.append(refer(expand(template, found), len(sentences) + 1, mentions))
        at = found.end()
        while text[at : at + 1] in (" ", "\n") and at < len(text):
            at += 1
    return AnnotatedDocument(text, tuple(sentences))


def expand(template: Template, found: re.Match[str]) -> list[tuple[Word, str | None]]:
    """Return the words of a sentence, each with its fact; a phrase becomes its words."""
    first: list[int] = []  # ID of each item, of a phrase that of its root
    count = 1
    for number, item in enumerate(template.items, start=1):
        inner = phrases()[found[number]] if item.form in PHRASE_LISTS else ()
        first.append(count + next((place for place, one in enumerate(inner) if one.head is None), 0))
        count += len(inner) or 1
    words: list[tuple[Word, str | None]] = []
    for number, item in enumerate(template.items, start=1):
        start, form = found.start(number), found[number]
        head = 0 if item.head is None else first[item.head]
        if item.form not in PHRASE_LISTS:
            upos, relation = EXCEPTIONS.get((item.form, form), (item.upos, item.relation))
            words.append((word_of(len(words) + 1, form, upos, head, relation, start), item.fact))
            continue
        before = len(words)
        for one in phrases()[form]:
            inner_head, relation = (head, item.relation) if one.head is None else (before + one.head + 1, one.relation)
            words.append((word_of(len(words) + 1, one.form, one.upos, inner_head, relation, start), one.fact))
            start += len(one.form) + 1
    return words


def word_of(id_: int, form: str, upos: str, head: int, relation: str, start: int) -> Word:
    features = "PronType=Art" if upos == "DET" and form.lower() in ARTICLES else "_"
    return Word(id_, form, upos, features, head, relation, None, start, start + len(form))


def refer(
    words: list[tuple[Word, str | None]], sentence: int, mentions: dict[str, list[tuple[int, int, str]]]
) -> tuple[Word, ...]:
    """Return the words with antecedents, and add their mentions."""
    found = []
    for word, fact in words:
        known = mentions.setdefault(fact, []) if fact else []
        pronoun = word.upos == "PRON"
        earlier = [one for one in known if pronoun or one[2] == word.form]
        found.append(word._replace(antecedent=earlier[-1][:2] if earlier else None))
        if not pronoun:
            known.append((sentence, word.id, word.form))
    return tuple(found)
