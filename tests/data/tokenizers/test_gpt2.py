"""GPT-2's tokenizer: the same from every form of its files, equal to tiktoken's; errors of damaged files."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.shared_data import DATA, needs_data
from helpers.user_errors import refused
from lilliput.data.corpora import END_OF_TEXT
from lilliput.data.tokenizers import Tokenizer, gpt2, make_tokenizer, train_bpe
from lilliput.settings.tree import TokenizerSettings

FOLDER = DATA / "gpt2-bpe"
CACHE = FOLDER / "tiktoken_cache"
# The beginning of train-head-2316.txt, published in GPT-2's tokens.
KNOWN = (
    "3198 1110 11 257 1310 2576 3706 20037 1043 257 17598 287 607 2119 13 1375 2993 340 373 2408 284 711 351 340 780 340 "
    "373 7786 13 20037 2227 284 2648 262 17598 351 607 1995 11 523 673 714 34249 257 4936 319 607 10147 13"
)


@pytest.fixture(scope="module")
def whole() -> Tokenizer:
    return Tokenizer.load(FOLDER)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small vocabulary in GPT-2's format."""
    value = json.loads(train_bpe(["low lower lowest " * 9], 270).to_json())
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(value["model"]["vocab"]))
    merges = "".join(f"{left} {right}\n" for left, right in value["model"]["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}")
    return folder


@needs_data
def test_known_answers(whole: Tokenizer) -> None:
    assert (whole.kind, whole.vocab_size, whole.start, whole.end, whole.ends) == ("gpt2", 50_257, 50_256, 50_256, True)
    assert (whole.pad, whole.unknown, whole.lossy) == (None, None, False)
    text = (DATA / "tinystories" / "train-head-2316.txt").read_text()
    assert " ".join(map(str, whole.encode(text[:1000])[:49])) == KNOWN


@needs_data
def test_equal_to_tiktoken_on_the_whole_file(whole: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(CACHE))
    text = (DATA / "tinystories" / "train-head-2316.txt").read_text()
    awkward = "\u3000 na\u00efve 世界 😀\r\n\t  x\x00 don't I'LL 12345 <|endoftext|> _a_"
    theirs = tiktoken.get_encoding("gpt2")
    for one in (text, awkward):
        ids = whole.encode(one)
        assert ids == theirs.encode_ordinary(one)
        assert whole.decode(ids) == one


@needs_data
def test_merges_are_computed_from_ranks() -> None:
    ranks = next(path for path in CACHE.iterdir() if path.read_bytes().startswith(b"IQ=="))
    vocabulary, merges = gpt2.merges_of_ranks(gpt2.read_ranks(ranks.read_text(), "ranks"))
    published = (FOLDER / "vocab.bpe").read_text().splitlines()[1:]
    assert [" ".join(pair) for pair in merges] == published
    assert vocabulary | {END_OF_TEXT: 50_256} == json.loads((FOLDER / "encoder.json").read_text())


@needs_data
def test_every_form_gives_the_same_tokenizer(whole: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub, only_ranks = tmp_path / "hub", tmp_path / "ranks"
    hub.mkdir()
    only_ranks.mkdir()
    shutil.copy(FOLDER / "encoder.json", hub / "vocab.json")
    shutil.copy(FOLDER / "vocab.bpe", hub / "merges.txt")
    for path in CACHE.iterdir():
        if path.read_bytes().startswith(b"IQ=="):
            shutil.copy(path, only_ranks / path.name)
    (only_ranks / ("0" * 40)).write_bytes(b"IQ== 0\nIg== 1\n")  # the ranks of another model
    for folder in (hub, only_ranks, CACHE):
        assert Tokenizer.load(folder).sha256 == whole.sha256
    parent = tmp_path / "parent"
    parent.mkdir()
    hub.rename(parent / "below")
    assert make_tokenizer(TokenizerSettings(kind="gpt2", path=str(parent)), ()).sha256 == whole.sha256
    saved = tmp_path / "saved"
    saved.mkdir()
    whole.save(saved / "tokenizer.json")
    assert make_tokenizer(TokenizerSettings(kind="gpt2", path=str(saved)), ()).sha256 == whole.sha256
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setenv("LILLIPUT_DATA", str(DATA))
    assert make_tokenizer(TokenizerSettings(kind="gpt2"), ()).sha256 == whole.sha256
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(CACHE))
    monkeypatch.setenv("LILLIPUT_DATA", str(tmp_path / "nothing"))
    assert make_tokenizer(TokenizerSettings(kind="gpt2"), ()).sha256 == whole.sha256


@needs_data
def test_transformers_reads_it(whole: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    whole.save(tmp_path / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), eos_token=END_OF_TEXT
    )
    text = "Once upon a time, a naïve 世界 didn't.\n\n 😀"
    assert theirs(text)["input_ids"] == whole.encode(text)
    assert theirs.decode(whole.encode(text)) == text
    assert theirs.eos_token_id == whole.end


def test_other_vocabularies_in_gpt2s_format(small: Path) -> None:
    tokenizer = Tokenizer.load(small)
    assert (tokenizer.kind, tokenizer.end) == ("bpe", tokenizer.vocab_size - 1)
    assert [tokenizer.token(one) for one in tokenizer.encode("lower low")] == ["low", "e", "r", " low"]
    ids = json.loads((small / "vocab.json").read_text())
    (small / "vocab.json").write_text(json.dumps(ids | {"<s>": len(ids), "</s>": len(ids) + 1}))
    tokenizer = Tokenizer.load(small)
    assert (tokenizer.start, tokenizer.end) == (len(ids), len(ids) + 1)
    assert tokenizer.encode("<s>") == [ids[character] for character in "<s>"]


def test_ranks_and_merges_are_equivalent() -> None:
    trained = json.loads(train_bpe(["low lower lowest newer newest " * 9, "aaaa aaaaaaa"], 300).to_json())["model"]
    by_id = sorted(trained["vocab"], key=trained["vocab"].__getitem__)
    pieces = [bytes(map(gpt2.CHARACTER_BYTES.__getitem__, piece)) for piece in by_id]
    lines = "".join(f"{base64.b64encode(piece).decode()} {rank}\n" for rank, piece in enumerate(pieces))
    vocabulary, merges = gpt2.merges_of_ranks(gpt2.read_ranks(lines, "ranks"))
    assert vocabulary == trained["vocab"]
    assert merges == [tuple(pair) for pair in trained["merges"]]


@pytest.mark.parametrize(
    ("name", "content", "code", "place"),
    [
        ("vocab.json", b"{", "file.syntax", "vocab.json"),
        ("vocab.json", b"[" * 100_000, "file.syntax", "vocab.json"),
        ("vocab.json", b'{"a": "b"}', "tokenizer.invalid", "vocab.json"),
        ("vocab.json", b"[]", "tokenizer.invalid", "vocab.json"),
        ("vocab.json", b'{"a": 0}', "tokenizer.invalid", "vocab.json"),
        ("vocab.json", b"\xff", "file.not-utf8", "vocab.json, byte 0"),
        ("merges.txt", b"#version: 0.2\nl o\nlow\n", "tokenizer.invalid", "merges.txt, line 3"),
        ("merges.txt", b"x yy\n", "tokenizer.invalid", "vocab.json"),
    ],
)
def test_damaged_files_raise(small: Path, name: str, content: bytes, code: str, place: str) -> None:
    (small / name).write_bytes(content)
    error = refused(lambda: Tokenizer.load(small))
    assert (error.code, error.where) == (code, str(small / place))


def test_damaged_ranks_raise() -> None:
    for lines, place in (("IQ== 0\nIg== 2\n", "line 2"), ("IQ== 0\n????\n", "line 2"), ("!! 0", "line 1")):
        error = refused(lambda lines=lines: gpt2.read_ranks(lines, "ranks"))  # type: ignore[misc]
        assert (error.code, error.where) == ("tokenizer.invalid", f"ranks, {place}")


def test_a_folder_without_a_tokenizer_raises(tmp_path: Path, small: Path) -> None:
    (tmp_path / "empty").mkdir()
    error = refused(lambda: make_tokenizer(TokenizerSettings(kind="gpt2", path=str(tmp_path / "empty")), ()))
    assert (error.code, error.setting) == ("tokenizer.missing", "tokenizer.path")
    assert error.where == str(tmp_path / "empty" / "tokenizer.json")
    (small / "merges.txt").unlink()
    assert refused(lambda: Tokenizer.load(small)).code == "tokenizer.missing"


def test_an_unreachable_hub(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    program = (
        "from lilliput.data.tokenizers.gpt2 import find_gpt2\n"
        "from lilliput.errors import UserError\n"
        "try: find_gpt2()\n"
        "except UserError as error: print(error.code, error.setting)\n"
    )
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path),
        "LILLIPUT_DATA": str(tmp_path), "TIKTOKEN_CACHE_DIR": str(tmp_path),
    }  # fmt: skip
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["hub.offline", "tokenizer.path"]


def test_without_the_hub_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv("LILLIPUT_DATA", str(tmp_path))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert refused(lambda: make_tokenizer(TokenizerSettings(kind="gpt2"), ())).code == "package.missing"
