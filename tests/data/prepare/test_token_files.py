"""Prepared folders: the checksum of the manifest, and when files are verified again."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.text_corpora import configure, write
from lilliput.data.duplicates import hash_text
from lilliput.data.prepare import prepare, token_files
from lilliput.data.prepare.token_files import TokenFile, read_prepared, seal, unseal

VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)


@given(st.dictionaries(st.text(max_size=5), VALUES, min_size=1, max_size=4), st.data())
def test_the_checksum_of_the_manifest(value: dict[str, object], data: st.DataObject) -> None:
    raw = seal(value)
    assert unseal(raw) == value
    changed = bytearray(raw)
    changed[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((ValueError, KeyError)):
        unseal(bytes(changed))


def test_files_are_verified_once_per_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure(write(tmp_path / "a.txt", [f"text {n}" for n in range(30)]), tmp_path / "cache")
    prepared = prepare(config)
    read: list[str] = []
    digest = token_files.digest

    def counted(path: Path) -> str:
        read.append(path.name)
        return digest(path)

    monkeypatch.setattr(token_files, "digest", counted)
    prepare(config)
    assert sorted(read) == sorted(prepared.manifest["files"])
    prepare(config)
    assert len(read) == len(prepared.manifest["files"])
    # A new modification time: verified again, although the content is the same.
    os.utime(prepared.folder / "train.tokens")
    prepare(config)
    assert len(read) == 2 * len(prepared.manifest["files"])


def test_hashes_are_hashes_of_texts(tmp_path: Path) -> None:
    texts = [f"text {n}" for n in range(20)]
    prepared = prepare(configure(write(tmp_path / "a.txt", texts), tmp_path / "cache"))
    found = {*prepared.hashes("train").tolist(), *prepared.hashes("validation").tolist()}
    assert found == {int.from_bytes(hash_text(text.encode()), "little") for text in texts}


def test_a_folder_of_other_recipes_or_sources_is_not_used(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", ["one", "two"])
    prepared = prepare(configure(source, tmp_path / "cache"))
    recipe = prepared.manifest["recipe"]
    assert read_prepared(prepared.folder, recipe, [source])
    assert read_prepared(prepared.folder, recipe | {"format": 1}, [source]) is None
    assert read_prepared(prepared.folder, recipe, []) is None
    assert read_prepared(tmp_path, recipe, [source]) is None


def test_predictions() -> None:
    tokens, offsets, sizes = np.array([9, 1, 2, 9, 3, 9]), np.array([1, 4, 6]), np.array([2, 1])
    assert TokenFile(tokens, offsets, sizes).predictions == 5
    assert TokenFile(tokens, offsets, sizes, ends=False).predictions == 3


def test_selected_documents_are_a_file_of_their_own(tmp_path: Path) -> None:
    config = configure(write(tmp_path / "a.txt", [f"text {n} " * (n + 1) for n in range(20)]), tmp_path / "cache")
    file = prepare(config).split("train")
    found = file.select(np.array([3, 0]))
    assert (found.documents, found.ends, found.labels) == (2, file.ends, None)
    for new, old in enumerate((3, 0)):
        own = found.tokens[found.offsets[new] : found.offsets[new + 1]]
        assert np.array_equal(own, file.tokens[file.offsets[old] : file.offsets[old + 1]])
        assert found.document_bytes[new] == file.document_bytes[old]
    assert found.tokens[0] == file.tokens[0] and len(found.tokens) == found.offsets[-1]
