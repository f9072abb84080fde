"""Tests of run folders: create, find, summarise, lock, truncate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.user_errors import refused
from lilliput.storage import atomic_files as files
from lilliput.storage import checkpoints as store
from lilliput.storage.checkpoints import Checkpoint, save_checkpoint
from lilliput.storage.run_folders import (
    RunFolder,
    describe,
    differences,
    find_run,
    list_runs,
    resolve_checkpoint,
)


def save(run: RunFolder, step: int) -> Checkpoint:
    weights = {"weight": torch.full((2,), float(step))}
    return save_checkpoint(
        run, step, model=weights, state=weights, state_json={"step": step}, config={}, tokenizer_json="{}"
    )


def code_and_place(action: Callable[[], object]) -> tuple[str, str | None]:
    error = refused(action)
    return error.code, error.where


def log(run: RunFolder, *events: dict[str, Any]) -> None:
    run.metrics_path.write_text("".join(json.dumps(event) + "\n" for event in events))


def event(kind: str, step: int, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "step": step, **fields}


def damage(checkpoint: Checkpoint) -> None:
    (checkpoint.folder / "state.json").write_text("{}")


def names(run: RunFolder) -> list[str]:
    return [checkpoint.name for checkpoint in run.checkpoints()]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "demo", {"model": {"dim": 4}}, overwrite=False)


# ---- creating


def test_a_new_run(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs" / "demo", {"seed": 1, "window": (None, 2)}, overwrite=False)
    assert (run.name, run.config()) == ("demo", {"seed": 1, "window": [None, 2]})
    assert RunFolder.open(run.folder) == run
    assert (run.checkpoints(), run.last, run.best, run.newest_valid(), run.metrics()) == ([], None, None, None, [])
    assert os.listdir(run.folder.parent) == ["demo"]


def test_an_existing_run_is_an_error(run: RunFolder) -> None:
    saved = save(run, 1)
    create = partial(RunFolder.create, run.folder, {"other": 1}, overwrite=False)
    assert code_and_place(create) == ("run.exists", str(run.folder))
    assert run.newest_valid() == saved
    assert run.config() == {"model": {"dim": 4}}


def test_overwriting_removes_the_old_run(run: RunFolder, tmp_path: Path) -> None:
    save(run, 1)
    log(run, event("step", 1))
    new = RunFolder.create(run.folder, {"new": True}, overwrite=True)
    assert (new.config(), new.checkpoints(), new.metrics(), new.last) == ({"new": True}, [], [], None)
    assert os.listdir(tmp_path) == ["demo"]


@pytest.mark.parametrize("content", ["thesis.txt", "config.json", "manifest.json"])
@pytest.mark.parametrize("overwrite", [True, False])
def test_other_folders_are_never_overwritten(tmp_path: Path, content: str, overwrite: bool) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / content).write_text("{}")
    looks_like_a_run = content == "config.json" and not overwrite
    code = "run.exists" if looks_like_a_run else "run.name"
    assert code_and_place(lambda: RunFolder.create(folder, {}, overwrite)) == (code, str(folder))
    assert os.listdir(folder) == [content]
    assert os.listdir(tmp_path) == ["mine"]


def test_a_checkpoint_is_never_overwritten(run: RunFolder) -> None:
    saved = save(run, 1)
    assert refused(lambda: RunFolder.create(saved.folder, {}, overwrite=True)).code == "run.name"
    saved.verify()


def test_an_empty_folder_may_become_a_run(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    assert RunFolder.create(tmp_path / "demo", {}, overwrite=False).config() == {}


def test_a_link_to_a_run_stays_a_link(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run.folder)
    RunFolder.create(tmp_path / "link", {"new": True}, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert run.config() == {"new": True}


def test_a_file_at_the_path_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "demo").touch()
    for folder in (tmp_path / "demo", tmp_path / "demo" / "deep" / "run"):
        error = refused(partial(RunFolder.create, folder, {}, overwrite=False))
        assert (error.code, error.where) == ("file.not-written", str(folder))
        assert f"{tmp_path / 'demo'} " in error.what  # the existing file
    assert os.listdir(tmp_path) == ["demo"]


def test_a_run_is_restored_after_a_killed_overwrite(run: RunFolder, tmp_path: Path) -> None:
    run.folder.rename(tmp_path / f"{files.REPLACED}demo")
    (tmp_path / f"{files.WRITING}demo-0123abcd").mkdir()
    (tmp_path / f"{files.WRITING}demo-two-0123abcd").mkdir()  # of another run, which may be starting
    assert refused(lambda: RunFolder.create(run.folder, {}, overwrite=False)).code == "run.exists"
    assert sorted(os.listdir(tmp_path)) == [f"{files.WRITING}demo-two-0123abcd", "demo"]
    assert list_runs(tmp_path)[0]["name"] == "demo"


# ---- marks and pruning


def test_marks(run: RunFolder) -> None:
    first, second = save(run, 1), save(run, 2)
    assert (run.last, run.best) == (second, None)
    run.mark_best(first)
    assert run.best == first
    assert (run.folder / "best").read_text() == "step-000001\n"
    for content in (b"", b"step-000009\n", b"../../etc\n", b"\xff\xfe"):
        (run.folder / "best").write_bytes(content)
        assert run.best is None


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(0, 30), min_size=1), st.integers(1, 4), st.data())
def test_pruning_keeps_best_last_and_the_newest(
    run: RunFolder, steps: set[int], keep: int, data: st.DataObject
) -> None:
    for old in run.checkpoints_folder.iterdir():
        old.rmdir()
    made = [run.checkpoints_folder / store.step_name(step) for step in sorted(steps)]
    for folder in made:
        folder.mkdir()
    last, best = (data.draw(st.sampled_from(run.checkpoints())) for _ in range(2))
    run.mark_last(last)
    run.mark_best(best)
    removed = run.prune(keep)
    kept = set(names(run))
    assert {last.name, best.name} <= kept
    assert kept | set(removed) == {folder.name for folder in made}
    older = [folder.name for folder in made if folder.name <= last.name]
    assert kept == {*older[-keep:], last.name, best.name, *(folder.name for folder in made if folder.name > last.name)}
    assert run.prune(keep) == []


def test_steps_beyond_six_digits_are_in_order(run: RunFolder) -> None:
    for step in (1_000_000, 999_999, 5):
        save(run, step)
    assert names(run) == ["step-000005", "step-999999", "step-1000000"]


def test_leftovers_are_not_listed_and_removed_by_training(run: RunFolder) -> None:
    saved = save(run, 1)
    for name in (f"{files.WRITING}step-000002-0123abcd", f"{files.REMOVING}step-000000", "notes"):
        (run.checkpoints_folder / name).mkdir()
    (run.folder / f"{files.WRITING}last-0123abcd").touch()
    assert run.checkpoints() == [saved]
    with run.lock():
        assert sorted(os.listdir(run.checkpoints_folder)) == ["notes", "step-000001"]
        assert sorted(os.listdir(run.folder)) == [".lock", "checkpoints", "config.json", "last"]


def test_a_replaced_checkpoint_is_read_until_its_replacement_exists(run: RunFolder) -> None:
    place = save(run, 1).folder
    away = place.rename(place.with_name(f"{files.REPLACED}step-000001"))
    assert run.last == run.newest_valid() == Checkpoint(away, 1)
    save(run, 2)
    assert names(run) == ["step-000001", "step-000002"]
    assert place.is_dir()


def test_the_newest_valid_reports_the_damaged(run: RunFolder) -> None:
    good = save(run, 1)
    damage(save(run, 2))
    damage(save(run, 3))
    seen: list[tuple[str, str]] = []
    assert run.newest_valid(lambda checkpoint, error: seen.append((checkpoint.name, error.code))) == good
    assert seen == [(name, "checkpoint.damaged") for name in ("step-000003", "step-000002")]
    damage(good)
    assert run.newest_valid() is None


# ---- the log


def test_an_incomplete_last_line_is_ignored(run: RunFolder) -> None:
    text = '{"event":"step","step":1}\n{"event":"evaluation","step":1,"loss":2.5}\n'
    for end in range(len(text)):
        run.metrics_path.write_text(text[:end])
        whole = text[:end].count("}")
        assert len(run.metrics()) == whole
        run.cut_metrics(2)
        assert len(run.metrics()) == whole
        assert run.metrics_path.read_bytes()[-1:] in (b"", b"\n")


@pytest.mark.parametrize(
    "line", ["", "{", "[1]", "\0\0\0", '{"event":"step"}', '{"event":"step","step":"1"}', "\udcff"]
)
def test_damage_inside_the_log_is_reported(run: RunFolder, tmp_path: Path, line: str) -> None:
    events = '{"event":"step","step":1}\n'
    run.metrics_path.write_bytes(f"{events}{line}\n{events}".encode(errors="surrogateescape"))
    assert code_and_place(run.metrics) == ("file.damaged", f"{run.metrics_path}, line 2")
    assert list_runs(tmp_path)[0]["state"] == "damaged"
    assert run.cut_metrics(9) == 1
    assert len(run.metrics()) == 2


def test_truncating_the_log(run: RunFolder) -> None:
    assert run.cut_metrics(5) == 0
    assert not run.metrics_path.exists()
    events = [
        event("saved", 4),
        event("step", 5),
        event("saved", 5),
        event("evaluation", 5, loss=1.0),
        event("step", 6),
        event("finished", 5),
    ]
    log(run, *events)
    assert run.cut_metrics(5) == 4
    assert run.metrics() == events[:2]
    before = run.metrics_path.stat().st_ino
    assert run.cut_metrics(5) == 0
    assert run.metrics_path.stat().st_ino == before


def test_warnings_of_the_optimizer_step_stay(run: RunFolder) -> None:
    """Warnings of its evaluation are removed with the evaluation."""
    events = [event("warning", 4), event("step", 5), event("warning", 5), event("saved", 5), event("warning", 5)]
    log(run, *events)
    assert run.cut_metrics(5) == 2
    assert run.metrics() == events[:3]
    assert run.cut_metrics(4) == 2
    assert run.metrics() == events[:1]


def test_rewinding(run: RunFolder) -> None:
    first, second = save(run, 1), save(run, 2)
    log(run, event("step", 1), event("step", 2))
    run.mark_best(second)
    run.rewind(first)
    assert (run.last, run.best, run.metrics()) == (first, None, [event("step", 1)])
    run.mark_best(first)
    run.rewind(first)
    assert run.best == first
    assert names(run) == ["step-000001", "step-000002"]


def test_a_log_that_cannot_be_read(run: RunFolder) -> None:
    run.metrics_path.mkdir()
    assert code_and_place(run.metrics) == ("file.unreadable", str(run.metrics_path))


def test_damaged_settings(run: RunFolder) -> None:
    (run.folder / "config.json").write_text("{\n  half")
    error = refused(run.config)
    assert (error.code, error.where) == ("file.damaged", str(run.folder / "config.json"))
    assert "line 2 column 3" in error.what


# ---- the lock

HOLD = """
import sys; from pathlib import Path; from lilliput.storage.run_folders import RunFolder
with RunFolder(Path(sys.argv[1])).lock(): print(1, flush=True); input()
"""


def test_a_second_training_is_an_error_until_the_first_ends(run: RunFolder, tmp_path: Path) -> None:
    save(run, 1)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLD, str(run.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as other:
        assert other.stdout
        assert other.stdout.readline() == b"1\n"
        for action in (lambda: run.lock().__enter__(), lambda: RunFolder.create(run.folder, {}, overwrite=True)):
            error = refused(action)
            assert (error.code, error.where) == ("run.locked", str(run.folder))
            assert str(other.pid) in error.what
        assert describe(run)["state"] == list_runs(tmp_path)[0]["state"] == "running"
        assert run.newest_valid() is not None  # reading is possible
        os.kill(other.pid, signal.SIGKILL)
    with run.lock():
        error = refused(lambda: run.lock().__enter__())
        assert error.code == "run.locked"
        assert str(os.getpid()) in error.what
    assert not run.is_locked()
    with run.lock():
        pass


# ---- finding


def test_finding(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = save(run, 3)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(tmp_path)
    assert find_run(run.folder) == find_run(str(run.folder)) == run
    assert find_run("demo") == RunFolder(Path("demo"))
    assert find_run("runs/demo") == RunFolder(Path("runs/demo"))
    assert find_run(saved.folder) == saved
    monkeypatch.chdir("/")
    assert find_run("demo", tmp_path) == run
    assert find_run("demo/checkpoints/step-000003", tmp_path) == saved
    monkeypatch.chdir(run.folder)
    assert isinstance(found := find_run("."), RunFolder)
    assert found.name == "demo"


def test_a_run_that_does_not_exist(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong in ("demmo", "runs/demmo", "a/b/demmo"):
        error = refused(partial(find_run, wrong, tmp_path))
        assert error.code == "run.missing"
        assert repr(wrong) in error.what
        assert "demo" in (error.fix or "").split()
    for wrong in ("", "zzzzzz", "nul\0", "x" * 5000, "line\nend"):
        error = refused(partial(find_run, wrong, tmp_path))
        assert error.code == "run.missing"
        assert repr(wrong) in error.what
        assert "lilliput info" in (error.fix or "")
    assert "lilliput train" in (refused(lambda: find_run("demo2", "nowhere")).fix or "")
    config = run.folder / "config.json"
    assert code_and_place(lambda: find_run(config)) == ("run.missing", str(config))
    assert code_and_place(lambda: find_run(tmp_path)) == ("run.missing", str(tmp_path))
    assert str(run.folder) in (refused(lambda: find_run(tmp_path)).fix or "")
    assert refused(lambda: RunFolder.open(tmp_path)).code == "run.missing"


def test_a_checkpoint_without_a_manifest_is_not_a_run(run: RunFolder) -> None:
    saved = save(run, 3)
    (saved.folder / "manifest.json").unlink()
    expected = ("checkpoint.damaged", str(saved.folder / "manifest.json"))
    assert code_and_place(lambda: find_run(saved.folder)) == expected


def test_the_checkpoint_of_a_run(run: RunFolder, tmp_path: Path) -> None:
    assert code_and_place(lambda: resolve_checkpoint(run.folder)) == ("run.no-checkpoint", str(run.folder))
    first, second, third = save(run, 1), save(run, 2), save(run, 3)
    (run.folder / "last").unlink()
    assert resolve_checkpoint(run.folder) == third
    run.mark_last(second)
    assert resolve_checkpoint("demo", tmp_path) == second
    run.mark_best(first)
    assert resolve_checkpoint(run.folder) == first
    assert resolve_checkpoint(third.folder) == third
    damage(first)
    expected = ("checkpoint.damaged", str(first.folder / "state.json"))
    assert code_and_place(resolve_checkpoint(run.folder).load_model) == expected


# ---- summaries


def evaluation(step: int, whole: bool, loss: float | None) -> dict[str, Any]:
    return event("evaluation", step, whole=whole, loss=loss, perplexity=9.0, bits_per_byte=step / 10, tokens=7)


def test_the_metrics_of_test_sets(run: RunFolder) -> None:
    """By name, in the order of the log; the last ones of a set that a resumed run evaluated again."""
    figures = {"loss": 0.5, "perplexity": None, "bits_per_byte": None, "accuracy": 0.75, "tokens": 90, "documents": 8}
    log(
        run,
        event("test", 20, name="near", weights=10, **figures),
        event("test", 20, name="far", weights=10, **figures | {"accuracy": 0.5}),
        event("test", 20, name="near", weights=20, **figures | {"accuracy": 1.0}),
    )
    found = describe(run)["tests"]
    assert list(found) == ["near", "far"]
    assert found["near"] == {**figures, "accuracy": 1.0, "step": 20, "weights": 20}


def test_describing(run: RunFolder, tmp_path: Path) -> None:
    empty = describe(run)
    assert (empty["state"], empty["steps"], empty["tokens_seen"], empty["validation"]) == ("empty", 0, 0, None)
    first, second = save(run, 10), save(run, 20)
    run.mark_best(first)
    damage(second)
    log(
        run,
        event("step", 10, tokens=100, seconds=1.5, loss=4.0),
        event("saved", 10, checkpoint="step-000010"),
        evaluation(10, False, 2.0),
        event("step", 20, tokens=200, seconds=3.0, loss=3.0),
        evaluation(20, False, float("nan")),
        evaluation(20, False, None),
        event("saved", 21),
    )
    found = describe(run)
    assert found["state"] == "interrupted"
    assert (found["steps"], found["tokens_seen"], found["seconds"]) == (21, 200, 3.0)
    best = {
        "loss": 2.0,
        "perplexity": 9.0,
        "bits_per_byte": 1.0,
        "accuracy": None,
        "tokens": 7,
        "documents": None,
        "step": 10,
        "whole": False,
        "floor": None,
        "weights": 10,
    }
    assert found["validation"] == best
    assert found["tests"] == {}
    assert found["config"] == {"model": {"dim": 4}}
    marks = {"best": True, "last": False, "verified": True, "problem": None}
    assert found["checkpoints"][0] == {"name": "step-000010", "step": 10, "bytes": first.size(), **marks}
    assert [found["checkpoints"][1][key] for key in ("best", "last", "verified")] == [False, True, False]
    assert found["checkpoints"][1]["problem"].startswith("checkpoint step-000020 is damaged: state.json")
    assert [result["verified"] for result in describe(run, verify=False)["checkpoints"]] == [None, None]
    # Worse than on the sample, but of the whole split.
    whole = [evaluation(21, True, 2.2), evaluation(22, True, 2.1) | {"weights": 10}]
    log(run, *run.metrics(), *whole, event("finished", 22, tokens=220, seconds=30.0))
    found = describe(run)
    assert (found["state"], found["steps"], found["tokens_seen"]) == ("finished", 22, 220)
    assert found["seconds"] == 3.0, "to the last update: to judge the whole split is not training"
    assert found["validation"]["loss"] == 2.1
    assert found["validation"]["whole"] is True
    assert (found["validation"]["step"], found["validation"]["weights"]) == (22, 10)
    json.dumps(found, allow_nan=False)
    listed = list_runs(tmp_path)
    assert [listed[0][key] for key in ("name", "state", "steps", "loss", "bits_per_byte")] == [
        "demo",
        "finished",
        22,
        2.1,
        2.2,
    ]


def test_listing(run: RunFolder, tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "another", {}, overwrite=False)
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "a-file").touch()
    save(run, 5)
    assert [(result["name"], result["state"], result["steps"]) for result in list_runs(tmp_path)] == [
        ("another", "empty", 0),
        ("demo", "interrupted", 5),
    ]
    assert list_runs(tmp_path / "nowhere") == []


def test_differences() -> None:
    a = {"seed": 1, "model": {"dim": 4, "window": (1, None), "only_a": 3, "off": None}}
    b = {"seed": 2, "model": {"dim": 4, "window": [1, None], "only_b": "x"}}
    assert differences(a, b) == {"seed": [1, 2], "model.only_a": [3, None], "model.only_b": [None, "x"]}
    assert differences(a, a) == {}
