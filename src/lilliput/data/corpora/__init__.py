"""A corpus: the documents of the sources in the settings, in named splits.

Owns: the list of splits, assigning documents to splits, and reading each source once for all its splits. Does not own:
finding and reading sources (`sources`), drawing a split (`splits`), tokens, hashes or caches (`prepare`), or the
stories (`storybook`).

Documents are streamed: one is in memory at a time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from lilliput.data.corpora.documents import END_OF_TEXT, Document, Notice, Reader, Reading, ignore
from lilliput.data.corpora.line_ends import LINE_ENDS, counted_parts
from lilliput.data.corpora.sources import STORYBOOK, open_source
from lilliput.data.corpora.splits import block_length, cut_document, member_of_validation
from lilliput.errors import UserError, blame
from lilliput.settings.source_names import is_hub_name
from lilliput.settings.tree import DataSettings

__all__ = ["END_OF_TEXT", "STORYBOOK", "Corpus", "Document", "Notice", "Part", "ignore", "open_corpus"]

STORYBOOK_DOCUMENTS = 20_000
STORY_BYTES = 1_100  # mean size of a story

Route = Callable[[int, Document], Iterable[tuple[str, Document]]]


def ignore_split(split: str) -> None:
    """Ignore an empty document of a split."""


@dataclass(frozen=True)
class Part:
    """A source that is read once, and the route of its documents. Empty documents count for the first split."""

    splits: tuple[str, ...]
    read: Reader
    route: Route  # (position, document) -> the (split, document) pairs that it becomes


@dataclass(frozen=True)
class Corpus:
    """Named splits of documents. Each iteration reads the source again."""

    name: str
    sources: list[Path]  # the files whose content determines the documents, for hashing
    describe: str  # one sentence: what was found, and what was guessed
    size: int  # upper estimate of the bytes of text in all splits; 0 if unknown (a loader)
    parts: tuple[Part, ...] = field(repr=False)

    @property
    def splits(self) -> tuple[str, ...]:
        """train, validation, then the test sets in the order of the settings."""
        return tuple(split for part in self.parts for split in part.splits)

    def documents(self, split: str, on_empty: Notice = ignore) -> Iterator[Document]:
        """Yield the documents of a split in order, without surrounding white space; call `on_empty` for empty ones.

        If splits share a source, its empty documents count for the training split only.
        """
        part = next(part for part in self.parts if split in part.splits)
        for index, document in enumerate(part.read(on_empty if split == part.splits[0] else ignore)):
            for target, routed in part.route(index, document):
                if target == split:
                    yield routed

    def stream(self, on_empty: Callable[[str], None] = ignore_split) -> Iterator[tuple[str, Document]]:
        """Yield (split, document) for all splits in a fixed order, reading each source once.

        Within a split the order is that of `documents`. `on_empty` gets the split of each empty document.
        """
        for part in self.parts:
            for index, document in enumerate(part.read(functools.partial(on_empty, part.splits[0]))):
                yield from part.route(index, document)


def open_corpus(settings: DataSettings) -> Corpus:
    """Find the sources, read their first documents, and choose the splits."""
    separate = settings.validation_source is not None
    readings = _open("data.source", settings.source, ("train",) if separate else ("train", "validation"), settings)
    readings["train"] = _first(readings["train"], None if settings.source == STORYBOOK else settings.documents)
    if settings.validation_source is not None:
        readings |= _open("data.validation_source", settings.validation_source, ("validation",), settings)
    if "validation" in readings:
        parts = [_whole(name, readings, settings) for name in ("train", "validation")]
        sentence = readings["train"].describe
        sentence += f"; validation: {readings['validation'].describe}"
    else:
        part, split_sentence = _share(readings["train"], settings)
        parts, sentence = [part], f"{readings['train'].describe}; {split_sentence}"
    for test in settings.tests:
        name, _, source = test.partition("=")
        readings |= _open("data.tests", source, (name,), settings)
        parts.append(_whole(name, readings, settings))
        sentence += f"; {name}: {readings[name].describe}"
    # A file may be used by two splits.
    sources = list(dict.fromkeys(path for reading in readings.values() for path in reading.files))
    size = sum(reading.size for reading in readings.values())
    name = settings.source if is_hub_name(settings.source) else Path(settings.source).name
    return Corpus(name, sources, sentence, size, tuple(parts))


def _open(setting: str, source: str, splits: tuple[str, ...], settings: DataSettings) -> dict[str, Reading]:
    """Open the source that `setting` names; errors name that setting unless another one is at fault."""
    with blame(setting):
        if source == STORYBOOK:
            return {split: _open_storybook(split, settings) for split in splits}
        readings = open_source(source, splits, settings)
    return {
        split: dataclasses.replace(reading, read=functools.partial(_read, reading.read, setting))
        for split, reading in readings.items()
    }


def _read(read: Reader, setting: str, on_empty: Notice) -> Iterator[Document]:
    with blame(setting):
        yield from read(on_empty)


def _open_storybook(split: str, settings: DataSettings) -> Reading:
    from lilliput.data import storybook
    from lilliput.data.storybook import probabilistic_program as chance
    from lilliput.data.storybook import word_lists as storybook_words

    if settings.labelled:
        what, fix = "data.labelled requires a source with labels (got storybook)", "set data.labelled to false"
        raise UserError(what, STORYBOOK, fix=fix, code="data.label", setting="data.labelled")
    count = settings.documents or STORYBOOK_DOCUMENTS
    if split != "train":
        # Validation stories cost time at every full evaluation. 500 measure bits per byte to within 0.35% (95%
        # confidence interval, from exact scores). Never more validation than training stories.
        count = min(count, max(500, count // 20))
    chapter = split if split in ("train", "validation") else "test"

    def read(on_empty: Notice) -> Iterator[Document]:
        return (Document(text) for text in islice(storybook.stories(chapter, settings.seed), count))

    # The program files are the source: another version may generate other documents.
    files = [Path(str(module.__file__)) for module in (chance, storybook, storybook_words)]
    which = "stories" if split == "train" else "other stories"
    return Reading(files, f"{count:,} {which} of the built-in storybook", count * STORY_BYTES, read)


def _first(reading: Reading, limit: int | None) -> Reading:
    if limit is None:
        return reading
    part = f"the first {limit:,} documents" if limit > 1 else "the first document"

    def read(on_empty: Notice) -> Iterator[Document]:
        return islice(reading.read(on_empty), limit)

    return Reading(reading.files, f"{reading.describe}; {part}", reading.size, read)


def _whole(split: str, readings: dict[str, Reading], settings: DataSettings) -> Part:
    normalise = LINE_ENDS[settings.line_ends]
    return Part((split,), readings[split].read, lambda index, document: [(split, normalise(document))])


def _share(reading: Reading, settings: DataSettings) -> tuple[Part, str]:
    """Split a source into train and validation; return the part and a sentence that describes it."""
    share, splits, normalise = settings.validation_share, ("train", "validation"), LINE_ENDS[settings.line_ends]
    percent = f"{100 * share:.3g}%"
    # The first block is read whole, so that each split gets a document.
    seen = sum(1 for _ in islice(reading.read(ignore), block_length(share)))
    if seen > 1:
        member = member_of_validation(settings.seed, share, seen)

        def send(index: int, document: Document) -> Iterable[tuple[str, Document]]:
            return [(splits[member(index)], normalise(document))]

        return Part(splits, reading.read, send), f"{percent} of the documents are used for validation"

    def cut(index: int, document: Document) -> Iterable[tuple[str, Document]]:
        first, second, _ = cut_document(normalise(document).text, share, settings.source)
        return zip(splits, counted_parts(document, first, second), strict=True)

    border = cut_document(normalise(next(reading.read(ignore))).text, share, settings.source)[2]
    return Part(splits, reading.read, cut), f"its last {percent} are used for validation, split at {border}"
