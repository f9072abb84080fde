"""The same figures for TensorBoard, trackio and Weights & Biases, by one setting each.

Owns: what is sent to each of them, going on with each of them in a resumed run, and keeping them out of the
way: packages are imported only where a setting names them, nothing is prompted for or printed, without a
network all stays on the disk, and a tracker that fails is noted once and not used again. Does not own: the log
(`observers.MetricsFile`), which has all of it and more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import os
import secrets
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from lilliput.errors import UserError
from lilliput.settings.loading import config_to_dict
from lilliput.settings.tree import Config, LogSettings
from lilliput.storage.run_folders import Run
from lilliput.training.events import Event, Finished, Stepped

PROJECT = "lilliput"  # under which trackio and Weights & Biases keep runs
PATIENCE = 3.0  # seconds for a first connection; without one the run is logged on the disk
FIGURES = {
    "step": ("loss", "lr", "gradient_norm", "tokens", "tokens_per_second", "share_of_peak", "memory_bytes"),
    "evaluation": ("loss", "perplexity", "bits_per_byte", "accuracy"),
    "test": ("loss", "perplexity", "bits_per_byte", "accuracy"),
}


class Tracker(Protocol):
    """`done` is the last step that it knows already; later ones come in their order."""

    done: int

    def log(self, numbers: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Files in the run's own folder. A resumed run discards what came after its checkpoint."""

    def __init__(self, config: Config, run: Run, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=step or None)
        self.done = 0
        for event in run.metrics() if step else []:  # discarded with the rest of its step, and not repeated by the run
            if event["step"] == step:
                self.log(name_numbers(event), step)

    def log(self, numbers: dict[str, float], step: int) -> None:
        for name, number in numbers.items():
            self.writer.add_scalar(name, number, step)

    def close(self) -> None:
        self.writer.close()


class Trackio:
    """A database in the user's folder for trackio (TRACKIO_DIR), or where TRACKIO_SPACE_ID says. What was logged before a run
    was interrupted stays, and is the same that the resumed run comes to."""

    def __init__(self, config: Config, run: Run, step: int) -> None:
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        self.run = trackio.init(
            project=PROJECT,
            name=run.name,
            config=config_to_dict(config),
            resume="allow" if step else "never",
            embed=False,
            auto_log_gpu=False,  # the run's own figures, and no second process that watches the machine
            auto_log_cpu=False,
        )
        self.done = (SQLiteStorage.get_max_step_for_run(PROJECT, self.run.name) or 0) if step else 0

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.run.log(numbers, step=step)

    def close(self) -> None:
        import trackio

        # Not the run's own `finish`: that run would be finished again when the process ends.
        trackio.finish()  # type: ignore[no-untyped-call]


class WeightsAndBiases:
    """Online for who is logged in and connected, else in the run's own folder, from where `wandb sync` sends it."""

    def __init__(self, config: Config, run: Run, step: int) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when the package is imported
        import wandb

        # Figures and settings, and nothing that looks around: no code, no machine (which asks for hosts of a cloud, too).
        own = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True, init_timeout=20.0)
        own.x_disable_stats = own.x_disable_meta = own.x_disable_machine_info = True
        self.run = wandb.init(
            project=PROJECT,
            name=run.name,
            id=own_id(run.folder / "wandb" / "id", keep=step > 0),
            dir=str(run.folder),
            config=config_to_dict(config),
            mode=None if "WANDB_MODE" in os.environ else "online" if can_send(wandb) else "offline",
            resume="allow",
            reinit="finish_previous",
            settings=own,
        )
        self.done = max(0, self.run.step - 1)

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.run.log(numbers, step=step)

    def close(self) -> None:
        self.run.finish()


def can_send(wandb: Any) -> bool:
    """Is there a login, which is never asked for, and does its host answer?"""
    if not wandb.login(prompt=False, verify=False):
        return False
    host = urlsplit(wandb.setup().settings.base_url)
    try:
        port = host.port or (80 if host.scheme == "http" else 443)
        socket.create_connection((host.hostname or "", port), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


def own_id(path: Path, keep: bool) -> str:
    """By which Weights & Biases knows this run and no other of the same name."""
    if keep and path.exists():
        return path.read_text("ascii")
    path.parent.mkdir(parents=True, exist_ok=True)
    made = secrets.token_hex(4)
    path.write_text(made, "ascii")
    return made


TRACKERS: dict[str, tuple[str, Callable[[Config, Run, int], Tracker]]] = {
    "tensorboard": ("TensorBoard", TensorBoard),
    "trackio": ("trackio", Trackio),
    "wandb": ("Weights & Biases", WeightsAndBiases),
}


class TrackerObserver:
    """Keep a tracker out of the way: silent while it works; when it fails, one note, and it is not used again."""

    def __init__(self, name: str, build: Callable[[], Tracker], every: int, note: Callable[[str], None]) -> None:
        self.name, self.every, self.note = name, every, note
        self.tracker: Tracker | None = None
        with self.guarded():
            self.tracker = build()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Stepped) and event.step % self.every and event.progress < 1.0:
            return
        if self.tracker is None or isinstance(event, Finished):
            return
        numbers = name_numbers({"event": event.event, **dataclasses.asdict(event)})
        if numbers and event.step > self.tracker.done:
            with self.guarded():
                self.tracker.log(numbers, event.step)

    def close(self) -> None:
        tracker, self.tracker = self.tracker, None
        if tracker is not None:
            with self.guarded():
                tracker.close()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Whatever goes wrong in a package that only watches must not end the run that it watches."""
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                yield
        except Exception as error:
            self.tracker = None
            why = " ".join(str(error).split()) or type(error).__name__
            self.note(f"{self.name} failed and is not used any more ({why[:200]}); metrics.jsonl has all figures")


def name_numbers(event: Mapping[str, Any]) -> dict[str, float]:
    """A line of the log as numbers with names: train/loss, validation/loss, whole/loss, test-NAME/loss."""
    kind = event["event"]
    place = {"step": "train", "evaluation": "whole" if event.get("whole") else "validation"}.get(kind, "test")
    place = f"{place}-{event['name']}" if kind == "test" else place
    return {f"{place}/{name}": float(event[name]) for name in FIGURES.get(kind, ()) if event.get(name) is not None}


def need_trackers(settings: LogSettings) -> None:
    """Raise if a tracker that the settings name is not installed, before any work is done."""
    for module, (name, _) in TRACKERS.items():
        if getattr(settings, module) and importlib.util.find_spec(module) is None:
            raise UserError(
                f"log.{module} requires {name}, which is not installed",
                f"log.{module}",
                fix='run pip install "lilliput[log]"',
                code="package.missing",
                setting=f"log.{module}",
            )


def note_on_stderr(text: str) -> None:
    print(f"note {text}", file=sys.stderr)


def build_trackers(
    config: Config, run: Run, step: int, note: Callable[[str], None] = note_on_stderr
) -> list[TrackerObserver]:
    """Build the trackers that the settings name, for a run that starts (step 0) or is resumed after `step`."""
    return [
        TrackerObserver(name, lambda build=build: build(config, run, step), config.log.every, note)  # type: ignore[misc]
        for module, (name, build) in TRACKERS.items()
        if getattr(config.log, module)
    ]
