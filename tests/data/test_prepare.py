"""Prepared data: its layout, its figures, when it is reused or made again, and what is left when things go wrong."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lilliput.data import prepare as module
from lilliput.data.corpora import END_OF_TEXT, open_corpus
from lilliput.data.prepare import Prepared, prepare
from lilliput.data.tokenizers import byte_tokenizer, train_bpe
from lilliput.errors import UserError
from lilliput.settings import Config, DataSettings, TokenizerSettings

DATA = Path(os.environ.get("LILLIPUT_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
SPLITS = ("train", "validation")


def write(path: Path, documents: list[str]) -> Path:
    path.write_bytes("".join(f"{text}\n{END_OF_TEXT}\n" for text in documents).encode())
    return path


def configure(
    source: Path | str, cache: Path, kind: str = "byte", seed: int = 1, vocab_size: int = 300, **data: object
) -> Config:
    tokenizer = TokenizerSettings(kind=kind, vocab_size=vocab_size)
    return Config(data=DataSettings(source=str(source), cache=str(cache), **data), tokenizer=tokenizer, seed=seed)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "stories.txt", [f"Story {n}: the cät sat {'very ' * (n % 4)}still." for n in range(40)])


@pytest.fixture
def config(source: Path, tmp_path: Path) -> Config:
    return configure(source, tmp_path / "cache")


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as found:
        call()
    told = str(found.value)
    assert len(told.splitlines()) <= 3, told
    return told


def was_built(config: Config, **arguments: object) -> bool:
    phases: list[str] = []
    prepare(config, lambda phase, done, total: phases.append(phase), **arguments)  # type: ignore[arg-type]
    return "tokenizing train" in phases


# Layout and figures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_layout(source: Path, tmp_path: Path, kind: str) -> None:
    config = configure(source, tmp_path / "cache", kind)
    prepared, corpus = prepare(config), open_corpus(config.data, config.seed)
    end = prepared.tokenizer.end
    for split in SPLITS:
        file, documents = prepared.split(split), list(corpus.documents(split))
        assert isinstance(file.tokens, np.memmap)
        assert file.tokens.dtype == np.dtype("<u2")
        assert not file.tokens.flags.writeable
        assert file.tokens[0] == end
        assert file.offsets.dtype == file.document_bytes.dtype == np.dtype("<i8")
        assert (file.offsets[0], file.offsets[-1]) == (1, len(file.tokens))
        assert file.documents == len(documents)
        assert file.predictions == len(file.tokens) - 1
        assert file.bytes == sum(len(text.encode()) for text in documents)
        for index, text in enumerate(documents):
            ids = file.tokens[file.offsets[index] : file.offsets[index + 1]].tolist()
            assert ids == [*prepared.tokenizer.encode(text), end]
            assert file.document_bytes[index] == len(text.encode())


@settings(max_examples=25)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00<"), min_size=1),
        min_size=2,
        max_size=12,
    )
)
def test_any_documents_come_back(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    kept = [text.strip() for text in texts if text.strip()]
    if len(kept) < 2:
        return
    folder = tmp_path_factory.mktemp("any")
    path = folder / "any.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    prepared = prepare(configure(path, folder / "cache"))
    found = []
    for split in SPLITS:
        file = prepared.split(split)
        found += [prepared.tokenizer.decode(part) for part in np.split(file.tokens, file.offsets)[1:-1]]
    assert sorted(found) == sorted(kept)
    assert sum(prepared.report()["empty"].values()) == len(texts) - len(kept)


def test_many_batches_are_one(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = prepare(configure(source, tmp_path / "a", "bpe"))
    monkeypatch.setattr(module, "BATCH", 50)
    parts = prepare(configure(source, tmp_path / "b", "bpe"))
    assert whole.manifest["files"] == parts.manifest["files"]


def test_large_vocabularies_take_four_bytes(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_tokenizer()
    monkeypatch.setattr(tokenizer, "vocab_size", 65_536)
    assert prepare(config, tokenizer=tokenizer).split("train").tokens.dtype == np.dtype("<u2")
    monkeypatch.setattr(tokenizer, "vocab_size", 65_537)
    tokenizer.__dict__["sha256"] = "another"
    assert prepare(config, tokenizer=tokenizer).split("train").tokens.dtype == np.dtype("<u4")


def test_report(tmp_path: Path) -> None:
    train = write(tmp_path / "train.txt", ["ab", "ab", "cd", "", "é"])
    validation = write(tmp_path / "validation.txt", ["cd", "cd", "x", "ab"])
    prepared = prepare(configure(train, tmp_path / "cache", validation_source=str(validation)))
    report = prepared.report()
    assert report == json.loads(json.dumps(report))
    assert report == {
        "source": "1 file, documents end at <|endoftext|>; validation: 1 file, documents end at <|endoftext|>",
        "folder": str(prepared.folder),
        "tokenizer": "byte",
        "vocab_size": 257,
        "lossy": False,
        "documents": {"train": 4, "validation": 4},
        "bytes": {"train": 8, "validation": 7},
        "tokens": {"train": 13, "validation": 12},
        "bytes_per_token": {"train": 8 / 12, "validation": 7 / 11},
        "unknown_rate": {"train": 0.0, "validation": 0.0},
        "empty": {"train": 1, "validation": 0},
        "duplicates": {"within": {"train": 1, "validation": 1}, "across": 3},
    }


def test_the_tokenizer_sees_the_training_split_only(tmp_path: Path) -> None:
    texts = [f"common words number {n}" for n in range(50)]
    found = []
    for secret in ("zebra", "xylophone"):
        validation = write(tmp_path / "validation.txt", [f"{secret} {secret} common {secret}"] * 40)
        train = write(tmp_path / "train.txt", texts)
        prepared = prepare(
            configure(train, tmp_path / "cache", "bpe", vocab_size=400, validation_source=str(validation))
        )
        assert not any(secret[:3] in prepared.tokenizer.token(one) for one in range(prepared.tokenizer.vocab_size))
        found.append((prepared.folder / "tokenizer.json").read_bytes())
    assert found[0] == found[1]
    # And with a share of one source: swap the words of every validation document, nothing else.
    config = configure(write(tmp_path / "all.txt", texts), tmp_path / "cache", "bpe", vocab_size=400)
    first = (prepare(config).folder / "tokenizer.json").read_bytes()
    kept = set(open_corpus(config.data, config.seed).documents("validation"))
    write(tmp_path / "all.txt", ["zebra zebra zebra" if text in kept else text for text in texts])
    assert (prepare(config).folder / "tokenizer.json").read_bytes() == first


def test_a_given_tokenizer_is_used_as_it_is(source: Path, tmp_path: Path) -> None:
    given_one = train_bpe(["something else entirely"] * 3, 280)
    config = configure(source, tmp_path / "cache", "bpe")
    prepared = prepare(config, tokenizer=given_one)
    assert prepared.tokenizer.sha256 == given_one.sha256 == prepared.manifest["tokenizer"]["sha256"]
    assert not was_built(config, tokenizer=given_one)
    assert was_built(config)
    given_one.save(tmp_path / "mine.json")
    by_path = replace(config, tokenizer=TokenizerSettings(path=str(tmp_path / "mine.json")))
    assert prepare(by_path).folder == prepared.folder
    train_bpe(["yet another one"] * 3, 280).save(tmp_path / "mine.json")
    assert prepare(by_path).folder != prepared.folder
    missing = replace(config, tokenizer=TokenizerSettings(path=str(tmp_path / "none.json")))
    assert "no such tokenizer" in refusal(lambda: prepare(missing))


def test_storybook(tmp_path: Path) -> None:
    config = configure("storybook", tmp_path, documents=30)
    report = prepare(config).report()
    assert report["documents"] == {"train": 30, "validation": 30}
    assert report["duplicates"]["across"] == 0
    assert not was_built(config)
    assert was_built(replace(config, seed=2))


def test_progress_is_told(source: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    prepare(configure(source, tmp_path / "cache", "bpe"), lambda *what: told.append(what))
    phases = list(dict.fromkeys(phase for phase, _, _ in told))
    assert phases == ["hashing the source", "fitting the tokenizer", "tokenizing train", "tokenizing validation"]
    assert all(done == total for phase, done, total in told if phase != "hashing the source")


# Made again or reused --------------------------------------------------------------------------------------------


def test_nothing_changed(config: Config) -> None:
    assert was_built(config)
    first = prepare(config)
    stamps = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    assert not was_built(config)
    assert prepare(config).manifest == first.manifest
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == stamps
    assert prepare(config).fingerprint == first.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"validation_share": 0.2},
        {"separator": "line"},
        {"documents": 20},
        {"kind": "bpe"},
    ],
)
def test_settings_that_matter(source: Path, tmp_path: Path, change: dict[str, object]) -> None:
    prepare(configure(source, tmp_path / "cache"))
    assert was_built(configure(source, tmp_path / "cache", **change))  # type: ignore[arg-type]
    assert not was_built(configure(source, tmp_path / "cache"))  # both are kept


def test_settings_that_do_not_matter(
    config: Config, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(config)
    assert not was_built(replace(config, tokenizer=replace(config.tokenizer, vocab_size=999)))  # bytes are bytes
    assert not was_built(replace(config, name="other", model=replace(config.model, dim=64)))
    monkeypatch.chdir(tmp_path)
    assert not was_built(configure(source.name, Path("cache")))  # another way to say the same path
    other = configure(source, tmp_path / "cache", validation_source=str(source))
    prepare(other)
    assert not was_built(replace(other, seed=9, data=replace(other.data, validation_share=0.3)))  # nothing is drawn


def test_versions_matter(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(config)
    monkeypatch.setattr("tokenizers.__version__", "0.0.1")
    assert was_built(config)
    monkeypatch.setattr(module, "FORMAT", 2)
    assert was_built(config)


def test_content_matters_and_dates_do_not(config: Config, source: Path) -> None:
    first = prepare(config)
    os.utime(source, (1, 1))
    assert not was_built(config)
    text = source.read_bytes()
    stat = source.stat()
    source.write_bytes(text.replace(b"Story 7", b"Story 8"))
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the same size and date: a copy that keeps dates
    assert was_built(config)
    second = prepare(config)
    assert second.folder == first.folder
    assert second.fingerprint != first.fingerprint
    source.write_bytes(text)
    assert was_built(config)
    assert prepare(config).fingerprint == first.fingerprint
    source.write_bytes(text + b"One more." * 9)
    assert was_built(config)


def test_files_of_a_folder_matter(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    write(folder / "a.txt", ["one", "two"])
    config = configure(folder, tmp_path / "cache")
    assert was_built(config)
    (folder / "ignored.py").write_text("no text")
    assert not was_built(config)
    write(folder / "b.txt", ["three"])
    assert was_built(config)
    (folder / "b.txt").rename(folder / "c.txt")
    assert was_built(config)
    (folder / "c.txt").unlink()
    assert was_built(config)


def damage(path: Path, how: str) -> None:
    raw = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
        return
    if how == "truncated":
        del raw[-1:]
    elif how == "empty":
        raw.clear()
    elif how == "longer":
        raw += b"\0\0"
    else:
        raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("how", ["missing", "truncated", "empty", "longer", "bit"])
def test_damaged_files_are_made_again(config: Config, how: str) -> None:
    first = prepare(config)
    names = sorted(path.name for path in first.folder.iterdir())
    assert len(names) == 8
    for name in names:
        damage(first.folder / name, how)
        assert was_built(config), name
        assert prepare(config).manifest["files"] == first.manifest["files"]


def test_every_bit_of_the_manifest_counts(config: Config) -> None:
    path = prepare(config).folder / "manifest.json"
    raw = path.read_bytes()
    corpus = open_corpus(config.data, config.seed)
    recipe = module._recipe(config, None)
    for bit in range(0, 8 * len(raw), 23):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert module._reuse(path.parent, recipe, corpus.sources, module.silent) is None, bit
    path.write_bytes(raw)
    assert module._reuse(path.parent, recipe, corpus.sources, module.silent)
    assert json.loads(raw).popitem()[0] == "sha256"  # it ends with the hash of itself


# Interrupted and at once -----------------------------------------------------------------------------------------


def only(config: Config, prepared: Prepared) -> bool:
    """Nothing is in the cache but the finished folder and its lock."""
    left = {path.name for path in Path(config.data.cache).iterdir()}
    return left - {f"{prepared.folder.name}.lock"} == {prepared.folder.name}


def test_open_maps_survive_a_new_edition(config: Config, source: Path) -> None:
    first = prepare(config).split("train")
    before = first.tokens.tolist()
    write(source, ["something", "else"])
    second = prepare(config)
    assert first.tokens.tolist() == before != second.split("train").tokens.tolist()
    assert only(config, second)


@pytest.mark.parametrize("name", ["train.bin", "validation.offsets.npy", "tokenizer.json", "manifest.json"])
def test_a_failure_leaves_what_was_there(
    config: Config, source: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    first = prepare(config)
    text = source.read_bytes()
    write(source, ["another", "text"])
    durable = module._durable

    def failing(path: Path) -> object:
        if path.name == name:
            raise KeyboardInterrupt
        return durable(path)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_durable", failing)
        with pytest.raises(KeyboardInterrupt):
            prepare(config)
    source.write_bytes(text)
    assert not was_built(config)
    assert only(config, first)


def test_leftovers_of_a_killed_process_are_removed(config: Config, source: Path) -> None:
    program = f"""
import os
from pathlib import Path
from lilliput.data import prepare as module
from lilliput.settings import Config, DataSettings, TokenizerSettings
module.put_folder = lambda work, folder: os.kill(os.getpid(), 9)
data = DataSettings(source={str(source)!r}, cache={config.data.cache!r})
module.prepare(Config(data=data, tokenizer=TokenizerSettings(kind="byte", vocab_size=300)))
"""
    with run(program) as process:
        assert process.wait() == -9
    assert len(list(Path(config.data.cache).glob(".writing-*"))) == 1
    assert was_built(config)
    assert only(config, prepare(config))


def run(program: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)


def test_processes_at_once(source: Path, tmp_path: Path) -> None:
    config = configure(source, tmp_path / "cache", "bpe")
    program = f"""
from lilliput.data.prepare import prepare
from lilliput.settings import Config, DataSettings, TokenizerSettings
phases = []
data = DataSettings(source={str(source)!r}, cache={config.data.cache!r})
config = Config(data=data, tokenizer=TokenizerSettings(kind="bpe", vocab_size=300))
found = prepare(config, lambda phase, done, total: phases.append(phase))
print(found.fingerprint, "tokenizing train" in phases, found.split("train").predictions)
"""
    processes = [run(program) for _ in range(4)]
    told = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert len({(fingerprint, predictions) for fingerprint, _, predictions in told}) == 1
    assert sorted(built for _, built, _ in told) == ["False"] * 3 + ["True"]
    assert not was_built(config)
    assert only(config, prepare(config))


def test_waiting_is_told(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    import filelock

    told: list[str] = []
    acquire, calls = filelock.FileLock.acquire, [0]

    def busy_once(self: filelock.FileLock, **arguments: object) -> object:
        calls[0] += 1
        if calls[0] == 1:
            raise filelock.Timeout("busy")
        return acquire(self, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(filelock.FileLock, "acquire", busy_once)
    prepare(config, lambda phase, done, total: told.append(phase))
    assert told[0] == "waiting for another process that prepares the same data"


def test_a_cache_that_may_only_be_read(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(config)

    def forbidden(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "_locked", forbidden)
    assert not was_built(config)


# Mistakes --------------------------------------------------------------------------------------------------------


def test_folders_that_cannot_be_written(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = refusal(lambda: prepare(configure(source, source / "cache")))
    assert "cannot write prepared data: Not a directory" in sentence
    assert str(source / "cache") in sentence
    assert "--data.cache" in sentence
    assert "cannot write prepared data" in refusal(lambda: prepare(configure(source, source)))

    def forbidden(*arguments: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "cache"))

    monkeypatch.setattr(Path, "mkdir", forbidden)
    assert "cannot write prepared data: Permission denied" in refusal(
        lambda: prepare(configure(source, tmp_path / "cache"))
    )


def test_a_full_disk(config: Config, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    monkeypatch.setattr(module, "free_bytes", lambda folder: 1234)
    sentence = refusal(lambda: prepare(config))
    assert (
        f"the disk is full: prepared data needs up to {2 * source.stat().st_size:,} bytes, 1,234 are free" in sentence
    )
    assert config.data.cache in sentence
    assert "free some space" in sentence
    assert [path.suffix for path in Path(config.data.cache).iterdir()] in ([], [".lock"])


def test_a_source_that_changes_meanwhile(config: Config, source: Path) -> None:
    def append(phase: str, done: int, total: int | None) -> None:
        if phase == "tokenizing validation":
            with open(source, "a") as file:
                file.write("more")

    assert "the file changed while it was read" in refusal(lambda: prepare(config, append))


def test_a_mistake_deep_in_the_source_leaves_nothing(config: Config, source: Path) -> None:
    source.write_bytes(source.read_bytes() + b"\xff")
    assert "not UTF-8" in refusal(lambda: prepare(config))
    assert [path.suffix for path in Path(config.data.cache).iterdir()] in ([], [".lock"])


def test_splits_without_tokens(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_tokenizer()
    monkeypatch.setattr(tokenizer, "encode_batch", lambda texts: [[] for _ in texts])
    assert "the train split has no tokens" in refusal(lambda: prepare(config, tokenizer=tokenizer))
    corpus = replace(open_corpus(config.data, 1), readers=dict.fromkeys(SPLITS, lambda on_empty: iter([])))
    monkeypatch.setattr(module, "open_corpus", lambda settings, seed: corpus)
    assert "the train split has no documents" in refusal(lambda: prepare(config))


def test_a_text_of_two_characters_is_enough(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab")
    prepared = prepare(configure(tmp_path / "a.txt", tmp_path / "cache"))
    assert prepared.split("train").tokens.tolist() == [256, 97, 256]
    assert prepared.split("validation").tokens.tolist() == [256, 98, 256]


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared data: set LILLIPUT_DATA to its folder")
def test_real_stories(tmp_path: Path) -> None:
    stories = DATA / "tinystories"
    config = configure(stories / "mixed-train.txt", tmp_path, validation_source=str(stories / "mixed-heldout.txt"))
    report = prepare(config).report()
    assert report["documents"] == {"train": 10_140, "validation": 3_117}
    assert report["duplicates"]["across"] == 0  # the two files are disjoint
    # Each story is followed by a line end, the mark and a line end.
    sizes = {
        split: (stories / f"mixed-{name}.txt").stat().st_size
        for split, name in zip(SPLITS, ("train", "heldout"), strict=True)
    }
    assert all(0 <= sizes[split] - report["bytes"][split] - 15 * report["documents"][split] < 4000 for split in SPLITS)
    assert all(report["tokens"][split] == report["bytes"][split] + report["documents"][split] + 1 for split in SPLITS)
