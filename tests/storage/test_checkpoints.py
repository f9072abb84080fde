"""A checkpoint is complete or absent, and a single changed bit is an error."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.user_errors import refused
from lilliput.storage import atomic_files as files
from lilliput.storage import checkpoints as store
from lilliput.storage.checkpoints import FILES, MANIFEST, Checkpoint, save_checkpoint
from lilliput.storage.run_folders import RunFolder
from lilliput.storage.state_format import take_apart

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")


def save(run: RunFolder, step: int, value: float | None = None, elements: int = 4) -> Checkpoint:
    """Save a checkpoint with `value` in every part."""
    value = float(step) if value is None else value
    return save_checkpoint(
        run,
        step,
        model={"weight": torch.full((elements,), value)},
        state={"moment": torch.full((elements,), value)},
        state_json={"value": value},
        config={"model": {"dim": 4}},
        tokenizer_json='{"é":1}',
    )


def is_damaged(action: Callable[[], object], path: Path) -> bool:
    """Return whether the action raises that this file of a checkpoint is damaged."""
    error = refused(action)
    return (error.code, error.where) == ("checkpoint.damaged", str(path))


def not_written(action: Callable[[], object], path: Path) -> str:
    """Return the message of the error that this file or folder cannot be written."""
    error = refused(action)
    assert (error.code, error.where) == ("file.not-written", str(path))
    return error.what


def leftovers(run: RunFolder) -> list[str]:
    return [path.name for path in run.folder.rglob(".*") if path.name != ".lock"]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if possible, where flushing is fast."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def run(memory: Path) -> RunFolder:
    return RunFolder.create(memory / "demo", {"model": {"dim": 4}}, overwrite=False)


# ---- round trips


def test_round_trip_of_a_checkpoint(run: RunFolder) -> None:
    table = torch.randn(5, 3, dtype=torch.float64)
    model = {
        "embedding": table,
        "head": table,  # tied: the same memory under two names
        "row": table[1],  # a view of a part of it
        "turned": table.T,  # not contiguous
        "half": torch.randn(7).to(torch.bfloat16),
        "nothing": torch.empty(0, 3),
        "also_nothing": torch.empty(0),
        "parameter": torch.nn.Parameter(torch.randn(2)),
    }
    state = {"step": torch.tensor(3.0), "generator": torch.get_rng_state(), "count": torch.tensor([2**60])}
    config = {"name": None, "model": {"window": [None, 8], "path": "caf\udce9"}, "text": "ü"}
    saved = save_checkpoint(
        run, 500, model=model, state=state, state_json={"a": 1e-30}, config=config, tokenizer_json="ø\r\n"
    )
    assert saved.folder == run.folder / "checkpoints" / "step-000500"
    assert sorted(os.listdir(saved.folder)) == sorted([*FILES, MANIFEST])
    checkpoint = Checkpoint.open(saved.folder)
    assert (checkpoint, checkpoint.step, checkpoint.name) == (saved, 500, "step-000500")
    for loaded, given_ in ((checkpoint.load_model(), model), (checkpoint.load_state(), state)):
        assert loaded.keys() == given_.keys()
        for name, tensor in given_.items():
            assert loaded[name].dtype == tensor.dtype
            assert torch.equal(loaded[name], tensor), name
    assert checkpoint.config() == config
    assert checkpoint.state_json() == {"a": 1e-30}
    assert checkpoint.tokenizer_json() == "ø\r\n"
    assert checkpoint.size() == sum(path.stat().st_size for path in saved.folder.iterdir())


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
dtypes = st.sampled_from(
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(dtypes, shapes),
        max_size=4,
    )
)
def test_round_trip_of_any_tensors(run: RunFolder, kinds: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
    model = {name: torch.randint(0, 2, shape).to(dtype) for name, (dtype, shape) in kinds.items()}
    saved = save_checkpoint(run, 1, model=model, state={}, state_json={}, config={}, tokenizer_json="")
    loaded = saved.load_model()
    assert loaded.keys() == model.keys()
    assert all(torch.equal(loaded[name], model[name]) and loaded[name].dtype == model[name].dtype for name in model)


def test_same_content_gives_same_bytes(run: RunFolder) -> None:
    first = {path.name: path.read_bytes() for path in save(run, 1).folder.iterdir()}
    assert first == {path.name: path.read_bytes() for path in save(run, 1).folder.iterdir()}


def test_the_labels_of_a_classifier_are_in_the_manifest(run: RunFolder) -> None:
    """Labels are any text, in order; other models have no such key."""
    names = ["W. Bush", "naïve", "0", "日本"]
    weights = {"weight": torch.zeros(2)}
    named = save_checkpoint(
        run, 1, model=weights, state=weights, state_json={}, config={}, tokenizer_json="{}", labels=names
    )
    named.verify()
    assert Checkpoint.open(named.folder).labels() == names
    assert save(run, 2).labels() is None
    manifest = named.folder / MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b"W. Bush", b"H. Bush"))
    assert is_damaged(named.labels, manifest)


def test_the_manifest_has_the_documented_format(run: RunFolder) -> None:
    folder = save(run, 7).folder
    text = (folder / MANIFEST).read_bytes()
    content = json.loads(text)
    assert text == json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    seal = content.pop("this_sha256")
    body = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    assert seal == hashlib.sha256(body).hexdigest()
    assert text.endswith(f',"this_sha256":"{seal}"}}'.encode())
    sizes = {name: len((folder / name).read_bytes()) for name in FILES}
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}
    files = {name: {"bytes": sizes[name], "sha256": hashes[name]} for name in FILES}
    assert content == {"files": files, "format": 1, "step": 7}


def test_a_replaced_checkpoint_is_the_new_one(run: RunFolder) -> None:
    save(run, 3, value=1.0)
    save(run, 3, value=2.0)
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [3]
    assert run.checkpoints()[0].load_model()["weight"][0] == 2.0
    assert leftovers(run) == []


# ---- damage


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_every_changed_bit_is_found(run: RunFolder, name: str) -> None:
    folder = save(run, 7).folder
    data = (folder / name).read_bytes()
    with open(folder / name, "r+b", buffering=0) as file:
        for position, byte in enumerate(data):
            for bit in range(8):
                file.seek(position)
                file.write(bytes([byte ^ 1 << bit]))
                assert is_damaged(Checkpoint(folder, 7).verify, folder / name)
            file.seek(position)
            file.write(bytes([byte]))
    Checkpoint(folder, 7).verify()


LOADERS: list[Callable[[Checkpoint], object]] = [
    Checkpoint.verify,
    Checkpoint.load_model,
    Checkpoint.load_state,
    Checkpoint.config,
    Checkpoint.state_json,
    Checkpoint.tokenizer_json,
]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    run = RunFolder.create(tmp_path_factory.mktemp("large") / "demo", {}, overwrite=False)
    return save(run, 12, elements=50_000)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([*FILES, MANIFEST]), st.integers(0, 2**40), st.sampled_from(LOADERS))
def test_any_changed_bit_is_found_by_every_method(
    large: Checkpoint, name: str, bit: int, loader: Callable[[Checkpoint], object]
) -> None:
    path = large.folder / name
    data = path.read_bytes()
    try:
        path.write_bytes(flip(data, bit % (len(data) * 8)))
        assert is_damaged(lambda: loader(Checkpoint(large.folder, 12)), path)
    finally:
        path.write_bytes(data)


def test_the_parsed_bytes_are_the_hashed_bytes(run: RunFolder) -> None:
    checkpoint = save(run, 1)
    checkpoint.verify()
    path = checkpoint.folder / "model.safetensors"
    path.write_bytes(flip(path.read_bytes(), -1))  # after the verification, before the load
    assert is_damaged(checkpoint.load_model, path)


Damage = Callable[[Path], object]
DAMAGES: dict[str, tuple[Damage, str]] = {
    "missing": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), MANIFEST),
    "unknown": (lambda folder: (folder / "extra.bin").touch(), "extra.bin"),
    "shorter": (lambda folder: os.truncate(folder / "tokenizer.json", 3), "tokenizer.json"),
    "other bytes": (lambda folder: (folder / "tokenizer.json").write_bytes(b"12345678"), "tokenizer.json"),
    "empty manifest": (lambda folder: (folder / MANIFEST).write_bytes(b""), MANIFEST),
    "a folder for a file": (
        lambda folder: [change(folder / "config.json") for change in (Path.unlink, Path.mkdir)],
        "config.json",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_named(run: RunFolder, kind: str) -> None:
    damage, name = DAMAGES[kind]
    checkpoint = save(run, 7)
    damage(checkpoint.folder)
    assert is_damaged(checkpoint.verify, checkpoint.folder / name)


def test_a_folder_with_the_name_of_another_step_is_damaged(run: RunFolder) -> None:
    other = save(run, 7).folder.rename(run.folder / "checkpoints" / "step-000009")
    assert is_damaged(lambda: Checkpoint.open(other), other / MANIFEST)
    free = other.rename(run.folder / "mine")  # any name other than a step is allowed
    assert Checkpoint.open(free).step == 7
    assert is_damaged(Checkpoint(free, 8).verify, free / MANIFEST)


def test_a_newer_format_is_not_damage(run: RunFolder) -> None:
    checkpoint = save(run, 7)
    (checkpoint.folder / MANIFEST).write_bytes(store._seal(b'{"format":2}'))
    error = refused(checkpoint.verify)
    assert (error.code, error.where) == ("checkpoint.mismatch", str(checkpoint.folder / MANIFEST))
    assert "format" in error.what and "2" in error.what


def test_parts_of_the_training_state(run: RunFolder) -> None:
    machine = {"torch": "2.9", "threads": 2}
    skeleton, tensors = take_apart({"data": "abc", "machine": machine, "moment": torch.ones(2)})
    weights = {"weight": torch.ones(2)}
    checkpoint = save_checkpoint(
        run, 1, model=weights, state=tensors, state_json=skeleton, config={}, tokenizer_json="{}"
    )
    assert checkpoint.data_fingerprint() == "abc"
    assert checkpoint.machine() == machine


def test_files_of_file_managers_are_ignored(run: RunFolder) -> None:
    checkpoint = save(run, 7)
    (checkpoint.folder / ".DS_Store").touch()
    checkpoint.verify()


# ---- kills


def in_child(work: Callable[[Callable[[float], None]], None]) -> tuple[int, int]:
    """Run `work` in a child process; return its id and a pipe with the numbers that it reports."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(reading)
            work(lambda value: (os.write(writing, f"{value}\n".encode()), None)[1])
        finally:
            os._exit(0)
    os.close(writing)
    return process, reading


def reports(reading: int) -> list[float]:
    with os.fdopen(reading, "rb") as pipe:
        return [float(line) for line in pipe.read().split()]


@needs_fork
def test_a_kill_before_any_system_call_loses_nothing(memory: Path) -> None:
    """Kill before the n-th call that changes the disk, for every n of saving, replacing and pruning."""
    start = RunFolder.create(memory / "start", {}, overwrite=False)
    save(start, 1, value=1.0)
    for moment in range(1000):
        run = RunFolder(shutil.copytree(start.folder, memory / "killed"))

        def work(report: Callable[[float], None], run: RunFolder = run, moment: int = moment) -> None:
            calls = iter(range(10_000))

            def dying(real: Callable[..., Any]) -> Callable[..., Any]:
                def call(*args: Any, **options: Any) -> Any:
                    if next(calls) == moment:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*args, **options)

                return call

            for name in ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir"):
                setattr(os, name, dying(getattr(os, name)))
            save(run, 2, value=2.0)
            report(2.0)
            run.mark_best(run.checkpoints()[-1])
            save(run, 2, value=2.5)
            report(2.5)
            save(run, 3, value=3.0)
            report(3.0)
            run.prune(1)

        process, reading = in_child(work)
        saved = [1.0, *reports(reading)]
        killed = os.WIFSIGNALED(os.waitpid(process, 0)[1])
        newest = run.newest_valid()
        assert newest is not None
        value = float(newest.load_model()["weight"][0])
        allowed = [value for value in (1.0, 2.0, 2.5, 3.0) if value >= saved[-1]][:2]  # the saved one, or the next
        assert value in allowed, moment
        assert newest.state_json() == {"value": value}
        for checkpoint in run.checkpoints():  # half-written and half-removed ones are not listed
            checkpoint.verify()
        assert run.best is None or run.best.step == 2
        with run.lock():  # as the next training does
            assert leftovers(run) == []
            save(run, 4)
        assert run.last == run.newest_valid() == Checkpoint(run.folder / "checkpoints" / "step-000004", 4)
        shutil.rmtree(run.folder)
        if not killed:
            assert moment > 60
            return
    pytest.fail("never came to an end")


@needs_fork
def test_the_newest_checkpoint_is_valid_after_twenty_random_kills(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "demo", {}, overwrite=False)  # on a real disk
    chance = random.Random(5)

    def work(report: Callable[[float], None]) -> None:
        with run.lock():
            newest = run.newest_valid()
            step = newest.step if newest else 0
            while True:
                step += 1
                for _ in range(1 + step % 2):  # every second one is replaced
                    save(run, step, elements=2000)
                    report(step)
                run.prune(2)

    for _ in range(20):
        process, reading = in_child(work)
        first = b""
        while not first.endswith(b"\n"):
            first += os.read(reading, 1)
        time.sleep(chance.uniform(0.0, 0.05))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        saved = [float(first), *reports(reading)]
        damaged: list[Checkpoint] = []
        newest = run.newest_valid(lambda checkpoint, _: damaged.append(checkpoint))  # noqa: B023
        assert newest is not None
        assert damaged == []
        assert newest.step >= saved[-1]
        assert torch.equal(newest.load_state()["moment"], torch.full((2000,), float(newest.step)))
    assert run.checkpoints()[-1].step > 20


def test_everything_is_flushed_before_it_gets_its_name(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power loss cannot be tested; the order of flushes and renames can."""
    calls: list[tuple[str, int | str]] = []
    flush, rename = os.fsync, os.rename

    def traced_flush(handle: int) -> None:
        calls.append(("flush", os.fstat(handle).st_ino))
        flush(handle)

    def traced_rename(source: Path, target: Path) -> None:
        calls.append(("rename", Path(target).name))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", traced_flush)
    monkeypatch.setattr(os, "rename", traced_rename)
    folder = save(run, 1).folder
    moment = calls.index(("rename", "step-000001"))
    written = [*folder.iterdir(), folder]
    assert {number for _, number in calls[:moment]} == {path.stat().st_ino for path in written}
    assert calls[moment - 1] == ("flush", folder.stat().st_ino)  # the folder after its files
    assert calls[moment + 1] == ("flush", folder.parent.stat().st_ino)


# ---- write errors


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
        made = subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0
    except OSError:
        made = False
    if not made:
        pytest.skip("only root may mount a small disk here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=120)


@pytest.mark.parametrize("when", ["before", "while writing"])
def test_a_full_disk_keeps_the_old_checkpoint(disk: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.create(disk / "demo", {}, overwrite=False)
    save(run, 1)
    free = shutil.disk_usage(disk).free
    if when == "while writing":  # another program took the space after the check
        known = iter([10**12])
        monkeypatch.setattr(store, "free_bytes", lambda folder: next(known, shutil.disk_usage(folder).free))
    for step in (1, 2):  # as a replacement, and as a new one
        if when == "while writing":
            known = iter([10**12])
        place = run.checkpoints_folder / f"step-00000{step}"
        what = not_written(lambda step=step: save(run, step, elements=200_000), place)  # type: ignore[misc]
        needed = 2 * 200_000 * 4
        numbers = [int(number.replace(",", "")) for number in re.findall(r"[\d,]+(?= bytes)", what)]
        assert needed < numbers[0] < needed + 40_000
        assert numbers[1:] == [free]
        assert leftovers(run) == []
        assert shutil.disk_usage(disk).free == free
        assert [float(checkpoint.load_model()["weight"][0]) for checkpoint in run.checkpoints()] == [1.0]
        assert run.last == run.checkpoints()[0]


def test_a_full_disk_keeps_marks_and_logs(disk: Path) -> None:
    run = RunFolder.create(disk / "demo", {}, overwrite=False)
    first = save(run, 1)
    second = save(run, 2)
    run.metrics_path.write_text('{"event":"step","step":1}\n' * 500 + '{"event":"step","step":9}\n')
    with open(disk / "filler", "wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
    what = not_written(lambda: run.cut_metrics(1), run.metrics_path)
    assert "13,000 bytes" in what
    assert " 0 bytes" in what
    assert len(run.metrics()) == 501
    assert leftovers(run) == []
    assert "12 bytes" in not_written(lambda: run.mark_last(first), run.folder / "last")
    assert run.last == second
    not_written(lambda: RunFolder.create(run.folder, {"a": "b" * 9000}, overwrite=True), run.folder)
    assert run.config() == {}
    assert run.newest_valid() == second
    assert sorted(os.listdir(disk)) == ["demo", "filler"]


def test_a_read_only_disk(disk: Path) -> None:
    run = RunFolder.create(disk / "demo", {}, overwrite=False)
    saved = save(run, 1)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=120)
    not_written(lambda: save(run, 2), run.checkpoints_folder / "step-000002")
    not_written(lambda: RunFolder.create(disk / "new", {}, overwrite=False), disk / "new")
    not_written(lambda: run.lock().__enter__(), run.folder / ".lock")
    assert run.newest_valid() == saved
    assert not run.is_locked()


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EIO])
def test_other_write_errors(run: RunFolder, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    saved = save(run, 1)

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store, "write_flushed", refuse)
    not_written(lambda: save(run, 2), run.checkpoints_folder / "step-000002")
    assert run.newest_valid() == saved
    assert leftovers(run) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(run: RunFolder) -> None:
    run.checkpoints_folder.chmod(0o500)
    not_written(lambda: save(run, 2), run.checkpoints_folder / "step-000002")


def test_a_failed_rename_restores_the_replaced_checkpoint(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = save(run, 1, value=1.0)
    real = os.rename

    def refuse(source: Path, target: Path) -> None:
        if Path(source).name.startswith(files.WRITING):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    not_written(lambda: save(run, 1, value=9.0), saved.folder)
    assert saved.load_model()["weight"][0] == 1.0
    assert leftovers(run) == []


def test_a_file_where_the_folder_should_be(run: RunFolder) -> None:
    run.checkpoints_folder.rmdir()
    run.checkpoints_folder.touch()
    what = not_written(lambda: save(run, 2), run.checkpoints_folder / "step-000002")
    assert str(run.checkpoints_folder) in what


def test_an_interrupt_cleans_up(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "sync_folder", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(run, 2)
    assert run.checkpoints() == []
    assert leftovers(run) == []


def test_no_pickle_is_imported() -> None:
    """The storage modules import nothing that executes code on loading."""
    source = Path(store.__file__).read_text()
    assert "pickle" not in source
    assert "torch.load" not in source
    assert "torch.save" not in source


def test_verifying_and_listing_need_no_torch(run: RunFolder) -> None:
    save(run, 1)
    code = (
        "import sys; from pathlib import Path;"
        "from lilliput.storage.run_folders import describe, list_runs, resolve_checkpoint, RunFolder;"
        f"d = Path({str(run.folder)!r}); describe(RunFolder.open(d)); list_runs(d.parent); resolve_checkpoint(d).config();"
        "assert not {'torch', 'safetensors', 'numpy', 'pydantic'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=120)
