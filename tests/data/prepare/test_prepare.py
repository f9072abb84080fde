"""Prepared data: layout, statistics, reuse, rebuilding, and the state after errors."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.shared_data import DATA, needs_data
from helpers.text_corpora import SPLITS, configure, run, was_built, write
from helpers.user_errors import refused
from lilliput.data import prepare as module
from lilliput.data.corpora import open_corpus
from lilliput.data.prepare import corpus_pass, prepare
from lilliput.data.prepare.token_files import Prepared, read_prepared
from lilliput.data.tokenizers import byte_tokenizer, train_bpe
from lilliput.settings.tree import Config, TokenizerSettings


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "stories.txt", [f"Story {n}: the cät sat {'very ' * (n % 4)}still." for n in range(40)])


@pytest.fixture
def config(source: Path, tmp_path: Path) -> Config:
    return configure(source, tmp_path / "cache")


# Layout and statistics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_layout(source: Path, tmp_path: Path, kind: str) -> None:
    config = configure(source, tmp_path / "cache", kind)
    prepared, corpus = prepare(config), open_corpus(config.data)
    end = prepared.tokenizer.end
    for split in SPLITS:
        file, documents = prepared.split(split), [document.text for document in corpus.documents(split)]
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
def test_round_trip_of_any_documents(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    kept = [re.sub("\r\n?", "\n", text.strip()) for text in texts if text.strip()]
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


def test_batches_do_not_change_the_result(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = prepare(configure(source, tmp_path / "a", "bpe"))
    monkeypatch.setattr(corpus_pass, "BATCH", 50)
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
    train = write(tmp_path / "train.txt", ["ab c", "ab c", "cd", "", "é"])
    validation = write(tmp_path / "validation.txt", ["cd", "cd", "x", "ab c"])
    test = write(tmp_path / "test.txt", ["q " * 5])
    config = configure(train, tmp_path / "cache", validation_source=str(validation), tests=(f"odd={test}",))
    prepared = prepare(config)
    report = prepared.report(4)
    assert report == json.loads(json.dumps(report))
    description = "1 file, documents end at <|endoftext|>"
    zeros = {"train": 0, "validation": 0, "odd": 0}
    assert report == {
        "source": f"{description}; validation: {description}; odd: {description}",
        "folder": str(prepared.folder),
        "tokenizer": "byte",
        "vocab_size": 257,
        "lossy": False,
        "documents": {"train": 4, "validation": 4, "odd": 1},
        "bytes": {"train": 12, "validation": 9, "odd": 9},
        "tokens": {"train": 16, "validation": 13, "odd": 10},
        "words": {"train": 6, "validation": 5, "odd": 5},
        "bytes_per_token": {"train": 12 / 16, "validation": 9 / 13, "odd": 9 / 10},
        "tokens_per_word": {"train": 12 / 6, "validation": 9 / 5, "odd": 9 / 5},
        "unknown_rate": {"train": 0.0, "validation": 0.0, "odd": 0.0},
        "unknown_words": {"train": [], "validation": [], "odd": []},
        "coverage": {"train": None, "validation": None, "odd": None},
        "document_tokens": {
            split: {"mean": float(np.mean(sizes)), "max": max(sizes)}
            | {f"p{percent}": float(np.percentile(sizes, percent)) for percent in (5, 25, 50, 75, 95)}
            for split, sizes in {"train": [4, 4, 2, 2], "validation": [2, 2, 1, 4], "odd": [9]}.items()
        },
        "empty": zeros | {"train": 1},
        "dropped": zeros,
        "line_ends": zeros,
        "labels": None,
        "longest": [
            {"split": "odd", "document": 0, "tokens": 9},
            {"split": "train", "document": 0, "tokens": 4},
            {"split": "train", "document": 1, "tokens": 4},
            {"split": "validation", "document": 3, "tokens": 4},
            {"split": "train", "document": 2, "tokens": 2},
        ],
        "cut": {
            "context": 4,
            "documents": {"train": 2 / 4, "validation": 1 / 4, "odd": 1.0},
            "tokens": {"train": 2 / 16, "validation": 1 / 13, "odd": 6 / 10},
        },
        "duplicates": {
            "within": {"train": 1, "validation": 1, "odd": 0},
            "across": {"validation": 3, "odd": 0},
        },
    }
    assert prepared.splits == ("train", "validation", "odd")
    assert prepared.report()["cut"] is None


@pytest.mark.parametrize("kind", ["word", "character", "bpe", "byte"])
@pytest.mark.parametrize("ends", [True, False])
def test_lengths_and_coverage_are_those_of_the_encoded_texts(kind: str, ends: bool, tmp_path: Path) -> None:
    texts = {
        "train": [" ".join(f"word{n % 7}" for n in range(size)) for size in (1, 2, 3, 5, 8, 13, 40, 41, 42, 99)],
        "validation": ["word1 word9 word2 other", "word3", "new", "word4 word4 word5 word6 word6"],
    }
    paths = {split: write(tmp_path / f"{split}.txt", documents) for split, documents in texts.items()}
    config = configure(paths["train"], tmp_path / "cache", kind, validation_source=str(paths["validation"]))
    settings = replace(config.tokenizer, eos_id=None if not ends else 1)
    prepared = prepare(replace(config, tokenizer=settings))
    report, tokenizer = prepared.report(4), prepared.tokenizer
    assert tokenizer.ends == (ends or kind in ("bpe", "byte"))
    for split, documents in texts.items():
        encoded = tokenizer.encode_batch(documents)
        sizes = np.array([len(ids) for ids in encoded])
        ids = np.concatenate(encoded)
        found = report["document_tokens"][split]
        assert (found.pop("mean"), found.pop("max")) == (sizes.mean(), sizes.max())
        assert found == {f"p{percent}": np.percentile(sizes, percent) for percent in (5, 25, 50, 75, 95)}
        known = (
            None if tokenizer.unknown is None else pytest.approx(float((ids != tokenizer.unknown).mean()), abs=1e-15)
        )
        assert report["coverage"][split] == known
        predictions = sizes + tokenizer.ends
        assert report["cut"]["documents"][split] == (predictions > 4).mean()
        assert report["cut"]["tokens"][split] == np.maximum(predictions - 4, 0).sum() / predictions.sum()


def test_an_empty_file_of_a_folder_gives_no_note(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    write(tmp_path / "texts" / "some.txt", ["one", "two"])
    (tmp_path / "texts" / "empty.txt").touch()
    calls: list[tuple[int, int | None]] = []
    prepare(configure(tmp_path / "texts", tmp_path / "cache"), lambda phase, done, total: calls.append((done, total)))
    assert calls and (0, 0) not in calls


def test_unknown_words_are_reported_as_spelled(tmp_path: Path) -> None:
    train = write(tmp_path / "train.txt", ["the cat sat on the mat", "the cat is here"])
    validation = write(tmp_path / "validation.txt", ["the Dog sat", "the Dog is the Axolotl", "the cat"])
    config = configure(train, tmp_path / "cache", "word", validation_source=str(validation))
    report = prepare(replace(config, tokenizer=replace(config.tokenizer, lowercase=True))).report()
    assert report["unknown_words"] == {"train": [], "validation": [["Dog", 2], ["Axolotl", 1]]}
    assert report["unknown_rate"]["validation"] == 3 / 10
    assert report["lossy"]


def test_a_vocabulary_without_an_end(tmp_path: Path) -> None:
    """The separator of documents is then not predicted and not counted."""
    source = write(tmp_path / "train.txt", ["a b c", "b c", "c"] * 4)
    config = configure(source, tmp_path / "cache", "word")
    config = replace(config, tokenizer=replace(config.tokenizer, sos_id=None, eos_id=None, pad_id=0, unk_id=1))
    prepared = prepare(config)
    file, report = prepared.split("train"), prepared.report(2)
    assert not file.ends
    assert file.predictions == report["tokens"]["train"] == len(file.tokens) - 1 - file.documents
    lengths = np.diff(file.offsets) - 1
    assert report["cut"]["documents"]["train"] == (lengths > 2).mean()


def test_labels_become_classes(tmp_path: Path) -> None:
    source, heldout = tmp_path / "train.tsv", tmp_path / "validation.tsv"
    source.write_text("10\ta text\n9\tanother\n10\ta third\n-1\tone more\n")
    heldout.write_text("9\tx y\n10\tz\n")
    config = configure(source, tmp_path / "cache", validation_source=str(heldout), labelled=True)
    prepared = prepare(config)
    assert prepared.labels == ["-1", "9", "10"]
    assert prepared.split("train").labels.tolist() == [2, 1, 2, 0]
    assert prepared.split("validation").labels.tolist() == [1, 2]
    assert prepared.report()["labels"]["train"] == {"-1": 1, "9": 1, "10": 2}
    assert prepared.report()["labels"]["validation"] == {"-1": 0, "9": 1, "10": 1}
    heldout.write_text("9\tx y\n11\tz\n")
    error = refused(lambda: prepare(config))
    assert error.code == "data.label"
    for fact in ("validation", "'11'", "-1, 9, 10"):
        assert fact in error.what


def test_dropped_documents_are_not_used(tmp_path: Path) -> None:
    train = write(tmp_path / "train.txt", ["one two", "secret", "one two", "three", "secret"])
    validation = write(tmp_path / "validation.txt", ["secret", "four"])
    config = configure(train, tmp_path / "cache", "word", validation_source=str(validation), drop_duplicates="exact")
    prepared = prepare(config)
    report, file = prepared.report(), prepared.split("train")
    assert report["dropped"] == {"train": 3, "validation": 0}
    assert report["duplicates"] == {"within": {"train": 0, "validation": 0}, "across": {"validation": 0}}
    texts = [prepared.tokenizer.decode(part) for part in np.split(file.tokens, file.offsets)[1:-1]]
    assert texts == ["one two", "three"]
    # The tokenizer was not fitted to them.
    assert ["secret", 1] in report["unknown_words"]["validation"]


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
    kept = {document.text for document in open_corpus(config.data).documents("validation")}
    write(tmp_path / "all.txt", ["zebra zebra zebra" if text in kept else text for text in texts])
    assert (prepare(config).folder / "tokenizer.json").read_bytes() == first


def test_a_given_tokenizer_is_used_unchanged(source: Path, tmp_path: Path) -> None:
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
    error = refused(lambda: prepare(missing))
    assert (error.code, error.setting) == ("file.missing", "tokenizer.path")


def test_storybook(tmp_path: Path) -> None:
    config = configure("storybook", tmp_path, documents=30)
    report = prepare(config).report()
    assert report["documents"] == {"train": 30, "validation": 30}
    assert report["duplicates"]["across"] == {"validation": 0}
    assert not was_built(config)
    assert was_built(replace(config, data=replace(config.data, seed=2)))


def test_progress_is_reported(source: Path, tmp_path: Path) -> None:
    reports: list[tuple[str, int, int | None]] = []
    prepare(configure(source, tmp_path / "cache", "bpe"), lambda *progress: reports.append(progress))
    phases = list(dict.fromkeys(phase for phase, _, _ in reports))
    assert phases == ["hashing the source", "fitting the tokenizer", "tokenizing"]
    assert all(done <= total for _, done, total in reports if total is not None)
    assert {phase: done for phase, done, total in reports if done == total}.keys() == {*phases}  # each phase ends


# Rebuilt or reused ---------------------------------------------------------------------------------------------


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
        {"drop_duplicates": "exact"},
        {"tests": ("more=stories.txt",)},
        {"validation_share": 0.2},
        {"separator": "line"},
        {"line_ends": "keep"},
        {"files": ("*.txt",)},
        {"documents": 20},
        {"kind": "bpe"},
    ],
)
def test_settings_that_matter(
    source: Path, tmp_path: Path, change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(configure(source, tmp_path / "cache"))
    assert was_built(configure(source, tmp_path / "cache", **change))  # type: ignore[arg-type]
    assert not was_built(configure(source, tmp_path / "cache"))  # both stay in the cache


def test_settings_that_do_not_matter(
    config: Config, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(config)
    assert not was_built(
        replace(config, tokenizer=replace(config.tokenizer, vocab_size=999))
    )  # a byte tokenizer does not use vocab_size
    assert not was_built(replace(config, name="other", seed=2, model=replace(config.model, dim=64)))
    assert not was_built(replace(config, data=replace(config.data, workers=3, windows="overlapping")))
    monkeypatch.chdir(tmp_path)
    assert not was_built(configure(source.name, Path("cache")))  # a relative form of the same path
    other = configure(source, tmp_path / "cache", validation_source=str(source))
    prepare(other)
    assert not was_built(
        replace(other, seed=9, data=replace(other.data, seed=9, validation_share=0.3))
    )  # there is no random split


def test_versions_matter(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(config)
    monkeypatch.setattr("tokenizers.__version__", "0.0.1")
    assert was_built(config)
    monkeypatch.setattr(module, "FORMAT", 3)
    assert was_built(config)


def test_content_matters_and_dates_do_not(config: Config, source: Path) -> None:
    first = prepare(config)
    os.utime(source, (1, 1))
    assert not was_built(config)
    text = source.read_bytes()
    stat = source.stat()
    source.write_bytes(text.replace(b"Story 7", b"Story 8"))
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the same size and modification time
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
    (folder / "skipped.bin").write_bytes(b"no text\x00")
    assert not was_built(config)
    (folder / "code.py").write_text("text")
    assert was_built(config)
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
def test_damaged_files_are_rebuilt(config: Config, how: str) -> None:
    first = prepare(config)
    names = sorted(path.name for path in first.folder.iterdir())
    assert len(names) == 10
    for name in names:
        damage(first.folder / name, how)
        assert was_built(config), name
        assert prepare(config).manifest["files"] == first.manifest["files"]


def test_every_bit_of_the_manifest_counts(config: Config) -> None:
    path = prepare(config).folder / "manifest.json"
    raw = path.read_bytes()
    corpus, recipe = open_corpus(config.data), json.loads(raw)["recipe"]
    for bit in range(0, 8 * len(raw), 23):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert read_prepared(path.parent, recipe, corpus.sources) is None, bit
    path.write_bytes(raw)
    assert read_prepared(path.parent, recipe, corpus.sources)
    assert json.loads(raw).popitem()[0] == "sha256"  # it ends with its own hash


# Interruption and concurrency -----------------------------------------------------------------------------------------


def only(config: Config, prepared: Prepared) -> bool:
    """Return whether the cache contains only the finished folder and its lock."""
    left = {path.name for path in Path(config.data.cache).iterdir()}
    return left - {f"{prepared.folder.name}.lock"} == {prepared.folder.name}


def test_open_memory_maps_survive_a_rebuild(config: Config, source: Path) -> None:
    first = prepare(config).split("train")
    before = first.tokens.tolist()
    write(source, ["something", "else"])
    second = prepare(config)
    assert first.tokens.tolist() == before != second.split("train").tokens.tolist()
    assert only(config, second)


@pytest.mark.parametrize("moment", ["keep_tokenizer", "open_splits", "close_splits", "put_folder"])
def test_a_failure_keeps_the_earlier_folder(
    config: Config, source: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    first = prepare(config)
    text = source.read_bytes()
    write(source, ["another", "text"])

    def interrupt(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module if moment == "put_folder" else module.WorkFolder, moment, interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(config)
    source.write_bytes(text)
    assert not was_built(config)
    assert only(config, first)  # too little work to keep


def test_concurrent_processes(source: Path, tmp_path: Path) -> None:
    config = configure(source, tmp_path / "cache", "bpe")
    program = f"""
from lilliput.data.prepare import prepare
from lilliput.settings.tree import Config, DataSettings, TokenizerSettings
phases = []
data = DataSettings(source={str(source)!r}, cache={config.data.cache!r})
config = Config(data=data, tokenizer=TokenizerSettings(kind="bpe", vocab_size=300))
found = prepare(config, lambda phase, done, total: phases.append(phase))
print(found.fingerprint, "tokenizing" in phases, found.split("train").predictions)
"""
    processes = [run(program) for _ in range(4)]
    outputs = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert len({(fingerprint, predictions) for fingerprint, _, predictions in outputs}) == 1
    assert sorted(built for _, built, _ in outputs) == ["False"] * 3 + ["True"]
    assert not was_built(config)
    assert only(config, prepare(config))


def test_waiting_is_reported(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    import filelock

    phases: list[str] = []
    acquire, calls = filelock.FileLock.acquire, [0]

    def busy_once(self: filelock.FileLock, **arguments: object) -> object:
        calls[0] += 1
        if calls[0] == 1:
            raise filelock.Timeout("busy")
        return acquire(self, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(filelock.FileLock, "acquire", busy_once)
    prepare(config, lambda phase, done, total: phases.append(phase))
    assert phases[0] == "waiting for another process to prepare the same data"


def test_a_read_only_cache(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(config)

    def forbidden(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "_locked", forbidden)
    assert not was_built(config)


# Errors ----------------------------------------------------------------------------------------------------------


def test_folders_that_cannot_be_written(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(lambda: prepare(configure(source, source / "cache")))
    assert (error.code, error.setting, error.where) == ("file.not-written", "data.cache", str(source / "cache"))
    assert refused(lambda: prepare(configure(source, source))).code == "file.not-written"

    def forbidden(*arguments: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "cache"))

    monkeypatch.setattr(Path, "mkdir", forbidden)
    assert refused(lambda: prepare(configure(source, tmp_path / "cache"))).code == "file.not-written"


def test_a_full_disk(config: Config, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    monkeypatch.setattr(module, "free_bytes", lambda folder: 1234)
    error = refused(lambda: prepare(config))
    assert (error.code, error.setting, error.where) == ("file.not-written", "data.cache", config.data.cache)
    assert f"{2 * source.stat().st_size:,} bytes" in error.what
    assert "1,234" in error.what
    assert [path.suffix for path in Path(config.data.cache).iterdir()] in ([], [".lock"])


def test_a_source_that_changes_while_it_is_read(config: Config, source: Path) -> None:
    def append(phase: str, done: int, total: int | None) -> None:
        if phase == "tokenizing":
            with open(source, "a") as file:
                file.write("more")

    assert refused(lambda: prepare(config, append)).code == "data.changed"


def test_an_error_late_in_the_source_leaves_no_files(config: Config, source: Path) -> None:
    source.write_bytes(source.read_bytes() + b"\xff")
    assert refused(lambda: prepare(config)).code == "file.not-utf8"
    assert [path.suffix for path in Path(config.data.cache).iterdir()] in ([], [".lock"])


def test_splits_without_tokens(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_tokenizer()
    nothing = np.zeros(0, np.uint32)
    monkeypatch.setattr(tokenizer, "encode_arrays", lambda texts, unknown_words: [nothing for _ in texts])
    error = refused(lambda: prepare(config, tokenizer=tokenizer))
    assert error.code == "data.empty"
    assert "train" in error.what
    corpus = open_corpus(config.data)
    parts = tuple(replace(part, read=lambda on_empty: iter([])) for part in corpus.parts)
    monkeypatch.setattr(module, "open_corpus", lambda settings: replace(corpus, parts=parts))
    assert refused(lambda: prepare(config)).code == "data.empty"


def test_a_text_of_two_characters_is_enough(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab")
    prepared = prepare(configure(tmp_path / "a.txt", tmp_path / "cache"))
    assert prepared.split("train").tokens.tolist() == [256, 97, 256]
    assert prepared.split("validation").tokens.tolist() == [256, 98, 256]


@needs_data
def test_real_stories(tmp_path: Path) -> None:
    stories = DATA / "tinystories"
    config = configure(stories / "mixed-train.txt", tmp_path, validation_source=str(stories / "mixed-heldout.txt"))
    report = prepare(config).report()
    assert report["documents"] == {"train": 10_140, "validation": 3_117}
    assert report["duplicates"]["across"] == {"validation": 0}  # the two files are disjoint
    # Each story is followed by a line end, the separator and a line end.
    sizes = {
        split: (stories / f"mixed-{name}.txt").stat().st_size
        for split, name in zip(SPLITS, ("train", "heldout"), strict=True)
    }
    assert all(0 <= sizes[split] - report["bytes"][split] - 15 * report["documents"][split] < 4000 for split in SPLITS)
    assert all(report["tokens"][split] == report["bytes"][split] + report["documents"][split] for split in SPLITS)
