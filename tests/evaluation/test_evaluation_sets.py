"""Choice of documents: names before paths, joined sets, texts matched by their hashes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.text_corpora import configure, write
from helpers.user_errors import refused
from lilliput.data.duplicates import hash_text
from lilliput.data.prepare import prepare
from lilliput.data.progress import silent
from lilliput.evaluation.evaluation_sets import check_name, is_set, names_of_sets, open_file, open_sets, texts_of
from lilliput.settings.tree import DataSettings

TEXTS = ["A bee saw the sea.", "Zoë lost a bell.", "The moon, the wind.", "An owl."]


def hashes(texts: list[str]) -> np.ndarray:
    return np.frombuffer(b"".join(hash_text(text.encode()) for text in texts), "<u8")


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = DataSettings(tests=("obama=o.txt", "bush=b.txt"))
    assert names_of_sets(data) == ["train", "validation", "obama", "bush"]
    for name in ("train", "validation", "obama", "tests"):
        check_name(data, name)
        assert is_set(data, name)
    near, far = (refused(lambda name=name: check_name(data, name)) for name in ("obma", "xyzxyz"))  # type: ignore[misc]
    none = refused(lambda: check_name(DataSettings(), "tests"))
    assert {(error.code, error.setting) for error in (near, far, none)} == {("evaluation.set", "on")}
    assert "obama" in (near.fix or "") and "train, validation, obama, bush, tests" in (far.fix or "")
    Path("obma").write_text("a file of that name")
    check_name(data, "obma")
    assert not is_set(data, "obma")


def test_texts_of_omits_dropped_documents() -> None:
    wanted = [TEXTS[0], TEXTS[2], TEXTS[0]]
    available = iter([*TEXTS[:3], TEXTS[0], TEXTS[3]])
    assert list(texts_of(hashes(wanted), available, "a.txt")) == wanted
    error = refused(lambda: list(texts_of(hashes(wanted), iter(TEXTS), "a.txt")))
    assert (error.code, error.where) == ("data.changed", "a.txt")


def test_joined_sets_equal_one_file_of_all_documents(tmp_path: Path) -> None:
    sources = [
        write(tmp_path / f"{name}.txt", texts) for name, texts in {"a": TEXTS[:1], "b": TEXTS[1:3], "c": TEXTS}.items()
    ]
    tests = ("one=" + str(sources[1]), "two=" + str(sources[2]))
    config = configure(sources[2], tmp_path / "cache", tests=tests)
    prepared = prepare(config)
    found = open_sets(config, prepared, "tests")
    assert found.sets == ["one", "two"] and found.part.tolist() == [0, 0, 1, 1, 1, 1]
    assert list(found.read()) == [*TEXTS[1:3], *TEXTS]
    assert found.hashes.tolist() == hashes([*TEXTS[1:3], *TEXTS]).tolist()
    assert found.words == sum(len(text.split()) for text in [*TEXTS[1:3], *TEXTS])
    whole = open_file(
        str(write(tmp_path / "all.txt", [*TEXTS[1:3], *TEXTS])), config.data, prepared.tokenizer, None, silent
    )
    assert found.file.tokens.tolist() == whole.file.tokens.tolist()
    assert found.file.offsets.tolist() == whole.file.offsets.tolist()
    assert found.file.document_bytes.tolist() == whole.file.document_bytes.tolist()
    assert found.file.predictions == whole.file.predictions


def test_a_file_uses_the_labels_of_the_model_or_its_own(tmp_path: Path) -> None:
    path = tmp_path / "said.tsv"
    path.write_text("owl\tthe moon\nbee\tthe sea\nowl\tthe wind\n")
    data, tokenizer = (
        DataSettings(labelled=True),
        prepare(configure(write(tmp_path / "a.txt", TEXTS), tmp_path)).tokenizer,
    )
    own = open_file(str(path), data, tokenizer, None, silent)
    assert own.labels == ["bee", "owl"] and own.file.labels is not None and own.file.labels.tolist() == [1, 0, 1]
    known = open_file(str(path), data, tokenizer, ["owl", "fox", "bee"], silent)
    assert known.file.labels is not None and known.file.labels.tolist() == [0, 2, 0]
    plain = open_file(str(path), DataSettings(), tokenizer, None, silent)
    assert plain.file.labels is None and plain.labels is None


def test_texts_without_tokens_raise_an_error(tmp_path: Path) -> None:
    config = configure(write(tmp_path / "a.txt", TEXTS), tmp_path, "word")
    config = replace(config, tokenizer=replace(config.tokenizer, punctuation="strip"))
    (tmp_path / "punctuation.txt").write_text("!!!\n")
    tokenizer = prepare(config).tokenizer
    path = str(tmp_path / "punctuation.txt")
    error = refused(lambda: open_file(path, config.data, tokenizer, None, silent))
    assert (error.code, error.where) == ("data.empty", path)
