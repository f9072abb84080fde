"""Workers: the same bytes for any number of them, and a clean end if one of them or the parent dies."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.text_corpora import configure, run, write
from helpers.user_errors import refused
from lilliput.data.prepare import corpus_pass, encoding, prepare
from lilliput.data.prepare.encoding import Encoded, Encoders, encode
from lilliput.data.tokenizers import Tokenizer, byte_tokenizer, train_bpe


@dataclass
class Texts:
    texts: list[str] = field(default_factory=list)


def some_texts(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(["sun", "moon", "Tide", "cät", "\n"], k=draw.randrange(1, 60))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_bpe(some_texts(50), 300)


@pytest.fixture(autouse=True)
def workers_for_little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "WORTH_WORKERS", 1000)


def test_a_batch(tokenizer: Tokenizer) -> None:
    texts = ["sun moon", "cät", "sun moon"]
    found = encode(tokenizer, texts)
    ids = [tokenizer.encode(text) for text in texts]
    assert np.frombuffer(found.tokens, "<u2").tolist() == [one for row in ids for one in (*row, tokenizer.end)]
    assert np.frombuffer(found.lengths, "<i8").tolist() == [len(row) for row in ids]
    assert np.frombuffer(found.sizes, "<i8").tolist() == [8, 4, 8]
    first, second, third = np.frombuffer(found.hashes, "<u8").tolist()
    assert first == third != second
    assert (found.words, found.unknown, found.unknown_words) == (5, 0, {})


def test_an_end_that_is_also_the_unknown_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in GPT-2's tokenizer.json: end tokens of documents are not unknown words."""
    tokenizer = byte_tokenizer()
    monkeypatch.setattr(tokenizer, "unknown", tokenizer.end)
    assert encode(tokenizer, ["one", "two"]).unknown == 0


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_order_is_kept(tokenizer: Tokenizer, workers: int) -> None:
    tasks = [Texts(some_texts(1 + 37 * number % 50, number) if number % 4 else []) for number in range(40)]
    with Encoders(tokenizer, workers) as encoders:
        found: list[tuple[Texts, Encoded | None]] = list(encoders.run(tasks))
        assert len(encoders._workers) == (workers if workers > 1 else 0)
    assert [task for task, _ in found] == tasks
    for task, outcome in found:
        assert outcome == (encode(tokenizer, task.texts) if task.texts else None)


def test_few_batches_are_queued(tokenizer: Tokenizer) -> None:
    given = [0]

    def tasks() -> object:
        for number in range(100):
            given[0] += 1
            yield Texts(some_texts(60, number))

    with Encoders(tokenizer, 2) as encoders:
        for done, _ in enumerate(encoders.run(tasks())):  # type: ignore[type-var]
            assert given[0] - done <= encoding.AHEAD * 2 + 1


@pytest.mark.parametrize("kind", ["byte", "word"])
def test_workers_and_batches_do_not_change_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    texts = some_texts(400)
    source = write(tmp_path / "train.txt", texts)
    heldout = write(tmp_path / "heldout.txt", [f"{text} word{number}" for number, text in enumerate(texts[:200])])
    found = []
    for workers, batch in ((1, 1 << 18), (2, 900), (3, 5000)):
        monkeypatch.setattr(corpus_pass, "BATCH", batch)
        config = configure(source, tmp_path / str(batch), kind, validation_source=str(heldout), workers=workers)
        folder = prepare(config).folder
        found.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert found[0] == found[1] == found[2]


def test_a_worker_that_is_killed(tokenizer: Tokenizer) -> None:
    def drain() -> None:
        with Encoders(tokenizer, 2) as encoders:
            for number, _ in enumerate(encoders.run(Texts(some_texts(60, number)) for number in range(1000))):
                if number == 30:
                    os.kill(encoders._workers[1]._process.pid, signal.SIGKILL)

    error = refused(drain)
    assert (error.code, error.setting) == ("process.lost", "data.workers")
    assert "signal 9" in error.what


def test_a_worker_that_cannot_start(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [Texts(some_texts(60, number)) for number in range(9)]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [entry for entry in sys.path if entry.endswith((".zip", "python3.11"))])
        patch.setenv("PYTHONNOUSERSITE", "1")
        patch.setattr(Tokenizer, "to_json", lambda self: "{}")

        def drain() -> None:
            with Encoders(tokenizer, 2) as encoders:
                list(encoders.run(tasks))

        error = refused(drain)
        assert (error.code, error.setting) == ("process.lost", "data.workers")
        assert "code 1" in error.what
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    error = refused(drain)
    assert (error.code, error.where) == ("process.lost", "/nowhere/python")
    monkeypatch.setattr(sys, "executable", "")
    assert encoding.usable_cores() == 1


def test_an_error_in_a_worker_is_raised_unchanged(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that raises a UserError, as for a text that a tokenizer cannot encode. All its parts are kept."""
    worker = encoding._Worker(tokenizer.to_json())
    try:
        parts = ["the tokenizer fails on this text", None, "use another", "tokenizer.invalid", "tokenizer.path"]
        monkeypatch.setattr(encoding, "receive", lambda pipe: parts)
        error = refused(lambda: worker.ask(["text"]))
        assert [error.what, error.where, error.fix, error.code, error.setting] == parts
    finally:
        worker.end(at_once=True)


def test_a_message_that_cannot_be_sent_raises(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = encoding._Worker(tokenizer.to_json())
    try:
        worker.ask(["text"])

        def refuse(value: object) -> bytes:
            raise ValueError("unmarshallable object")  # as for a text of 2 GB

        monkeypatch.setattr(encoding.marshal, "dumps", refuse)
        with ThreadPoolExecutor(1) as threads:
            pending = threads.submit(worker.ask, ["text"])
            try:
                assert refused(lambda: pending.result(timeout=240)).setting == "data.workers"
            finally:
                worker._process.kill()
    finally:
        worker.end(at_once=True)


def test_large_batches_are_encoded_in_this_process(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [Texts(some_texts(60, number)) for number in range(6)]
    tasks.insert(3, Texts([" ".join(some_texts(2000))]))
    expected = [encode(tokenizer, task.texts) for task in tasks]
    monkeypatch.setattr(encoding, "LARGEST_MESSAGE", 20_000)
    sent = []

    def ask(worker: encoding._Worker, texts: list[str], real: Any = encoding._Worker.ask) -> Encoded:
        sent.append(max(map(len, texts)))
        return real(worker, texts)  # type: ignore[no-any-return]

    monkeypatch.setattr(encoding._Worker, "ask", ask)
    with Encoders(tokenizer, 2) as encoders:
        assert [found for _, found in encoders.run(tasks)] == expected
    assert sent
    assert max(sent) < 20_000


PROGRAM = """
import sys
from lilliput.data.prepare import encoding
from lilliput.data.prepare import prepare
from lilliput.settings.tree import Config, DataSettings, TokenizerSettings
encoding.WORTH_WORKERS = 1000
print("once")
data = DataSettings(source=sys.argv[1], cache=sys.argv[2], workers=2)
print(prepare(Config(data=data, tokenizer=TokenizerSettings(kind="byte"))).split("train").documents)
"""


def test_a_script_without_a_guard(tmp_path: Path) -> None:
    """Workers do not run the user's script again, and import nothing from the user's folder."""
    source = write(tmp_path / "train.txt", some_texts(400))
    (tmp_path / "script.py").write_text(PROGRAM)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "numpy.py").write_text("raise SystemExit('the wrong numpy')")
    found = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(source), str(tmp_path / "cache")],
        cwd=tmp_path / "elsewhere",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["once", "360"]
    assert found.stderr == ""


LONG = """
import sys
from lilliput.cli import main
from lilliput.data.prepare import corpus_pass, encoding
encoding.WORTH_WORKERS, corpus_pass.BATCH, corpus_pass.SHARD = 1000, 4000, 20000
sys.exit(main(["prepare", sys.argv[1], "--data.cache", sys.argv[2], "--data.workers", "2", "--tokenizer.path", sys.argv[3]]))
"""


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(tokenizer: Tokenizer, tmp_path: Path, number: signal.Signals) -> None:
    source = write(tmp_path / "train.txt", some_texts(60_000))
    tokenizer.save(tmp_path / "tokenizer.json")
    process = run(LONG, str(source), str(tmp_path / "cache"), str(tmp_path / "tokenizer.json"), own_group=True)
    deadline = time.monotonic() + 240
    while len(children(process.pid)) < 2 or not any(
        b'"documents":0' not in path.read_bytes() for path in tmp_path.glob("cache/*.partial/journal.json")
    ):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = children(process.pid)
    os.killpg(process.pid, number)  # the whole process group, as a terminal does
    out, err = process.communicate(timeout=240)
    assert out == ""
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert [line for line in err.splitlines() if line] == [
            "note: stopped; the finished part is kept, run the same command again to resume",
            "lilliput: stopped",
        ]
    else:
        assert (process.returncode, err) == (-9, "")
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
