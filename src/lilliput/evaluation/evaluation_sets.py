"""Documents for an evaluation: a split of the run's data, all its test sets, or any file or folder of texts.

Owns: finding them by name or path, encoding a file with a run's tokenizer, joining several sets, and reading their
texts. Does not own: reading sources (`data.corpora`), the token files of splits (`data.prepare`), or the metrics
(`evaluate`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lilliput.data.corpora import open_corpus
from lilliput.data.corpora.documents import Document, ignore
from lilliput.data.corpora.line_ends import LINE_ENDS
from lilliput.data.corpora.sources import STORYBOOK, open_source
from lilliput.data.duplicates import hash_text
from lilliput.data.prepare.encoding import Encoded, encode
from lilliput.data.prepare.label_classes import order_labels
from lilliput.data.prepare.token_files import BYTES, HASHES, OFFSETS, Prepared, TokenFile, token_type
from lilliput.data.progress import Report
from lilliput.data.tokenizers import Tokenizer
from lilliput.errors import UserError, nearest
from lilliput.settings.tree import Config, DataSettings

TESTS = "tests"  # all test sets together
BATCH = 256  # documents encoded at once


@dataclass(frozen=True)
class Documents:
    """Documents to evaluate. `sets` are the names of the joined sets, `part` (documents,) is the set of each document."""

    name: str
    file: TokenFile
    hashes: NDArray[np.uint64]  # (documents,) hashes of the texts, as in prepared data
    words: int  # separated by white space
    labels: list[str] | None  # names of the classes in `file.labels`
    sets: list[str]
    part: NDArray[np.int64]
    read: Callable[[], Iterator[str]]  # reads the texts again, in order
    line_ends: int = 0  # CRLF and CR that were replaced by LF
    storybook: bool = False  # all documents are from the built-in storybook, whose exact probabilities are known


def names_of_sets(data: DataSettings) -> list[str]:
    return ["train", "validation", *(test.partition("=")[0] for test in data.tests)]


def check_name(data: DataSettings, on: str) -> None:
    """Raise an error if `on` is neither a set of the run nor a path. A set has priority over a path of the same name."""
    names = names_of_sets(data)
    if on == TESTS and not data.tests:
        raise UserError(
            "the run has no test sets (its data.tests is empty)",
            fix="use validation or the path of a file",
            code="evaluation.set",
            setting="on",
        )
    if on in (*names, TESTS) or os.path.exists(on):
        return
    known = [*names, *([TESTS] if data.tests else [])]
    near = nearest(on, known)
    fix = near or f"one of {', '.join(known)}, or the path of an existing file or folder"
    raise UserError(
        f"on must be a set of the run or an existing path (got {on!r})",
        fix=f"use {fix}",
        code="evaluation.set",
        setting="on",
    )


def is_set(data: DataSettings, on: str) -> bool:
    return on in (*names_of_sets(data), TESTS)


# Sets of the run ------------------------------------------------------------------------------------------------------


def open_sets(config: Config, prepared: Prepared, on: str) -> Documents:
    names = names_of_sets(config.data)
    return join(on, [open_split(config, prepared, name) for name in (names[2:] if on == TESTS else [on])])


def open_split(config: Config, prepared: Prepared, name: str) -> Documents:
    file, hashes, data = prepared.split(name), prepared.hashes(name), config.data
    sources = {"train": data.source, "validation": data.validation_source or data.source}
    sources |= {test: source for test, _, source in (test.partition("=") for test in data.tests)}

    def read() -> Iterator[str]:
        return texts_of(hashes, (document.text for document in open_corpus(data).documents(name)), sources[name])

    figures, part = prepared.manifest["splits"][name], np.zeros(file.documents, np.int64)
    words, line_ends, from_storybook = figures["words"], figures["line_ends"], sources[name] == STORYBOOK
    return Documents(name, file, hashes, words, prepared.labels, [name], part, read, line_ends, from_storybook)


def texts_of(hashes: NDArray[np.uint64], texts: Iterator[str], source: str) -> Iterator[str]:
    """Yield the texts with these hashes, in this order: all except those that were dropped during preparation."""
    for wanted in hashes.astype(HASHES):
        raw = wanted.tobytes()
        for text in texts:
            if hash_text(text.encode()) == raw:
                yield text
                break
        else:
            raise UserError(
                "the texts have changed since they were prepared",
                source,
                fix="run the command again",
                code="data.changed",
            )


def join(name: str, parts: list[Documents]) -> Documents:
    """Join several sets. A single set is returned unchanged."""
    if len(parts) == 1:
        return parts[0]
    files = [part.file for part in parts]
    shifts = np.cumsum([0, *(len(file.tokens) - 1 for file in files)])
    offsets = [file.offsets[:-1] + shift for file, shift in zip(files, shifts, strict=False)]
    labels = [file.labels for file in files if file.labels is not None]
    whole = TokenFile(
        np.concatenate([files[0].tokens[:1], *(file.tokens[1:] for file in files)]),
        np.concatenate([*offsets, [shifts[-1] + 1]]),
        np.concatenate([file.document_bytes for file in files]),
        np.concatenate(labels) if labels else None,
        files[0].ends,
    )
    return Documents(
        name,
        whole,
        np.concatenate([part.hashes for part in parts]),
        sum(part.words for part in parts),
        parts[0].labels,
        [part.name for part in parts],
        np.repeat(np.arange(len(parts)), [file.documents for file in files]),
        lambda: (text for part in parts for text in part.read()),
        sum(part.line_ends for part in parts),
        all(part.storybook for part in parts),
    )


# Any file -------------------------------------------------------------------------------------------------------------


def open_file(
    path: str, data: DataSettings, tokenizer: Tokenizer, labels: list[str] | None, report: Report
) -> Documents:
    """Read a file or folder of texts like the run's own data, and encode it in memory.

    `labels` are the run's classes, in their order. If the run has none, the labels of the documents are used, sorted.
    """
    reading = open_source(path, ("evaluated",), data)["evaluated"]

    def read() -> Iterator[Document]:
        return map(LINE_ENDS[data.line_ends], reading.read(ignore))

    documents, found, named, done = read(), list[Encoded](), list[str | None](), 0
    removed, replaced = list[int](), 0
    while some := list(islice(documents, BATCH)):
        found.append(encode(tokenizer, [document.text for document in some]))
        named += [document.label for document in some]
        removed += [document.removed for document in some]
        replaced += sum(document.replaced for document in some)
        done += sum(len(document.text) for document in some)
        report("tokenizing", done, max(done, reading.size))
    if not gather(found, "lengths", OFFSETS).any():
        raise UserError(
            "the texts contain no tokens for the run's tokenizer", path, fix="use other texts", code="data.empty"
        )
    known = [name for name in named if name is not None]
    classes = labels or (order_labels(known) if known else None)
    return Documents(
        Path(path).name,
        TokenFile(
            np.concatenate([np.array([tokenizer.end]), gather(found, "tokens", token_type(tokenizer.vocab_size))]),
            np.cumsum([1, *(gather(found, "lengths", OFFSETS) + 1)]),
            gather(found, "sizes", BYTES) + np.array(removed, BYTES),
            np.array([class_of(name, classes, path) for name in known], np.int32) if classes and known else None,
            tokenizer.ends,
        ),
        gather(found, "hashes", HASHES),
        sum(part.words for part in found),
        classes,
        [Path(path).name],
        np.zeros(len(named), np.int64),
        lambda: (document.text for document in read()),
        replaced,
    )


def gather(found: list[Encoded], part: str, kind: str) -> NDArray[Any]:
    return np.frombuffer(b"".join(getattr(one, part) for one in found), kind)


def class_of(name: str, classes: list[str], path: str) -> int:
    if name in classes:
        return classes.index(name)
    known = ", ".join(classes[:8]) + (", ..." if len(classes) > 8 else "")
    suggestion = nearest(name, classes)
    raise UserError(
        f"label must be one of {known} (got {name!r})",
        path,
        fix=f"use {suggestion}" if suggestion else "use the model's labels",
        code="data.label",
    )
