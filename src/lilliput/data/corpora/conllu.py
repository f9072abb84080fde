"""CoNLL-U: texts whose words have a part of speech, a syntactic head and a relation (universaldependencies.org).

Owns: reading, writing and checking the format, and the characters of each word in the text. Does not own: annotations of the
storybook (`storybook.annotations`) or what is measured with them (`interpret.head_functions`).

Read columns: ID, FORM, UPOS, FEATS, HEAD, DEPREL, MISC. A document begins at `# newdoc`; in a file without it each
sentence is a document. `# text = ` is the text of a sentence; without it the text follows from the forms and
`SpaceAfter=No`. `SpacesAfter=\\n` in MISC of the last word is the white space before the next sentence (escapes \\s, \\n,
\\t, \\r, \\p, \\\\; default: one space). `Antecedent=SENTENCE:ID` in MISC is the earlier word to which a word refers;
SENTENCE is its number in the document, from 1. Empty nodes (8.1) are skipped. The words of a multiword token (3-4) share
its characters, unless their forms together spell it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from lilliput.errors import UserError

COLUMNS = 10
ESCAPES = {"\\s": " ", "\\n": "\n", "\\t": "\t", "\\r": "\r", "\\p": "|", "\\\\": "\\"}
UNESCAPES = {character: escape for escape, character in ESCAPES.items()}


class Word(NamedTuple):
    """A word with its characters [start, end) in the text of its document. `head` 0 is the root, None: not annotated."""

    id: int
    form: str
    upos: str
    features: str
    head: int | None
    relation: str
    antecedent: tuple[int, int] | None  # number of the sentence in the document and ID, from 1
    start: int
    end: int

    @property
    def basic_relation(self) -> str:
        """The relation without its subtype: nsubj of nsubj:pass."""
        return self.relation.partition(":")[0]


Sentence = tuple[Word, ...]


@dataclass(frozen=True)
class AnnotatedDocument:
    """A text and the words of its sentences."""

    text: str
    sentences: tuple[Sentence, ...]

    def cut(self, first: int, last: int) -> AnnotatedDocument:
        """Return the sentences from index `first` to before `last`, without antecedents in the others."""
        some = self.sentences[first:last]
        start, end = some[0][0].start, max(word.end for word in some[-1])

        def moved(word: Word) -> Word:
            before = word.antecedent
            kept = before is not None and first < before[0] <= last
            antecedent = (before[0] - first, before[1]) if before is not None and kept else None
            return word._replace(antecedent=antecedent, start=word.start - start, end=word.end - start)

        return AnnotatedDocument(self.text[start:end], tuple(tuple(map(moved, sentence)) for sentence in some))


def read_conllu(path: str | Path) -> list[AnnotatedDocument]:
    """Read a file; raise an error with the line for the first violation of the format."""
    try:
        text = Path(path).read_text("utf-8-sig")
    except OSError as error:
        what, fix = f"cannot read the CoNLL-U file: {error.strerror}", "give the path of a .conllu file"
        raise UserError(what, str(path), fix=fix, code="file.unreadable", setting="conllu") from error
    except UnicodeDecodeError as error:
        what = f"the CoNLL-U file must be UTF-8 (byte {error.start:,} is not)"
        raise UserError(what, str(path), fix="save it as UTF-8", code="file.encoding", setting="conllu") from error
    found = parse_conllu(text, str(path))
    if not found:
        what = "the CoNLL-U file contains no sentences"
        raise UserError(what, str(path), fix="give a file with sentences", code="data.empty", setting="conllu")
    return found


def parse_conllu(text: str, where: str = "CoNLL-U") -> list[AnnotatedDocument]:
    blocks = list(split_blocks(text))
    grouped = any("newdoc" in block.comments for block in blocks)
    documents: list[list[Block]] = []
    for block in blocks:
        if not documents or not grouped or "newdoc" in block.comments:
            documents.append([])
        documents[-1].append(block)
    return [join(document, where) for document in documents]


@dataclass(frozen=True)
class Block:
    """The comments by key and the lines (number, columns) of a sentence."""

    comments: dict[str, str]
    rows: list[tuple[int, list[str]]]


def split_blocks(text: str) -> Iterator[Block]:
    block = Block({}, [])
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        line = line.removesuffix("\r")
        if line.startswith("#") and not block.rows:
            key, _, value = line[1:].partition("=")
            block.comments[(key.split() or [""])[0]] = value.removeprefix(" ")
        elif line.strip():
            block.rows.append((number, line.split("\t")))
        else:
            if block.rows:
                yield block
            block = Block({}, [])


def fail(what: str, where: str, line: int, fix: str = "correct the line") -> NoReturn:
    raise UserError(what, f"{where}, line {line}", fix=fix, code="conllu.syntax", setting="conllu")


def join(blocks: list[Block], where: str) -> AnnotatedDocument:
    """Return the document of these sentences; check heads and antecedents."""
    text, sentences = "", list[Sentence]()
    for block in blocks:
        words, own, gap = read_sentence(block, where)
        sentences.append(tuple(w._replace(start=w.start + len(text), end=w.end + len(text)) for w in words))
        text += own + gap
    for sentence, block in zip(sentences, blocks, strict=True):
        for word in sentence:
            if word.antecedent is not None:
                number, id_ = word.antecedent
                there = 1 <= number <= len(sentences) and 1 <= id_ <= len(sentences[number - 1])
                if not there or sentences[number - 1][id_ - 1].start >= word.start:
                    what = f"Antecedent must be an earlier word of the document (got {number}:{id_})"
                    fail(what, where, line_of(block, word.id))
    return AnnotatedDocument(text.rstrip(), tuple(sentences))


def line_of(block: Block, id_: int) -> int:
    return next(number for number, columns in block.rows if columns[0] == str(id_))


def read_sentence(block: Block, where: str) -> tuple[list[Word], str, str]:
    """Return the words with characters in the sentence, its text, and the white space after it."""
    words: list[Word] = []
    surface: list[
        tuple[int, int, str, dict[str, str], int]
    ] = []  # first and last ID, form, MISC and line of each token
    for line, columns in block.rows:
        if len(columns) != COLUMNS:
            what, fix = f"a word must have {COLUMNS} columns (got {len(columns)})", "use one tab between columns"
            if len(columns) == 1:
                what = f"not a CoNLL-U file: {what}"
                fix = f"give a file with one word per line and {COLUMNS} columns separated by tabs (universaldependencies.org)"
            fail(what, where, line, fix)
        id_, form, features, misc = columns[0], columns[1], columns[5], read_misc(columns[9])
        plain = id_.isdecimal()
        if not plain and re.fullmatch(r"\d+\.\d+", id_):
            continue
        if not form.strip():
            fail("FORM must not be empty", where, line)
        if not plain and (multiword := re.fullmatch(r"(\d{1,6})-(\d{1,6})", id_)):
            first, last = int(multiword[1]), int(multiword[2])
            if first != len(words) + 1 or last <= first or (surface and surface[-1][1] >= first):
                fail(
                    f"a multiword token must be N-M with N = {len(words) + 1}, the next ID, and M above N (got {id_})",
                    where,
                    line,
                )
            surface.append((first, last, form, misc, line))
            continue
        if id_ != str(len(words) + 1):
            fail(
                f"ID must be {len(words) + 1}, the next number (got {id_!r})",
                where,
                line,
                "give each word the next number",
            )
        if not surface or surface[-1][1] < int(id_):
            surface.append((int(id_), int(id_), form, misc, line))
        head = None if columns[6] == "_" else read_number(columns[6], "HEAD", where, line)
        antecedent = read_antecedent(misc.get("Antecedent"), where, line)
        words.append(Word(int(id_), form, columns[3], features, head, columns[7], antecedent, 0, 0))
    if not words or surface[-1][1] > len(words):
        fail("the sentence must have all words of its multiword tokens", where, block.rows[-1][0], "add the words")
    for word in words:
        if word.head is not None and (word.head > len(words) or word.head == word.id):
            fail(f"HEAD must be another ID of the sentence or 0 (got {word.head})", where, line_of(block, word.id))
    return place(words, surface, block, where)


def read_misc(column: str) -> dict[str, str]:
    return {} if column == "_" else dict(part.partition("=")[::2] for part in column.split("|"))


def read_number(text: str, name: str, where: str, line: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        fail(f"{name} must be a number or _ (got {text!r})", where, line)
    return int(text)


def read_antecedent(text: str | None, where: str, line: int) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6}):(\d{1,6})", text)
    if not found:
        fail(f"Antecedent must be SENTENCE:ID (got {text!r})", where, line)
    return int(found[1]), int(found[2])


def place(
    words: list[Word], surface: list[tuple[int, int, str, dict[str, str], int]], block: Block, where: str
) -> tuple[list[Word], str, str]:
    """Find the characters of each token in the text of the sentence."""
    given, text, at = block.comments.get("text"), "", 0
    for number, (first, last, form, misc, line) in enumerate(surface):
        if given is None:
            text += form + (spaces_after(misc) if number < len(surface) - 1 else "")
            start, end = at, at + len(form)
            at = len(text)
        else:
            text, start = given, at
            while given[start : start + 1].isspace():
                start += 1
            if not given.startswith(form, start):
                what = f"the text of the sentence must contain the forms in order ({form!r} is not found)"
                fail(what, where, line, "correct the form or the comment # text")
            at = end = start + len(form)
        inner = words[first - 1 : last]
        spelled = "".join(word.form for word in inner) == form
        for word in inner:
            stop = start + len(word.form) if spelled else end
            words[word.id - 1] = word._replace(start=start, end=stop)
            start = stop if spelled else start
    return words, text, spaces_after(surface[-1][3])


def spaces_after(misc: dict[str, str]) -> str:
    if "SpacesAfter" in misc:
        return re.sub(r"\\[sntrp\\]", lambda found: ESCAPES[found[0]], misc["SpacesAfter"])
    return "" if misc.get("SpaceAfter") == "No" else " "


# Writing --------------------------------------------------------------------------------------------------------------


def format_conllu(documents: Iterable[AnnotatedDocument], name: str = "document") -> Iterator[str]:
    """Yield the text of each document in CoNLL-U. Words must not overlap."""
    for number, document in enumerate(documents, start=1):
        lines = [f"# newdoc id = {name}-{number}"]
        following = [*(sentence[0].start for sentence in document.sentences[1:]), len(document.text)]
        for place_, (sentence, after) in enumerate(zip(document.sentences, following, strict=True), start=1):
            text = document.text[sentence[0].start : sentence[-1].end]
            lines += [f"# sent_id = {name}-{number}-{place_}", f"# text = {text}"]
            starts = [*(word.start for word in sentence[1:]), after]
            lines += [
                format_word(word, document.text[word.end : end]) for word, end in zip(sentence, starts, strict=True)
            ]
            lines.append("")
        yield "\n".join(lines) + "\n"


def format_word(word: Word, gap: str) -> str:
    misc = [] if word.antecedent is None else ["Antecedent={}:{}".format(*word.antecedent)]
    if not gap:
        misc.append("SpaceAfter=No")
    elif gap != " ":
        misc.append("SpacesAfter=" + "".join(UNESCAPES.get(one, one) for one in gap))
    head = "_" if word.head is None else str(word.head)
    columns = [
        str(word.id),
        word.form,
        "_",
        word.upos,
        "_",
        word.features,
        head,
        word.relation,
        "_",
        "|".join(misc) or "_",
    ]
    return "\t".join(columns)
