"""Line ends: the same tokens for any of them, and the bytes of the original text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lilliput.data.corpora import END_OF_TEXT, Document, open_corpus
from lilliput.data.corpora.line_ends import LINE_ENDS, counted_parts, normalise
from lilliput.data.prepare import prepare
from lilliput.data.prepare.token_files import Prepared
from lilliput.settings.loading import BEFORE, config_from_dict, config_to_dict, load_config, replace
from lilliput.settings.tree import DataSettings

STORY = "The bear sat.\n\nIt ate honey.\nThe end."
TEXT = f"{STORY}\n{END_OF_TEXT}\nOne line é.\n{END_OF_TEXT}\n{STORY}\n"
MIXED = st.text(st.sampled_from("ab\r\n é"), max_size=40)


def built(folder: Path, content: bytes, **data: str) -> Prepared:
    folder.mkdir(exist_ok=True)
    path = folder / "text.txt"
    path.write_bytes(content)
    changes = {"data.source": str(path), "data.cache": str(folder / "cache"), "tokenizer.kind": "byte"}
    return prepare(replace(load_config(), changes | {f"data.{name}": value for name, value in data.items()}))


def original_bytes(prepared: Prepared) -> dict[str, list[int]]:
    return {name: prepared.split(name).document_bytes.tolist() for name in prepared.splits}


@given(text=MIXED)
def test_counts_are_those_of_the_original(text: str) -> None:
    found = normalise(Document(text, "label"))
    assert found.text == "\n".join(text.replace("\r\n", "\n").split("\r"))
    assert found.label == "label"
    assert len(found.text.encode()) + found.removed == len(text.encode())
    lone = text.replace("\r\n", "").count("\r")
    assert (found.replaced, found.removed) == (text.count("\r\n") + lone, text.count("\r\n"))
    assert LINE_ENDS["keep"](Document(text)) == Document(text)


@given(one=MIXED, gap=MIXED, other=MIXED)
def test_parts_have_the_counts_of_their_own_text(one: str, gap: str, other: str) -> None:
    one, other = one.replace("\r", "x") + "\r\n1", "2\ra" + other.replace("\n", "x")
    first, second = normalise(Document(one)), normalise(Document(other))
    assert counted_parts(Document(one + gap + other), first.text, second.text) == (first, second)
    assert counted_parts(Document(one + gap + other), one, other) == (Document(one), Document(other))  # kept


@pytest.mark.parametrize("content", [TEXT, STORY * 40])
def test_tokens_and_hashes_do_not_depend_on_line_ends(tmp_path: Path, content: str) -> None:
    plain = built(tmp_path / "lf", content.encode())
    windows = built(tmp_path / "crlf", content.replace("\n", "\r\n").encode())
    old = built(tmp_path / "cr", content.replace("\n", "\r").encode())
    for other in (windows, old):
        for split in plain.splits:
            assert np.array_equal(plain.split(split).tokens, other.split(split).tokens)
            assert np.array_equal(plain.hashes(split), other.hashes(split))
        assert other.report()["lossy"] and not plain.report()["lossy"]
        assert other.report()["duplicates"] == plain.report()["duplicates"]
        assert sum(other.report()["line_ends"].values()) > 0
    assert original_bytes(old) == original_bytes(plain)
    kept = built(tmp_path / "crlf", content.replace("\n", "\r\n").encode(), line_ends="keep")
    assert not kept.report()["lossy"]
    if content == TEXT:  # the same documents: a single one is split at another place if its line ends are kept
        assert original_bytes(windows) == original_bytes(kept)
    else:  # both parts together lack only the white space between them
        assert sum(map(sum, original_bytes(windows).values())) == len(content.encode()) + content.count("\n") - gap(
            plain, content
        )


def gap(plain: Prepared, content: str) -> int:
    """Return the bytes between the two parts of a single document, with CRLF as line ends."""
    first, second = plain.split("train").bytes, plain.split("validation").bytes
    between = content.encode()[first : len(content.encode()) - second]
    assert between.isspace()
    return len(between) + between.count(b"\n")


def test_equal_documents_with_other_line_ends_are_duplicates(tmp_path: Path) -> None:
    content = f"{STORY}{END_OF_TEXT}" + STORY.replace("\n", "\r\n") + f"{END_OF_TEXT}other{END_OF_TEXT}" * 9
    report = built(tmp_path, content.encode(), drop_duplicates="exact").report()
    kept = built(tmp_path, content.encode(), drop_duplicates="exact", line_ends="keep").report()
    assert sum(report["dropped"].values()) == sum(kept["dropped"].values()) + 1


def test_settings_of_earlier_versions_keep_line_ends_and_files(tmp_path: Path) -> None:
    saved = config_to_dict(load_config())
    assert config_from_dict(saved, "config.json") == load_config()
    for name in BEFORE:
        section, _, last = name.partition(".")
        del saved[section][last]
    data = config_from_dict(saved, "config.json").data
    assert data.line_ends == "keep"
    for name in ("a.txt", "b.jsonl.gz", "c.md", "README"):
        (tmp_path / name).write_text(name)
    chosen = open_corpus(DataSettings(source=str(tmp_path), files=("*.txt",)))
    assert [path.name for path in chosen.sources] == ["a.txt"]
    assert [
        name for name in ("a.txt", "b.jsonl.gz", "c.md", "README") if any(Path(name).match(one) for one in data.files)
    ] == [
        "a.txt",
        "b.jsonl.gz",
    ]
