"""TensorBoard, trackio and Weights & Biases: the real packages, offline; their failures do not disturb a run."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.small_runs import small_config, train_small
from lilliput.errors import UserError
from lilliput.storage.run_folders import RunFolder
from lilliput.training import trackers
from lilliput.training.events import Evaluated, Event, Finished, Saved, Stepped, Warned
from lilliput.training.events import Tested as AtTheEnd  # pytest takes a class called Test... for tests
from lilliput.training.observers import MetricsFile
from lilliput.training.session import open_session
from lilliput.training.trackers import TrackerObserver, build_trackers, name_numbers, need_trackers


def stepped(step: int) -> Stepped:
    norm = None if step == 2 else 0.5
    return Stepped(
        step, 4.0 - 0.25 * step, 1e-3, norm, 1000 * step, step / 8, 1.0, 123.0, 5_000_000, False, False, None
    )


def evaluated(step: int) -> Evaluated:
    figures = {"loss": 2.5, "perplexity": 12.2, "bits_per_byte": 1.5, "accuracy": None, "tokens": 9, "documents": None}
    return Evaluated(step=step, whole=False, weights=step, floor=None, **figures)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use no files of the user, and no network."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / "wandb-home"))

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr("socket.create_connection", refuse)
    yield


@pytest.fixture
def trackio_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import trackio.sqlite_storage
    import trackio.utils

    for module in (trackio.utils, trackio.sqlite_storage, trackio):  # read once, when the package is imported
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    return tmp_path / "trackio"


def log_steps(folder: Path, run: RunFolder, first: int, steps: int, notes: list[str], **trackers: str) -> None:
    """Send some steps to the trackers and the log, as a run that was resumed after step `first`."""
    config = small_config(folder, log__every="1", **{f"log__{name}": value for name, value in trackers.items()})
    log = MetricsFile(run, every=1)
    observers = build_trackers(config, run, first, notes.append)
    events: list[Event] = [evaluated(first)] if first else []  # a resumed run evaluates its checkpoint again
    for step in range(first + 1, first + 1 + steps):
        events += [stepped(step), Saved(step, "x"), *([evaluated(step)] if step % 2 == 0 else [])]
    for event in events:
        for observer in (log, *observers):
            observer(event)
    for observer in (log, *observers):
        observer.close()


def scalars(run: RunFolder, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run.folder / "tensorboard"))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(name)]


def rows(folder: Path) -> list[tuple[int, dict[str, float]]]:
    with sqlite3.connect(folder / "lilliput.db") as database:
        found = database.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
    database.close()
    return [(step, json.loads(metrics)) for step, metrics in found]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "mine", {}, overwrite=False)


def test_tensorboard_continues_without_repeated_steps(tmp_path: Path, run: RunFolder) -> None:
    notes: list[str] = []
    log_steps(tmp_path, run, 0, 6, notes, tensorboard="true")
    assert scalars(run, "train/loss") == [(step, 4.0 - 0.25 * step) for step in range(1, 7)]
    assert scalars(run, "validation/bits_per_byte") == [(2, 1.5), (4, 1.5), (6, 1.5)]
    assert [step for step, _ in scalars(run, "train/gradient_norm")] == [1, 3, 4, 5, 6]  # step 2 has no norm
    run.cut_metrics(4)
    log_steps(tmp_path, run, 4, 4, notes, tensorboard="true")
    assert [step for step, _ in scalars(run, "train/loss")] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [step for step, _ in scalars(run, "validation/loss")] == [2, 4, 6, 8]
    assert notes == []


def test_trackio_logs_to_the_disk(
    tmp_path: Path, run: RunFolder, trackio_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes: list[str] = []
    log_steps(tmp_path, run, 0, 5, notes, trackio="true")
    log_steps(tmp_path, run, 3, 4, notes, trackio="true")
    found = [(step, numbers["train/loss"]) for step, numbers in rows(trackio_folder) if "train/loss" in numbers]
    assert found == [(step, 4.0 - 0.25 * step) for step in range(1, 8)]
    assert [step for step, numbers in rows(trackio_folder) if "validation/loss" in numbers] == [2, 4, 6]
    assert notes == [] and capsys.readouterr() == ("", "")


def test_wandb_is_offline_without_a_login(tmp_path: Path, run: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    notes: list[str] = []
    log_steps(tmp_path, run, 0, 3, notes, wandb="true")
    log_steps(tmp_path, run, 2, 2, notes, wandb="true")
    folders = sorted((run.folder / "wandb").glob("offline-run-*"))
    own = (run.folder / "wandb" / "id").read_text()
    assert len(folders) == 2 and all(own in folder.name for folder in folders)  # one run in two parts
    data = (folders[0] / f"run-{own}.wandb").read_bytes()  # protobuf records: a key, a few bytes, a JSON value
    losses = [float(value) for value in re.findall(rb"train/loss[^0-9]{1,4}([0-9.]+)", data)]
    assert list(dict.fromkeys(losses)) == [
        3.75,
        3.5,
        3.25,
    ]  # each appears twice: in the history and as the latest value
    assert notes == [] and capfd.readouterr() == ("", "")


def test_wandb_is_offline_without_a_network(tmp_path: Path, run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setattr(wandb, "login", lambda **_: True)  # logged in, but the host cannot be reached
    log_steps(tmp_path, run, 0, 1, notes := [], wandb="true")
    assert len(list((run.folder / "wandb").glob("offline-run-*"))) == 1 and notes == []


def test_a_failure_gives_one_note_and_the_run_continues(tmp_path: Path) -> None:
    class Broken:
        done, closed = 0, False

        def log(self, numbers: dict[str, float], step: int) -> None:
            print("noise on stdout")
            raise RuntimeError("the\n  server is   gone" if step > 1 else "")

        def close(self) -> None:
            self.closed = True

    notes: list[str] = []
    observer = TrackerObserver("trackio", Broken, 1, notes.append)
    for step in (2, 3, 4):
        observer(stepped(step))
    observer.close()
    (note,) = notes
    assert "trackio" in note and "the server is gone" in note


def test_a_tracker_that_cannot_start_gives_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", lambda *_, **__: 1 / 0)
    run, events = train_small(small_config(tmp_path, train__steps="2", log__tensorboard="true", name="other"))
    assert isinstance(events[-1], Finished) and run.metrics()[-1]["event"] == "finished"
    (note,) = capsys.readouterr().err.splitlines()
    assert "TensorBoard" in note and "division by zero" in note


def test_tensorboard_equals_the_log_of_a_real_run(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path, train__steps="4", log__tensorboard="true", log__every="2"))
    steps = [(event["step"], event["loss"]) for event in run.metrics() if event["event"] == "step"]
    assert [step for step, _ in steps] == [2, 4]
    assert scalars(run, "train/loss") == [(step, pytest.approx(loss)) for step, loss in steps]
    assert [step for step, _ in scalars(run, "whole/loss")] == [4]


def test_a_missing_package_is_an_error_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else found(name))
    config = small_config(tmp_path, log__wandb="true")
    with pytest.raises(UserError) as raised, open_session(config):
        pass
    assert (raised.value.code, raised.value.setting) == ("package.missing", "log.wandb")
    assert not (tmp_path / "prepared").exists()
    need_trackers(dataclasses.replace(config.log, wandb=False, trackio=True))


def test_names_of_metrics() -> None:
    line = {"event": "test", "step": 3, "name": "obama", "loss": 1.0, "perplexity": None, "tokens": 5}
    assert name_numbers(line) == {"test-obama/loss": 1.0}
    assert AtTheEnd.event == "test"
    whole = dataclasses.asdict(dataclasses.replace(evaluated(3), whole=True))
    assert name_numbers({"event": "evaluation", **whole}).keys() == {
        "whole/loss",
        "whole/perplexity",
        "whole/bits_per_byte",
    }
    assert name_numbers({"event": "warning", **dataclasses.asdict(Warned(1, "spike", "text", "title"))}) == {}
    assert trackers.FIGURES.keys() == {"step", "evaluation", "test"}
