"""A checkpoint is whole or it is not there, and a single changed bit is refused, whatever happened to the machine."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
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

from lilliput.errors import UserError
from lilliput.storage import atomic_files as files
from lilliput.storage import checkpoints as store
from lilliput.storage.checkpoints import FILES, MANIFEST, Checkpoint, save_checkpoint
from lilliput.storage.run_folders import Run

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")


def save(run: Run, step: int, value: float | None = None, elements: int = 4) -> Checkpoint:
    """A checkpoint whose every part tells `value`."""
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


def told(action: Callable[[], object], *hidden: Path) -> str:
    """What a user reads, with the folders that differ from test to test taken out."""
    with pytest.raises(UserError) as caught:
        action()
    text = str(caught.value)
    assert len(text.splitlines()) <= 3
    for place in hidden:
        text = text.replace(str(place), "RUN")
    return text


def leftovers(run: Run) -> list[str]:
    return [path.name for path in run.folder.rglob(".*") if path.name != ".lock"]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a killed process leaves the same there, and flushes cost nothing."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def run(memory: Path) -> Run:
    return Run.create(memory / "demo", {"model": {"dim": 4}}, overwrite=False)


# ---- round trips


def test_everything_comes_back_as_it_was(run: Run) -> None:
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
def test_any_tensors_come_back(run: Run, kinds: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
    model = {name: torch.randint(0, 2, shape).to(dtype) for name, (dtype, shape) in kinds.items()}
    saved = save_checkpoint(run, 1, model=model, state={}, state_json={}, config={}, tokenizer_json="")
    loaded = saved.load_model()
    assert loaded.keys() == model.keys()
    assert all(torch.equal(loaded[name], model[name]) and loaded[name].dtype == model[name].dtype for name in model)


def test_same_content_gives_same_bytes(run: Run) -> None:
    first = {path.name: path.read_bytes() for path in save(run, 1).folder.iterdir()}
    assert first == {path.name: path.read_bytes() for path in save(run, 1).folder.iterdir()}


def test_the_labels_of_a_classifier_are_in_the_manifest(run: Run) -> None:
    """By name and in order, any text; and what has none has no such key."""
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
    assert "manifest.json does not match its own SHA-256" in told(named.labels)


def test_the_manifest_is_what_its_documentation_says(run: Run) -> None:
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


def test_a_replaced_checkpoint_is_the_new_one(run: Run) -> None:
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
def test_every_single_bit_is_refused(run: Run, name: str) -> None:
    folder = save(run, 7).folder
    data = (folder / name).read_bytes()
    with open(folder / name, "r+b", buffering=0) as file:
        for position, byte in enumerate(data):
            for bit in range(8):
                file.seek(position)
                file.write(bytes([byte ^ 1 << bit]))
                with pytest.raises(UserError, match=f"is damaged: {name} "):
                    Checkpoint(folder, 7).verify()
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
    run = Run.create(tmp_path_factory.mktemp("large") / "demo", {}, overwrite=False)
    return save(run, 12, elements=50_000)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([*FILES, MANIFEST]), st.integers(0, 2**40), st.sampled_from(LOADERS))
def test_any_bit_is_refused_by_every_way_in(
    large: Checkpoint, name: str, bit: int, loader: Callable[[Checkpoint], object]
) -> None:
    path = large.folder / name
    data = path.read_bytes()
    try:
        path.write_bytes(flip(data, bit % (len(data) * 8)))
        with pytest.raises(UserError, match=f"is damaged: {name}"):
            loader(Checkpoint(large.folder, 12))
    finally:
        path.write_bytes(data)


def test_what_is_parsed_is_what_was_hashed(run: Run) -> None:
    checkpoint = save(run, 1)
    checkpoint.verify()
    path = checkpoint.folder / "model.safetensors"
    path.write_bytes(flip(path.read_bytes(), -1))  # after the verification, before the load
    with pytest.raises(UserError, match=r"model\.safetensors has other bytes"):
        checkpoint.load_model()


Damage = Callable[[Path], object]
HINT = "\n  try another checkpoint (`lilliput info RUN` tells which are whole); --resume takes the newest whole one"
DAMAGES: dict[str, tuple[Damage, str]] = {
    "missing": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "model.safetensors is missing\n  at  RUN/checkpoints/step-000007/model.safetensors",
    ),
    "no manifest": (
        lambda folder: (folder / MANIFEST).unlink(),
        "manifest.json is missing\n  at  RUN/checkpoints/step-000007/manifest.json",
    ),
    "unknown": (
        lambda folder: (folder / "extra.bin").touch(),
        "extra.bin does not belong to it\n  at  RUN/checkpoints/step-000007/extra.bin",
    ),
    "shorter": (
        lambda folder: os.truncate(folder / "tokenizer.json", 3),
        "tokenizer.json has 3 bytes, its manifest says 8\n  at  RUN/checkpoints/step-000007/tokenizer.json",
    ),
    "other bytes": (
        lambda folder: (folder / "tokenizer.json").write_bytes(b"12345678"),
        (
            "tokenizer.json has other bytes than its manifest's SHA-256 tells"
            "\n  at  RUN/checkpoints/step-000007/tokenizer.json"
        ),
    ),
    "empty manifest": (
        lambda folder: (folder / MANIFEST).write_bytes(b""),
        "manifest.json does not match its own SHA-256\n  at  RUN/checkpoints/step-000007/manifest.json",
    ),
    "a folder for a file": (
        lambda folder: [change(folder / "config.json") for change in (Path.unlink, Path.mkdir)],
        "config.json cannot be read (Is a directory)\n  at  RUN/checkpoints/step-000007/config.json",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_named(run: Run, kind: str) -> None:
    damage, expected = DAMAGES[kind]
    checkpoint = save(run, 7)
    damage(checkpoint.folder)
    text = told(checkpoint.verify, run.folder)
    assert text == f"checkpoint step-000007 is damaged: {expected}{HINT}"


def test_a_folder_under_another_steps_name_is_refused(run: Run) -> None:
    other = save(run, 7).folder.rename(run.folder / "checkpoints" / "step-000009")
    text = told(lambda: Checkpoint.open(other), run.folder)
    assert text.startswith("checkpoint step-000009 is damaged: manifest.json is of step 7\n")
    free = other.rename(run.folder / "mine")  # any other name is free
    assert Checkpoint.open(free).step == 7
    assert told(lambda: Checkpoint(free, 8).verify(), run.folder) == (
        "checkpoint mine is damaged: manifest.json is of step 7\n  at  RUN/mine/manifest.json\n  try another checkpoint"
    )


def test_a_newer_format_is_told_from_damage(run: Run) -> None:
    checkpoint = save(run, 7)
    (checkpoint.folder / MANIFEST).write_bytes(store._seal(b'{"format":2}'))
    assert told(checkpoint.verify, run.folder) == (
        "step-000007 has format 2, this Lilliput reads format 1\n"
        "  at  RUN/checkpoints/step-000007/manifest.json\n  try the Lilliput that wrote it"
    )


def test_looking_at_a_folder_does_not_damage_it(run: Run) -> None:
    checkpoint = save(run, 7)
    (checkpoint.folder / ".DS_Store").touch()
    checkpoint.verify()


# ---- kills


def in_child(work: Callable[[Callable[[float], None]], None]) -> tuple[int, int]:
    """Runs `work` in a child that may report numbers; its process id and the end of the pipe to read them from."""
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
def test_killed_before_any_system_call_nothing_is_lost(memory: Path) -> None:
    """Exhaustive: dies before the n-th call that changes the disk, for every n of saves, replacement and pruning."""
    start = Run.create(memory / "start", {}, overwrite=False)
    save(start, 1, value=1.0)
    for moment in range(1000):
        run = Run(shutil.copytree(start.folder, memory / "killed"))

        def work(report: Callable[[float], None], run: Run = run, moment: int = moment) -> None:
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
        for checkpoint in run.checkpoints():  # half-written and half-removed ones are not even seen
            checkpoint.verify()
        assert run.best is None or run.best.step == 2
        with run.lock():  # what the next training does
            assert leftovers(run) == []
            save(run, 4)
        assert run.last == run.newest_valid() == Checkpoint(run.folder / "checkpoints" / "step-000004", 4)
        shutil.rmtree(run.folder)
        if not killed:
            assert moment > 60
            return
    pytest.fail("never came to an end")


@needs_fork
def test_killed_at_twenty_random_moments_the_newest_is_whole(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "demo", {}, overwrite=False)  # on a real disk
    chance = random.Random(5)

    def work(report: Callable[[float], None]) -> None:
        with run.lock():
            newest = run.newest_valid()
            step = newest.step if newest else 0
            while True:
                step += 1
                for _ in range(1 + step % 2):  # every other one is replaced
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


def test_everything_is_flushed_before_it_gets_its_name(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a loss of power leaves cannot be tried here; the order of flushes and renames can."""
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


# ---- disks that say no


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
def test_a_full_disk_leaves_the_old_checkpoint(disk: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(disk / "demo", {}, overwrite=False)
    save(run, 1)
    free = shutil.disk_usage(disk).free
    if when == "while writing":  # another program took the space after the look at it
        known = iter([10**12])
        monkeypatch.setattr(store, "free_bytes", lambda folder: next(known, shutil.disk_usage(folder).free))
    for step in (1, 2):  # as a replacement, and as a new one
        if when == "while writing":
            known = iter([10**12])
        text = told(lambda step=step: save(run, step, elements=200_000), run.folder)  # type: ignore[misc]
        needed = 2 * 200_000 * 4
        first, where, fix = text.splitlines()
        assert first.startswith(f"cannot write step-00000{step}, the disk is full: ")
        numbers = [int(word.replace(",", "")) for word in first.split() if word[0].isdigit()]
        assert needed < numbers[0] < needed + 40_000
        assert numbers[1] == free
        assert first.endswith(" bytes are needed, " + f"{free:,} are free")
        assert where == f"  at  RUN/checkpoints/step-00000{step}"
        assert fix == "  try again with more space; what was there before is untouched"
        assert leftovers(run) == []
        assert shutil.disk_usage(disk).free == free
        assert [float(checkpoint.load_model()["weight"][0]) for checkpoint in run.checkpoints()] == [1.0]
        assert run.last == run.checkpoints()[0]


def test_a_full_disk_leaves_marks_and_logs(disk: Path) -> None:
    run = Run.create(disk / "demo", {}, overwrite=False)
    first = save(run, 1)
    second = save(run, 2)
    run.metrics_path.write_text('{"event":"step","step":1}\n' * 500 + '{"event":"step","step":9}\n')
    with open(disk / "filler", "wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
    text = told(lambda: run.cut_metrics(1), run.folder)
    assert text.startswith("cannot write metrics.jsonl, the disk is full: 13,000 bytes are needed, 0 are free\n")
    assert len(run.metrics()) == 501
    assert leftovers(run) == []
    text = told(lambda: run.mark_last(first), run.folder)
    assert text.startswith("cannot write last, the disk is full: 12 bytes are needed, 0 are free\n  at  RUN/last\n")
    assert run.last == second
    text = told(lambda: Run.create(run.folder, {"a": "b" * 9000}, overwrite=True), run.folder)
    assert text.startswith("cannot write demo, the disk is full: ")
    assert run.config() == {}
    assert run.newest_valid() == second
    assert sorted(os.listdir(disk)) == ["demo", "filler"]


def test_a_read_only_disk(disk: Path) -> None:
    run = Run.create(disk / "demo", {}, overwrite=False)
    saved = save(run, 1)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=120)
    assert told(lambda: save(run, 2), run.folder) == (
        "cannot write step-000002, the file system is read-only\n"
        "  at  RUN/checkpoints/step-000002\n  try a folder that you may write to"
    )
    assert told(lambda: Run.create(disk / "new", {}, overwrite=False), disk) == (
        "cannot write new, the file system is read-only\n  at  RUN/new\n  try a folder that you may write to"
    )
    assert told(lambda: run.lock().__enter__(), run.folder).startswith(
        "cannot write .lock, the file system is read-only"
    )
    assert run.newest_valid() == saved
    assert not run.is_locked()


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.EDQUOT, "the disk quota is used up: "),
        (errno.EACCES, "permission denied"),
        (errno.EPERM, "permission denied"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_other_refusals(run: Run, monkeypatch: pytest.MonkeyPatch, number: int, sentence: str) -> None:
    saved = save(run, 1)

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store, "write_flushed", refuse)
    assert told(lambda: save(run, 2)).startswith(f"cannot write step-000002, {sentence}")
    assert run.newest_valid() == saved
    assert leftovers(run) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_closed(run: Run) -> None:
    run.checkpoints_folder.chmod(0o500)
    assert told(lambda: save(run, 2)).startswith("cannot write step-000002, permission denied")


def test_a_failed_rename_puts_the_replaced_one_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = save(run, 1, value=1.0)
    real = os.rename

    def refuse(source: Path, target: Path) -> None:
        if Path(source).name.startswith(files.WRITING):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    assert told(lambda: save(run, 1, value=9.0)).startswith("cannot write step-000001, Input/output error")
    assert saved.load_model()["weight"][0] == 1.0
    assert leftovers(run) == []


def test_a_file_where_the_folder_should_be(run: Run) -> None:
    run.checkpoints_folder.rmdir()
    run.checkpoints_folder.touch()
    assert told(lambda: save(run, 2), run.folder) == (
        "cannot write step-000002, RUN/checkpoints is a file, not a folder\n"
        "  at  RUN/checkpoints/step-000002\n  try another folder"
    )


def test_an_interrupt_cleans_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "sync_folder", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(run, 2)
    assert run.checkpoints() == []
    assert leftovers(run) == []


def test_no_pickle_is_named() -> None:
    """Nothing that runs code on loading is reachable from the store."""
    source = Path(store.__file__).read_text()
    assert "pickle" not in source
    assert "torch.load" not in source
    assert "torch.save" not in source


def test_verifying_and_listing_need_no_torch(run: Run) -> None:
    save(run, 1)
    code = (
        "import sys; from pathlib import Path;"
        "from lilliput.storage.run_folders import describe, list_runs, resolve_checkpoint, Run;"
        f"d = Path({str(run.folder)!r}); describe(Run.open(d)); list_runs(d.parent); resolve_checkpoint(d).config();"
        "assert not {'torch', 'safetensors', 'numpy', 'pydantic'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=120)
