"""The first characters and ids of the training split, for every kind of source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.text_corpora import configure, write
from lilliput.data.corpora import END_OF_TEXT, Corpus, Document, open_corpus
from lilliput.data.prepare import prepare
from lilliput.data.prepare.excerpts import first_ids, first_text
from lilliput.settings.tree import Config

STORIES = [f"Story {number}: it was a good day,\nand the sun shone." for number in range(12)]


def sources(folder: Path) -> dict[str, Config]:
    def configured(source: Path | str, **data: object) -> Config:
        return configure(source, folder / "cache", kind="bpe", **data)

    text = write(folder / "text.txt", STORIES)
    several = folder / "several"
    several.mkdir()
    write(several / "a.txt", STORIES[:5])
    write(several / "b.txt", STORIES[5:])
    labelled = folder / "labelled.tsv"
    labelled.write_text("".join(f"{number % 2}\t{text.splitlines()[0]}\n" for number, text in enumerate(STORIES)))
    single = folder / "single.txt"
    single.write_text("\n\n".join(STORIES))
    (folder / "load.py").write_text(f"def stories():\n    return iter({STORIES!r})\n")
    twice = write(folder / "twice.txt", [STORIES[0], STORIES[0], *STORIES, STORIES[3]])
    held_out = write(folder / "held-out.txt", [STORIES[0], "other"])
    return {
        "file": configured(text),
        "folder": configured(several),
        "storybook": configured("storybook", documents=8),
        "labelled": configured(labelled, labelled=True),
        "one document": configured(single, separator="file"),
        "loader": configured(f"{folder / 'load.py'}:stories"),
        "duplicates": configured(twice, validation_source=str(held_out), drop_duplicates="exact"),
    }


@pytest.mark.parametrize("name", ["file", "folder", "storybook", "labelled", "one document", "loader", "duplicates"])
def test_text_and_ids_are_those_of_the_training_documents(name: str, tmp_path: Path) -> None:
    config = sources(tmp_path)[name]
    corpus = open_corpus(config.data)
    texts = [document.text for document in corpus.documents("train")]
    if name == "duplicates":  # the first document is also a validation document
        texts = STORIES[1:]
    whole = f"\n{END_OF_TEXT}\n".join(texts)
    for _ in range(2):  # built, then reused
        prepared = prepare(config)
        tokenizer = prepared.tokenizer
        ids = [one for text in texts for one in (*tokenizer.encode(text), tokenizer.end)]
        for count in (1, 60, len(whole), len(whole) + 9):
            assert first_text(open_corpus(config.data), prepared, count) == whole[:count]
        for count in (1, 60, len(ids), len(ids) + 9):
            assert first_ids(prepared, count) == ids[:count]


def test_only_the_first_documents_are_read(tmp_path: Path) -> None:
    config = configure(write(tmp_path / "text.txt", STORIES), tmp_path / "cache")
    prepared, corpus, read = prepare(config), open_corpus(config.data), list[str]()

    def counted(part_read: object) -> object:
        def reader(on_empty: object) -> Iterator[Document]:
            for document in part_read(on_empty):  # type: ignore[operator]
                read.append(document.text)
                yield document

        return reader

    parts = tuple(replace(part, read=counted(part.read)) for part in corpus.parts)  # type: ignore[arg-type]
    first_text(Corpus(corpus.name, corpus.sources, corpus.describe, corpus.size, parts), prepared, 10)
    assert len(read) <= 3
