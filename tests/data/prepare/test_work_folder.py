"""An interrupted preparation resumes after its last shard, with the same result as without interruption."""

from __future__ import annotations

import json
import random
import signal
import sys
from pathlib import Path

import pytest

from helpers.text_corpora import configure, run, was_built, write
from lilliput.data import prepare as module
from lilliput.data.prepare import corpus_pass, prepare
from lilliput.data.prepare.token_files import Prepared
from lilliput.data.prepare.work_folder import WorkFolder
from lilliput.settings.tree import Config

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills by signals")

SHARD = 4_000
# Prepares with small shards, and kills itself at the n-th call that syncs or renames a file.
PROGRAM = """
import os, sys
from lilliput.data.prepare import corpus_pass, encoding
from lilliput.data.prepare import prepare
from lilliput.settings.tree import Config, DataSettings, TokenizerSettings

source, cache, kind, workers, moment = sys.argv[1:]
corpus_pass.SHARD, corpus_pass.BATCH, encoding.WORTH_WORKERS = 4_000, 700, 2_000
calls = 0

def watched(function):
    def call(*arguments):
        global calls
        calls += 1
        if calls == int(moment):
            os.kill(os.getpid(), 9)
        return function(*arguments)
    return call

os.fsync, os.replace, os.rename = watched(os.fsync), watched(os.replace), watched(os.rename)
data = DataSettings(source=source, cache=cache, workers=int(workers), labelled=source.endswith(".tsv"))
reports = []
config = Config(data=data, tokenizer=TokenizerSettings(kind=kind, vocab_size=300))
found = prepare(config, lambda *progress: reports.append(progress))
print(calls, found.fingerprint, any("resuming after" in phase for phase, _, _ in reports))
"""


def documents(count: int = 300) -> list[str]:
    draw = random.Random(3)
    return [" ".join(draw.choices(["sun", "moon", "tide", "cät", "\n"], k=draw.randrange(1, 40))) for _ in range(count)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("texts") / "stories.txt", documents())


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_pass, "SHARD", SHARD)
    monkeypatch.setattr(corpus_pass, "BATCH", 700)


def everything(prepared: Prepared) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in prepared.folder.iterdir()}


@pytest.mark.parametrize(
    ("kind", "workers", "shares"), [("byte", 1, (0.0, 0.3, 0.7, 0.98, 1.0)), ("word", 2, (0.5, 0.99))]
)
def test_killed_at_any_moment(source: Path, tmp_path: Path, kind: str, workers: int, shares: tuple[float, ...]) -> None:
    whole = prepare(configure(source, tmp_path / "whole", kind))
    arguments = [str(source), str(tmp_path / "killed"), kind, str(workers)]
    process = run(PROGRAM, *arguments, "0")
    out, err = process.communicate()
    assert process.returncode == 0, err
    total = int(out.split()[0])
    assert out.split()[1:] == [whole.fingerprint, "False"]
    assert total > 50, "the kills would hit nothing"
    resumed = 0
    for moment in (max(1, round(total * share)) for share in shares):
        cache = tmp_path / f"killed-{moment}"
        arguments[1] = str(cache)
        process = run(PROGRAM, *arguments, str(moment))
        assert process.communicate() == ("", "")
        assert process.returncode == -signal.SIGKILL
        process = run(PROGRAM, *arguments, "0")
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert out.split()[1] == whole.fingerprint, moment
        resumed += out.split()[2] == "True"
        folder = cache / whole.folder.name
        assert everything(Prepared(folder, {})) == everything(whole)
        assert {path.name for path in cache.iterdir()} == {folder.name, f"{folder.name}.lock"}
    assert resumed >= len(shares) - 2, "only the first and the last moment leave nothing to go on from"


def test_killed_again_and_again(source: Path, tmp_path: Path) -> None:
    """Each process is killed after some steps; together they reach the same result."""
    whole = prepare(configure(source, tmp_path / "whole"))
    for steps in (20, 30):
        process = run(PROGRAM, str(source), str(tmp_path / "killed"), "byte", "1", str(steps))
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    process = run(PROGRAM, str(source), str(tmp_path / "killed"), "byte", "1", "0")
    assert process.communicate()[0].split()[1:] == [whole.fingerprint, "True"]


class Stop(Exception):
    """A failure during the preparation."""


def interrupt(config: Config, monkeypatch: pytest.MonkeyPatch, shards: int = 3) -> Path:
    """Stop after some shards; return the folder that is left."""
    keep, kept = WorkFolder.keep_splits, [0]

    def stop(self: WorkFolder, mark: corpus_pass.Mark) -> None:
        keep(self, mark)
        kept[0] += 1
        if kept[0] == shards:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "keep_splits", stop)
        with pytest.raises(Stop):
            prepare(config)
    (left,) = Path(config.data.cache).glob("*.partial")
    return left


def messages(config: Config) -> list[str]:
    found: list[str] = []
    prepare(config, lambda phase, done, total: found.append(phase) if done == total == 0 else None)
    return found


@pytest.mark.usefixtures("small_shards")
def test_a_preparation_is_resumed_with_a_message(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure(source, tmp_path / "cache", "bpe")
    whole = prepare(configure(source, tmp_path / "whole", "bpe"))
    left = interrupt(config, monkeypatch)
    journal = json.loads((left / "journal.json").read_bytes())
    assert journal["characters"] >= 3 * SHARD
    # Neither fitting the tokenizer nor encoding the documents before the mark is repeated.
    monkeypatch.setattr(module, "make_tokenizer", None)
    batches: list[str] = []
    tasks = corpus_pass.CorpusPass.tasks

    def counted(self: corpus_pass.CorpusPass, *arguments: object) -> object:
        for task in tasks(self, *arguments):  # type: ignore[arg-type]
            batches.extend(task.texts)
            yield task

    monkeypatch.setattr(corpus_pass.CorpusPass, "tasks", counted)
    assert messages(config) == ["resuming after 0 MB"]
    assert len(batches) == sum(bool(text.strip()) for text in documents()) - journal["documents"]
    assert everything(prepare(config)) == everything(whole)
    assert not left.exists()


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("damage", ["source", "bit", "shorter", "missing", "journal", "tokenizer"])
def test_a_preparation_restarts_if_it_cannot_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    source = write(tmp_path / "stories.txt", documents())
    config = configure(source, tmp_path / "cache", "word")
    left = interrupt(config, monkeypatch)
    tokens = left / "files" / "train.tokens"
    match damage:
        case "source":
            write(source, [*documents(), "one more"])
        case "bit":
            tokens.write_bytes(b"\xff" + tokens.read_bytes()[1:])
        case "shorter":
            tokens.write_bytes(tokens.read_bytes()[:1000])
        case "missing":
            tokens.unlink()
        case "journal":
            journal = left / "journal.json"
            journal.write_bytes(journal.read_bytes().replace(b'"documents":1', b'"documents":2'))
        case "tokenizer":
            (left / "files" / "tokenizer.json").write_text("{}")
    assert messages(config) == []
    assert everything(prepare(config)) == everything(prepare(configure(source, tmp_path / "whole", "word")))


@pytest.mark.usefixtures("small_shards")
def test_a_source_that_yields_other_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader may yield other documents although its file is unchanged."""
    source = write(tmp_path / "stories.txt", documents())
    config = configure(source, tmp_path / "cache")
    interrupt(config, monkeypatch)
    other = prepare(configure(write(tmp_path / "other.txt", documents(250)[::-1]), tmp_path / "other"))
    corpus = module.open_corpus(config.data)
    changed = type(corpus)(
        corpus.name,
        corpus.sources,
        corpus.describe,
        0,
        module.open_corpus(configure(tmp_path / "other.txt", tmp_path).data).parts,
    )
    monkeypatch.setattr(module, "open_corpus", lambda settings: changed)
    assert prepare(config).fingerprint == other.fingerprint


@pytest.mark.usefixtures("small_shards")
def test_rebuild_ignores_an_unfinished_preparation(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(source, tmp_path / "cache")
    interrupt(config, monkeypatch)
    assert was_built(config, rebuild=True)
    assert was_built(config, rebuild=True)
    assert not was_built(config)


def test_little_work_is_not_kept(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure(source, tmp_path / "cache", "bpe")

    def stop(self: WorkFolder) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WorkFolder, "close_splits", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(config)
    assert not list((tmp_path / "cache").glob("*.partial"))
    # But the fitted tokenizer of a large corpus is kept.
    monkeypatch.setattr(corpus_pass, "SHARD", 10_000)
    monkeypatch.setattr(WorkFolder, "open_splits", lambda self, names, tokenizer, labelled: stop(self))
    with pytest.raises(KeyboardInterrupt):
        prepare(config)
    assert len(list((tmp_path / "cache").glob("*.partial"))) == 1
