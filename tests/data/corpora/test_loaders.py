"""User-defined loaders: what they may yield, when they are called, and their errors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helpers.user_errors import refused
from lilliput.data.corpora import Corpus, Document, open_corpus
from lilliput.errors import UserError
from lilliput.settings.tree import DataSettings


def loader(folder: Path, code: str, name: str = "loader.py") -> Path:
    path = folder / name
    path.write_text(code, "utf-8")
    return path


def corpus_of(source: Path | str, **settings: object) -> Corpus:
    return open_corpus(DataSettings(source=str(source), **settings))


def refused_source(source: Path | str, **settings: object) -> UserError:
    return refused(lambda: list(corpus_of(source, **settings).stream()))


def test_a_function_without_argument_is_shared_by_the_splits(tmp_path: Path) -> None:
    path = loader(tmp_path, "def documents():\n    for n in range(100):\n        yield f' text {n} '\n    yield ' '\n")
    corpus = corpus_of(path)
    counted: list[str] = []
    streamed = list(corpus.stream(counted.append))
    assert {document.text for _, document in streamed} == {f"text {n}" for n in range(100)}
    assert sum(split == "validation" for split, _ in streamed) == 10
    assert counted == ["train"]
    assert corpus.sources == [path]
    assert corpus.name == "loader.py"
    assert corpus.describe == "documents() of loader.py; 10% of the documents are used for validation"


def test_a_function_with_an_argument_is_called_for_each_split(tmp_path: Path) -> None:
    path = loader(tmp_path, "def mine(which):\n    return [f'{which} {n}' for n in range(3)]\n")
    corpus = corpus_of(f"{path}:mine", tests=(f"extra={path}:mine",), documents=2)
    assert [(split, document.text) for split, document in corpus.stream()] == [
        *(("train", f"train {n}") for n in range(2)),
        *(("validation", f"validation {n}") for n in range(3)),
        *(("extra", f"extra {n}") for n in range(3)),
    ]
    assert corpus.describe.startswith(
        "mine('train') of loader.py; the first 2 documents; validation: mine('validation')"
    )
    assert corpus.sources == [path]
    other = loader(tmp_path, "def documents(split='train', size=2):\n    yield split * size\n", "other.py")
    assert list(corpus_of(other).stream()) == [
        ("train", Document("traintrain")),
        ("validation", Document("validationvalidation")),
    ]


def test_labels(tmp_path: Path) -> None:
    path = loader(tmp_path, "def documents(split):\n    yield 'a', 'one'\n    yield 2, 'two'\n    yield None, ' '\n")
    assert list(corpus_of(path, labelled=True).documents("train")) == [Document("one", "a"), Document("two", "2")]
    assert list(corpus_of(path).documents("train")) == [Document("one"), Document("two")]


def test_a_loader_can_import_modules_of_its_folder(tmp_path: Path) -> None:
    loader(tmp_path, "TEXTS = ['a b', 'c d']\n", "sibling_at_the_top.py")
    loader(tmp_path, "MORE = ['e f']\n", "sibling_inside.py")
    code = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom sibling_at_the_top import TEXTS\n\n\n"
        "@dataclass\nclass Row:\n    text: str\n\n\n"
        "def documents():\n    yield from TEXTS\n    from sibling_inside import MORE\n    yield from MORE\n"
    )
    before = list(sys.path)
    corpus = corpus_of(loader(tmp_path, code))
    documents = corpus.stream()
    next(documents)
    assert sys.path == before  # also while it is being read
    assert len(list(documents)) == 2
    assert sys.path == before


def test_an_edited_loader_is_read_again(tmp_path: Path) -> None:
    for text in ("one", "two"):  # same size, same second: cached bytecode would look current
        path = loader(tmp_path, f"def documents(split):\n    yield '{text}'\n")
        assert list(corpus_of(path).documents("train")) == [Document(text)]
    assert sorted(found.name for found in tmp_path.iterdir()) == ["loader.py"]


LONG = "a\\n" * 50


@pytest.mark.parametrize(
    ("text", "code", "setting", "facts"),
    [
        ("def documents(:\n", "data.loader", "data.source", ["line 1"]),
        ("x = 1\nimport no_such_module\ndef documents(): pass\n", "data.loader", "data.source",
         ["line 2", "ModuleNotFoundError"]),
        ("def documents():\n    yield 'x'\n    1 / 0\n", "data.loader", "data.source", ["line 3", "ZeroDivisionError"]),
        (f"def documents():\n    raise ValueError('{LONG}')\n", "data.loader", "data.source", ["line 2", "ValueError"]),
        ("import json\ndef documents():\n    yield json.loads('{')\n",
         "data.loader", "data.source", ["line 3", "JSONDecodeError"]),
        ("def documents():\n    exit()\n", "data.loader", "data.source", ["line 2", "SystemExit"]),
        ("def documents():\n    raise RuntimeError\n", "data.loader", "data.source", ["line 2", "RuntimeError"]),
        ("def documents(): return 'text'\n", "data.loader", "data.source", []),
        ("def documents(): pass\n", "data.loader", "data.source", []),
        ("def documents(): return []\n", "data.empty", "data.source", []),
        ("def documents(split): return ['x'] * (split == 'train')\n", "data.empty", "data.source", ["documents('validation')"]),
        ("def documents(): yield 'x'; yield 3\n", "data.loader", "data.source", ["document 2"]),
        ("def documents(): yield 'x'; yield b'y'\n", "data.loader", "data.source", ["document 2"]),
        ("def documents(): yield 'a', 'b', 'c'\n", "data.loader", "data.source", ["document 1"]),
        ("def documents(): yield 'x'; yield 'half \\ud83d'\n", "file.not-utf8", "data.source", ["document 2", "ud83d"]),
        ("def documents(a, b): yield 'x'\n", "data.loader", "data.source", ["a, b"]),
        ("def documents(a='x', split='train'): yield a\n", "data.loader", "data.source", []),
        ("def documents(a, split='train'): yield a\n", "data.loader", "data.source", []),
    ],
)  # fmt: skip
def test_errors(tmp_path: Path, text: str, code: str, setting: str, facts: list[str]) -> None:
    path = loader(tmp_path, text)
    before = list(sys.path)
    error = refused_source(path)
    assert (error.code, error.setting) == (code, setting)
    for fact in (*facts, str(path)):
        assert fact in str(error)
    assert sys.path == before


def test_errors_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = loader(tmp_path, "def documents(): yield 'x'\n")
    error = refused_source(tmp_path / "loadr.py")
    assert error.code == "file.missing"
    assert str(path) in (error.fix or "")
    assert refused_source(f"{path}:nothing").code == "data.loader"
    other = loader(tmp_path, "def document(): yield 'x'\ndocuments = 3\n", "other.py")
    error = refused_source(f"{other}:documents")
    assert error.code == "data.loader"
    assert f"{other}:document" in (error.fix or "").split()


def test_a_file_without_the_function_is_text_and_is_not_executed(tmp_path: Path) -> None:
    code = "raise SystemExit\n# <|endoftext|>\ndef other():\n    def documents(): pass"
    path = loader(tmp_path, code)
    corpus = open_corpus(DataSettings(source=str(path)))
    found = [document.text for split in corpus.splits for document in corpus.documents(split)]
    assert sorted(found) == ["def other():\n    def documents(): pass", "raise SystemExit\n#"]


def test_errors_of_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = loader(tmp_path, "def documents(): yield 'x'\n")
    monkeypatch.delenv("LILLIPUT_DATA", raising=False)
    error = refused_source("$LILLIPUT_DATA/loader.py:documents")
    assert (error.code, error.setting) == ("data.source", "data.source")
    assert "LILLIPUT_DATA" in error.what
    error = refused_source(path, labelled=True)
    assert (error.code, error.setting) == ("data.label", "data.labelled")
    path = loader(tmp_path, "def documents(): yield [], 'x'\n")
    error = refused_source(path, labelled=True)
    assert (error.code, error.setting) == ("data.label", "data.label_field")
