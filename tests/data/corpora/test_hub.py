"""TinyStories and other data sets: folders with the published names, the cache, a hub, and no hub."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants
import pyarrow
import pyarrow.parquet
import pytest

from helpers.user_errors import refused
from lilliput.data.corpora import Corpus, open_corpus
from lilliput.data.corpora.hub import TINYSTORIES_ON_HUB, splits_by_name
from lilliput.settings.tree import DataSettings

COMMIT = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
CLOSED = "http://127.0.0.1:9"  # the discard port, where no server listens


def shard(texts: list[str], column: str = "text") -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({column: texts}), sink)
    return sink.getvalue().to_pybytes()


def stories(texts: list[str]) -> bytes:
    return "".join(f"{text}\n<|endoftext|>\n" for text in texts).encode()


TEXTS = {"TinyStories-train.txt": stories(["t1", "t2", "t3"]), "TinyStories-valid.txt": stories(["v1"])}
VERSION_2 = {
    "TinyStoriesV2-GPT4-train.txt": stories(["w1", "w2"]),
    "TinyStoriesV2-GPT4-valid.txt": stories(["w3"]),
}
SHARDS = {
    "data/train-00000-of-00002-2d5a1467fff1081b.parquet": shard(["p1", "p2"]),
    "data/train-00001-of-00002-5852b56a2bd28fd9.parquet": shard(["p3"]),
    "data/validation-00000-of-00001-869c898b519ad725.parquet": shard(["p4"]),
}
OTHERS = {"README.md": b"about", "Evaluation prompts.yaml": b"- a", "TinyStories_all_data.tar.gz": b"\x1f\x8b"}


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def corpus_of(source: Path | str, **settings: object) -> Corpus:
    return open_corpus(DataSettings(source=str(source), **settings))


def splits_of(source: Path | str, **settings: object) -> dict[str, list[str]]:
    corpus = corpus_of(source, **settings)
    return {split: [document.text for document in corpus.documents(split)] for split in corpus.splits}


# Folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "train", "validation"),
    [
        (TEXTS, ["t1", "t2", "t3"], ["v1"]),
        (VERSION_2, ["w1", "w2"], ["w3"]),
        (SHARDS, ["p1", "p2", "p3"], ["p4"]),
        ({name.removeprefix("data/"): content for name, content in SHARDS.items()}, ["p1", "p2", "p3"], ["p4"]),
        ({**TEXTS, **VERSION_2, **SHARDS, **OTHERS}, ["p1", "p2", "p3"], ["p4"]),
        ({**VERSION_2, **TEXTS, **OTHERS}, ["t1", "t2", "t3"], ["v1"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by_name", [False, True])
def test_folders_with_the_published_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], train: list[str], validation: list[str],
    by_name: bool,
) -> None:  # fmt: skip
    folder = fill(tmp_path / "tinystories", files)
    monkeypatch.setenv("LILLIPUT_DATA", str(tmp_path))
    source = "tinystories" if by_name else str(folder)
    assert splits_of(source) == {"train": train, "validation": validation}
    corpus = corpus_of(source)
    assert corpus.describe.startswith("TinyStories by file names: ")
    assert corpus.name == "tinystories"
    assert all(folder in path.parents for path in corpus.sources)
    assert splits_of(source, documents=1) == {"train": train[:1], "validation": validation}


def test_published_splits_of_test_sets(tmp_path: Path) -> None:
    folder = fill(tmp_path / "stories", TEXTS)
    other = fill(tmp_path / "mine", {"a.txt": stories(["m1", "m2"])})
    expected = {"train": ["m1", "m2"], "validation": ["v1"], "held": ["v1"]}
    assert splits_of(other, validation_source=str(folder), tests=(f"held={folder}",)) == expected
    assert splits_of(folder, validation_source=str(other)) == {"train": ["t1", "t2", "t3"], "validation": ["m1", "m2"]}


def test_a_folder_without_both_published_splits(tmp_path: Path) -> None:
    folder = fill(tmp_path, {"TinyStories-train.txt": TEXTS["TinyStories-train.txt"]})
    assert sorted(text for texts in splits_of(folder).values() for text in texts) == ["t1", "t2", "t3"]


def test_a_missing_shard_raises(tmp_path: Path) -> None:
    name = "data/train-00001-of-00002-5852b56a2bd28fd9.parquet"
    folder = fill(tmp_path, {key: content for key, content in SHARDS.items() if key != name})
    error = refused(lambda: corpus_of(folder))
    assert (error.code, error.setting, error.where) == ("file.missing", "data.source", str(folder))
    assert "data/train-00001-of-00002" in error.what


# Names of files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.txt", "b.txt", "README.txt"], {"train": ["a.txt", "b.txt"]}),
        (["train.jsonl", "dev.jsonl", "test.jsonl", "extra.jsonl"],
         {"train": ["train.jsonl"], "validation": ["dev.jsonl"], "test": ["test.jsonl"]}),
        (["data/train/1.csv", "data/train/2.csv", "data/valid/1.csv"],
         {"train": ["data/train/1.csv", "data/train/2.csv"], "validation": ["data/valid/1.csv"]}),
        (["x-train.txt.gz", "x-val.txt.gz", "x-train.parquet"], {"train": ["x-train.parquet"]}),
        (["stories.jsonl", "stories-test.jsonl"], {"train": ["stories.jsonl"], "test": ["stories-test.jsonl"]}),
        (["trained.txt", "contest.txt"], {"train": ["contest.txt", "trained.txt"]}),
    ],
)  # fmt: skip
def test_splits_by_the_names_of_files(names: list[str], expected: dict[str, list[str]]) -> None:
    assert splits_by_name(names, "owner/name") == expected


@pytest.mark.parametrize(
    ("names", "code", "facts"),
    [
        (["a.arrow", "b.json"], "file.format", [".arrow, .json"]),
        ([], "file.format", []),
        (["test.jsonl", "dev.jsonl"], "data.source", ["test and validation"]),
        (["small/train.csv", "large/train.csv"], "data.source", ["large, small"]),
        (["train-00000-of-00003.parquet"], "file.missing", ["train-00001-of-00003", "2 of 3"]),
    ],
)
def test_ambiguous_names_of_files_raise(names: list[str], code: str, facts: list[str]) -> None:
    error = refused(lambda: splits_by_name(names, "owner/name"))
    assert (error.code, error.where) == (code, "owner/name")
    for fact in facts:
        assert fact in error.what


# The hub's cache, without a hub ----------------------------------------------------------------------------------


def fill_cache(cache: Path, name: str, files: dict[str, bytes]) -> Path:
    """Create a cache in huggingface_hub's layout: contents by hash, a snapshot of links, and the commit."""
    root = cache / f"datasets--{name.replace('/', '--')}"
    for path, content in files.items():
        blob = root / "blobs" / hashlib.sha256(content).hexdigest()
        link = root / "snapshots" / COMMIT / path
        for each in (blob, link):
            each.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT, "utf-8")
    return root


@pytest.fixture(params=["offline", "unreachable"])
def no_hub(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change the library's constants (it reads the environment only at import); return the cache folder."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", request.param == "offline")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", CLOSED)
    monkeypatch.delenv("LILLIPUT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def test_tinystories_from_the_cache(no_hub: Path) -> None:
    root = fill_cache(no_hub, TINYSTORIES_ON_HUB, {**SHARDS, **TEXTS, **OTHERS})
    for source in ("tinystories", TINYSTORIES_ON_HUB):
        assert splits_of(source) == {"train": ["p1", "p2", "p3"], "validation": ["p4"]}
        corpus = corpus_of(source)
        assert corpus.name == source
        assert corpus.describe == (
            "roneneldan/TinyStories from the hub's cache: 2 files, one document per row (column 'text'); "
            "validation: roneneldan/TinyStories from the hub's cache: 1 file, one document per row (column 'text')"
        )
        assert all(root in path.parents for path in corpus.sources)


def test_other_data_sets_from_the_cache(no_hub: Path) -> None:
    lines = [json.dumps({"story": f"s{n}", "label": n % 2}) + "\n" for n in range(20)]
    files = {"train.jsonl": "".join(lines).encode(), "test.jsonl": lines[0].encode(), "README.md": b"about"}
    fill_cache(no_hub, "someone/stories-2", files)
    found = splits_of("someone/stories-2", text_field="story", labelled=True, tests=("mine=someone/stories-2",))
    assert [len(texts) for texts in found.values()] == [18, 2, 1]  # without validation files, a share of train
    assert found["mine"] == ["s0"]
    error = refused(lambda: corpus_of("someone/stories-2"))
    assert (error.code, error.setting) == ("data.column", "data.text_field")


def test_a_cache_without_one_shard(no_hub: Path) -> None:
    fill_cache(no_hub, TINYSTORIES_ON_HUB, dict(list(SHARDS.items())[1:]))
    assert refused(lambda: corpus_of("tinystories")).code == "file.missing"


def test_no_files_and_no_hub(no_hub: Path) -> None:
    begin = time.perf_counter()
    error = refused(lambda: corpus_of("tinystories"))
    assert time.perf_counter() - begin < 30
    assert (error.code, error.setting) == ("hub.offline", "data.source")
    assert "roneneldan/TinyStories" in error.what
    for fact in ("TinyStories-train.txt", "TinyStories-valid.txt", "$LILLIPUT_DATA/tinystories", "HF_HOME"):
        assert fact in (error.fix or "")
    error = refused(lambda: corpus_of("someone/stories"))
    assert (error.code, error.setting) == ("hub.offline", "data.source")
    assert "someone/stories" in error.what and "Errno" not in error.what


def test_an_invalid_name_of_a_data_set(no_hub: Path) -> None:
    error = refused(lambda: corpus_of("someone/stories--2"))
    assert (error.code, error.setting) == ("data.source", "data.source")


def test_offline_by_environment_variables(tmp_path: Path) -> None:
    fill_cache(tmp_path / "hub", TINYSTORIES_ON_HUB, SHARDS)
    code = (
        "import sys; from lilliput.data.corpora import open_corpus; from lilliput.settings.tree import DataSettings\n"
        "print(*(f'{split}:{document.text}' for split, document in open_corpus(DataSettings(source='tinystories')).stream()))\n"
        "assert 'torch' not in sys.modules\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment.pop("LILLIPUT_DATA", None)
    environment["PYTHONPATH"] = str(Path(__file__).parents[3] / "src")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout == "train:p1 train:p2 train:p3 validation:p4\n"


# A hub on this machine -------------------------------------------------------------------------------------------


class Hub(http.server.BaseHTTPRequestHandler):
    """The requests of huggingface_hub: the description of a data set, its tree, and its files."""

    files: dict[str, bytes]
    fetched: list[str]

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""

    def answer(self, content: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if "/gated/" in path:
            return self.answer(b"{}", {"X-Error-Code": "GatedRepo"}, 403)
        if "/someone/stories" not in path:
            return self.answer(b"{}", {"X-Error-Code": "RepoNotFound"}, 404)
        if "/resolve/" in path:
            name = path.split(f"/resolve/{COMMIT}/")[1]
            if self.command == "GET":
                self.fetched.append(name)
            content = self.files[name]
            return self.answer(content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT})
        if "/tree/" in path:
            answer: Any = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in self.files.items()
            ]
        else:
            answer = {"id": "someone/stories", "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]}
        return self.answer(json.dumps(answer).encode(), {"Content-Type": "application/json"})

    do_HEAD = do_GET


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    files = {"data/train.txt": stories(["h1", "h2", "h3"]), "data/dev.txt": stories(["h4"]), "big.bin": b"no"}
    handler = type("ThisHub", (Hub,), {"files": files, "fetched": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    template = f"http://127.0.0.1:{server.server_port}" + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    yield handler
    server.shutdown()
    server.server_close()


def test_a_data_set_is_downloaded_once_and_cached(
    hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = {"train": ["h1", "h2", "h3"], "validation": ["h4"]}
    assert splits_of("someone/stories") == expected
    assert sorted(hub.fetched) == ["data/dev.txt", "data/train.txt"]  # only text files
    assert splits_of("someone/stories") == expected
    assert len(hub.fetched) == 2
    corpus = corpus_of("someone/stories")
    assert corpus.describe.startswith("someone/stories from the hub: 1 file, documents end at <|endoftext|>")
    assert all(tmp_path / "hub" in path.parents for path in corpus.sources)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", CLOSED)
    assert splits_of("someone/stories") == expected  # from a partial snapshot
    assert capfd.readouterr().err == ""  # no progress bar, because stderr is not a terminal


def test_only_requested_splits_are_downloaded(hub: type[Hub], tmp_path: Path) -> None:
    mine = fill(tmp_path / "mine", {"a.txt": stories(["m1"])})
    assert splits_of(mine / "a.txt", validation_source="someone/stories")["validation"] == ["h4"]
    assert hub.fetched == ["data/dev.txt"]


def test_unavailable_data_sets(hub: type[Hub]) -> None:
    error = refused(lambda: corpus_of("someone/storys"))
    assert (error.code, error.setting) == ("hub.missing", "data.source")
    assert "someone/storys" in error.what
    error = refused(lambda: corpus_of("gated/stories"))
    assert error.code == "hub.missing"
    assert "hf auth login" in (error.fix or "")


@pytest.mark.parametrize("absolute", [False, True])
def test_a_hub_cannot_name_files_outside_the_folder(hub: type[Hub], tmp_path: Path, absolute: bool) -> None:
    fill(tmp_path, {"secret-train.txt": b"a secret"})
    outside = f"{tmp_path if absolute else '../../../..'}/secret-train.txt"  # from a snapshot's folder
    hub.files = {outside: b"x", "notes.json": b"{}"}
    error = refused(lambda: corpus_of("someone/stories"))
    assert error.code == "file.format"
    assert ".json" in error.what
    assert ".txt" not in error.what


def test_an_interrupted_download(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Hub) -> None:
        if "/resolve/" in self.path:
            return self.answer(b"", {}, 403)  # not 500, which the library would retry
        return Hub.do_GET(self)

    monkeypatch.setattr(hub, "do_HEAD", fail)
    monkeypatch.setattr(hub, "do_GET", fail)
    error = refused(lambda: corpus_of("someone/stories"))
    assert (error.code, error.setting) == ("hub.offline", "data.source")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LILLIPUT_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert refused(lambda: corpus_of("tinystories")).code == "package.missing"
