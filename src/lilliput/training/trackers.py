"""Metrics for TensorBoard, trackio and Weights & Biases, with one setting each.

Owns: the metrics that each tracker receives, and continuing them in a resumed run. A tracker must not disturb the
run: its package is imported only if its setting is on, it prints and prompts nothing, it logs to the disk without
a network, and after an error it is switched off with one note. Does not own: the log (`observers.MetricsFile`),
which has all metrics.
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
from lilliput.storage.run_folders import RunFolder
from lilliput.training.events import Event, Finished, Stepped

PROJECT = "lilliput"  # in trackio and Weights & Biases
PATIENCE = 3.0  # seconds to wait for a connection before logging to the disk
FIGURES = {
    "step": ("loss", "lr", "gradient_norm", "tokens", "tokens_per_second", "share_of_peak", "memory_bytes"),
    "evaluation": ("loss", "perplexity", "bits_per_byte", "accuracy"),
    "test": ("loss", "perplexity", "bits_per_byte", "accuracy"),
}


class Tracker(Protocol):
    """`done` is the last step that was logged before; only later steps are logged."""

    done: int

    def log(self, numbers: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Files in the run's folder. A resumed run discards values after its checkpoint."""

    def __init__(self, config: Config, run: RunFolder, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=step or None)
        self.done = 0
        for event in (
            run.metrics() if step else []
        ):  # `purge_step` also discards this step, which the run does not repeat
            if event["step"] == step:
                self.log(name_numbers(event), step)

    def log(self, numbers: dict[str, float], step: int) -> None:
        for name, number in numbers.items():
            self.writer.add_scalar(name, number, step)

    def close(self) -> None:
        self.writer.close()


class Trackio:
    """A database in TRACKIO_DIR, or a Space (TRACKIO_SPACE_ID). Values from before an interruption stay: the resumed run would
    repeat the same ones."""

    def __init__(self, config: Config, run: RunFolder, step: int) -> None:
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        self.run = trackio.init(
            project=PROJECT,
            name=run.name,
            config=config_to_dict(config),
            resume="allow" if step else "never",
            embed=False,
            auto_log_gpu=False,  # no monitoring of the machine
            auto_log_cpu=False,
        )
        self.done = (SQLiteStorage.get_max_step_for_run(PROJECT, self.run.name) or 0) if step else 0

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.run.log(numbers, step=step)

    def close(self) -> None:
        import trackio

        # Not `self.run.finish`: trackio would finish that run again when the process ends.
        trackio.finish()  # type: ignore[no-untyped-call]


class WeightsAndBiases:
    """Online if the user is logged in and connected; else files in the run's folder, which `wandb sync` uploads."""

    def __init__(self, config: Config, run: RunFolder, step: int) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when the package is imported
        import wandb

        # Send only metrics and settings: no code and no machine data, whose collection also contacts cloud hosts.
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
    """Return whether the user is logged in and the host can be reached, without a prompt."""
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
    """Return the id of the run at Weights & Biases: the saved one if `keep`, else a new one."""
    if keep and path.exists():
        return path.read_text("ascii")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = secrets.token_hex(4)
    path.write_text(new, "ascii")
    return new


TRACKERS: dict[str, tuple[str, Callable[[Config, RunFolder, int], Tracker]]] = {
    "tensorboard": ("TensorBoard", TensorBoard),
    "trackio": ("trackio", Trackio),
    "wandb": ("Weights & Biases", WeightsAndBiases),
}


class TrackerObserver:
    """Run a tracker without output. If it fails, print one note and stop using it."""

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
        """Hide output, and switch the tracker off after any error: it must not end the run."""
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                yield
        except Exception as error:
            self.tracker = None
            reason = " ".join(str(error).split()) or type(error).__name__
            self.note(f"{self.name} failed and is switched off ({reason[:200]}); metrics.jsonl has all metrics")


def name_numbers(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of an event by name: train/loss, validation/loss, whole/loss, test-NAME/loss."""
    kind = event["event"]
    prefix = {"step": "train", "evaluation": "whole" if event.get("whole") else "validation"}.get(kind, "test")
    prefix = f"{prefix}-{event['name']}" if kind == "test" else prefix
    return {f"{prefix}/{name}": float(event[name]) for name in FIGURES.get(kind, ()) if event.get(name) is not None}


def need_trackers(settings: LogSettings) -> None:
    """Raise if a tracker of the settings is not installed."""
    for module, (name, _) in TRACKERS.items():
        if getattr(settings, module) and importlib.util.find_spec(module) is None:
            raise UserError(
                f"log.{module} requires the package {module} ({name}), which is not installed",
                fix='run pip install "lilliput[log]"',
                code="package.missing",
                setting=f"log.{module}",
            )


def note_on_stderr(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def build_trackers(
    config: Config, run: RunFolder, step: int, note: Callable[[str], None] = note_on_stderr
) -> list[TrackerObserver]:
    """Build the trackers of the settings, for a run that starts (step 0) or is resumed after `step`."""
    return [
        TrackerObserver(name, lambda build=build: build(config, run, step), config.log.every, note)  # type: ignore[misc]
        for module, (name, build) in TRACKERS.items()
        if getattr(config.log, module)
    ]
