"""Run folders: create, find, list, lock, truncate, prune and summarise.

Owns: `config.json`, `metrics.jsonl` (reading and truncating it; observers append), `last`, `best`, the choice of
checkpoints to keep, and summaries that need no torch. Does not own: the content of a checkpoint (`checkpoints`), the
meaning of settings (`settings.tree`), parameter counts (`model`), or printing.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilliput.errors import UserError, nearest
from lilliput.storage import atomic_files as files
from lilliput.storage import checkpoints as store
from lilliput.storage.checkpoints import CONFIG, Checkpoint
from lilliput.storage.dotted_names import flatten
from lilliput.storage.run_lock import hold_lock, is_locked, locked_error

METRICS, CHECKPOINTS, LAST, BEST, LOCK = "metrics.jsonl", "checkpoints", "last", "best", ".lock"
FIGURES = ("loss", "perplexity", "bits_per_byte", "accuracy", "tokens", "documents")  # of an evaluation


@dataclass(frozen=True)
class RunFolder:
    """A folder with settings, a log and checkpoints. Reading needs no lock; training holds `lock()`."""

    folder: Path

    @classmethod
    def create(
        cls,
        folder: Path,
        config: Mapping[str, Any],
        overwrite: bool,
        first: Callable[[RunFolder], object] | None = None,
    ) -> RunFolder:
        """Create a run, or raise if it exists. An old run is replaced only when the new folder is complete.

        `first` may write files that the run must have from the start.
        """
        if folder.is_symlink():
            folder = folder.resolve()  # replace what it points to, not the link
        files.clean_leftovers(folder.parent, folder.name)
        run, new, old, data = (
            cls(folder),
            files.temporary_path(folder),
            looks_like_run(folder),
            files.json_bytes(config),
        )
        if old and not overwrite:
            fix = "resume it, overwrite it or choose another name"
            raise UserError(f"a run named {run.name!r} exists already", str(folder), fix=fix, code="run.exists")
        if old and run.is_locked():
            raise locked_error(folder / LOCK)
        # A config.json alone may belong to another program; only a folder that is certainly a run is removed.
        old = old and ((folder / CHECKPOINTS).is_dir() or (folder / METRICS).is_file())
        if not old and folder.is_dir() and any(folder.iterdir()):
            what = f"folder {run.name} exists and is not a run"
            raise UserError(what, str(folder), fix="choose another name", code="run.name", setting="name")
        try:
            try:
                (new / CHECKPOINTS).mkdir(parents=True)
                files.write_flushed(new / CONFIG, data)
                if first:
                    first(cls(new))
                files.sync_folder(new)
                if old or not folder.exists():
                    files.put_folder(new, folder)
                else:
                    os.rename(new, folder)
            finally:
                files.clean_leftovers(folder.parent, folder.name)
        except OSError as error:
            raise files.cannot_write(error, folder, len(data)) from error
        return run

    @classmethod
    def open(cls, folder: Path) -> RunFolder:
        if not looks_like_run(folder):
            fix = "run lilliput info to list the runs"
            raise UserError(f"{folder} is not the folder of a run", None, fix=fix, code="run.missing")
        return cls(folder)

    @property
    def name(self) -> str:
        return self.folder.name or self.folder.absolute().name

    @property
    def metrics_path(self) -> Path:
        return self.folder / METRICS

    @property
    def checkpoints_folder(self) -> Path:
        return self.folder / CHECKPOINTS

    def config(self) -> dict[str, Any]:
        path = self.folder / CONFIG
        try:
            return files.parse_object(self._read(path))
        except ValueError as error:
            what = f"{CONFIG} of run {self.name} is damaged: {error}"
            fix = f"copy {CONFIG} from one of the folders in {self.checkpoints_folder} to {self.folder}"
            raise UserError(what, str(path), fix=fix, code="file.damaged") from error

    def save_config(self, config: Mapping[str, Any]) -> None:
        """Replace the settings: the budget of a resumed run may have grown."""
        files.write_whole(self.folder / CONFIG, files.json_bytes(config))

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            what = f"cannot read {path.name} of run {self.name}: {error.strerror}"
            raise UserError(what, str(path), fix="check its permissions", code="file.unreadable") from error

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints in ascending order of step, without leftovers of interrupted writes."""
        return store.list_checkpoints(self.checkpoints_folder)

    @property
    def last(self) -> Checkpoint | None:
        return self._marked(LAST)

    @property
    def best(self) -> Checkpoint | None:
        return self._marked(BEST)

    def mark_last(self, checkpoint: Checkpoint) -> None:
        files.write_whole(self.folder / LAST, f"{checkpoint.name}\n".encode("ascii"))

    def mark_best(self, checkpoint: Checkpoint) -> None:
        files.write_whole(self.folder / BEST, f"{checkpoint.name}\n".encode("ascii"))

    def _marked(self, mark: str) -> Checkpoint | None:
        with suppress(OSError, ValueError):
            name = (self.folder / mark).read_text("ascii").strip()
            return next((checkpoint for checkpoint in self.checkpoints() if checkpoint.name == name), None)
        return None

    def newest_valid(self, damaged: Callable[[Checkpoint, UserError], None] | None = None) -> Checkpoint | None:
        """Return the newest valid checkpoint; call `damaged` with each newer one and its error."""
        for checkpoint in reversed(self.checkpoints()):
            try:
                checkpoint.verify()
            except UserError as error:
                if damaged:
                    damaged(checkpoint, error)
            else:
                return checkpoint
        return None

    def prune(self, keep: int) -> list[str]:
        """Remove all checkpoints except `best`, `last` and the newest `keep`; return the names of those removed.

        Checkpoints after `last` are damaged (a resume skipped them): they are not counted, and training replaces them.
        """
        last, best, found = self.last, self.best, self.checkpoints()
        written = [checkpoint for checkpoint in found if last is None or checkpoint.step <= last.step]
        older = written[: max(len(written) - keep, 0)]
        leaving = [checkpoint for checkpoint in older if checkpoint not in (last, best)]
        for checkpoint in leaving:
            with suppress(OSError):  # renamed first: a half-removed checkpoint must not look damaged
                os.rename(checkpoint.folder, self.checkpoints_folder / f"{files.REMOVING}{checkpoint.name}")
        files.clean_leftovers(self.checkpoints_folder)
        return [checkpoint.name for checkpoint in leaving if not checkpoint.folder.exists()]

    def metrics(self) -> list[dict[str, Any]]:
        """Return all events of the log. An incomplete last line is ignored; any other damaged line raises an error."""
        lines = list(self._metrics_lines())
        for number, (line, event) in enumerate(lines, start=1):
            if event is None and line.endswith(b"\n"):
                where = f"{self.metrics_path}, line {number}"
                raise UserError(
                    f"the log of run {self.name} is damaged", where, fix="remove that line", code="file.damaged"
                )
        return [event for _, event in lines if event is not None]

    def cut_metrics(self, step: int) -> int:
        """Remove events after step `step` and damaged lines; return their number. Open the file only afterwards.

        Events that follow the optimizer step within `step` (saving, evaluation, end) are removed too, because a resumed run
        repeats them. Warnings of the optimizer step come first and stay.
        """
        lines, kept, after = list(self._metrics_lines()), list[bytes](), False
        for line, event in lines:
            if event is None:
                continue
            after |= event["step"] == step and event["event"] not in ("step", "warning")
            if event["step"] < step or (event["step"] == step and not after):
                kept.append(line)
        if len(kept) < len(lines) or (kept and not kept[-1].endswith(b"\n")):
            files.write_whole(self.metrics_path, b"".join(line.rstrip(b"\n") + b"\n" for line in kept))
        return len(lines) - len(kept)

    def rewind(self, checkpoint: Checkpoint) -> None:
        """Remove everything after `checkpoint` from the log, `last` and `best`, to resume from it."""
        self.cut_metrics(checkpoint.step)
        self.mark_last(checkpoint)
        best = self.best
        if best and best.step > checkpoint.step:
            (self.folder / BEST).unlink()

    def _metrics_lines(self) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
        data = self._read(self.metrics_path) if self.metrics_path.exists() else b""
        for line in io.BytesIO(data):
            event: dict[str, Any] | None = None
            with suppress(ValueError):
                event = files.parse_object(line)
            whole = event is not None and isinstance(event.get("event"), str) and isinstance(event.get("step"), int)
            yield line, event if whole else None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the run while training, and remove what a killed process left behind."""
        with hold_lock(self.folder / LOCK):
            files.clean_leftovers(self.folder)
            files.clean_leftovers(self.checkpoints_folder)
            yield

    def is_locked(self) -> bool:
        return is_locked(self.folder / LOCK)


def looks_like_run(folder: Path) -> bool:
    return os.path.isfile(folder / CONFIG) and not store.looks_like_checkpoint(folder)


def find_run(path_or_name: str | Path, runs_folder: str | Path = "runs") -> RunFolder | Checkpoint:
    """Find the folder of a run or a checkpoint, or a run in `runs_folder` by name; paths have precedence."""
    given, runs = str(path_or_name), Path(runs_folder)
    places = [Path(given), runs / given] if given else []
    for place in places:
        if os.path.isdir(place) and store.looks_like_checkpoint(place):
            return Checkpoint.open(place)
        if looks_like_run(place):
            return RunFolder(place)
    names = [run.name for run in _runs_in(runs)]
    close = nearest(Path(given).name, names)
    fix = "run lilliput info to list the runs" if names else "run lilliput train to train one"
    fix = f"use {close}" if close else fix
    there = next((place for place in places if os.path.exists(place)), None)
    if there is None:
        what = f"run or checkpoint {given!r} does not exist"
        raise UserError(what, f"the current folder and the folder {runs}", fix=fix, code="run.missing")
    if os.path.isfile(there):
        what = f"expected the folder of a run or a checkpoint (got the file {given})"
        raise UserError(what, str(there), fix=fix, code="run.missing")
    inside = [run.folder for run in _runs_in(there)]
    fix = f"use {inside[0]}" if inside else fix
    raise UserError(f"{given} is neither a run nor a checkpoint", str(there), fix=fix, code="run.missing")


def resolve_checkpoint(path_or_name: str | Path, runs_folder: str | Path = "runs") -> Checkpoint:
    """Return the checkpoint to read: `best`, else `last`, else the newest. It is not verified here."""
    found = find_run(path_or_name, runs_folder)
    if isinstance(found, Checkpoint):
        return found
    checkpoint = found.best or found.last or next(reversed(found.checkpoints()), None)
    if checkpoint is None:
        what, fix = f"run {found.name} has no checkpoint", "resume its training"
        raise UserError(what, str(found.folder), fix=fix, code="run.no-checkpoint")
    return checkpoint


def _runs_in(folder: Path) -> list[RunFolder]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    return [RunFolder(entry) for entry in entries if looks_like_run(entry) and not entry.name.startswith(".")]


def list_runs(folder: str | Path = "runs") -> list[dict[str, Any]]:
    """Return a summary of each run, by name; a run with a damaged log has the state "damaged"."""
    return [summarise_run(run) for run in _runs_in(Path(folder))]


def summarise_run(place: RunFolder | Checkpoint) -> dict[str, Any]:
    """Return the state and the metrics of a run, or of the run that contains a checkpoint."""
    run = place if isinstance(place, RunFolder) else RunFolder.open(place.folder.absolute().parents[1])
    try:
        events, problem = run.metrics(), None
    except UserError as error:
        events, problem = [], error.what
    found, validation = run.checkpoints(), best_validation(events) or {}
    progress = [event for event in events if event["event"] in ("step", "finished")]
    updates = [event for event in progress if event["event"] == "step"]
    ended = bool(progress) and progress[-1]["event"] == "finished"
    state = "running" if run.is_locked() else "damaged" if problem else "finished" if ended else "interrupted"
    return {
        "name": run.name,
        "folder": str(run.folder),
        "state": "empty" if state == "interrupted" and not events and not found else state,
        "steps": max([event["step"] for event in events] + [checkpoint.step for checkpoint in found], default=0),
        "tokens_seen": next((event["tokens"] for event in reversed(progress) if "tokens" in event), 0),
        # Until the last step, as in a study: the final evaluation is not training.
        "seconds": next((event["seconds"] for event in reversed(updates) if "seconds" in event), 0.0),
        "limited_at": progress[-1].get("limited_at") if ended else None,  # older logs do not have it
        "loss": validation.get("loss"),
        "bits_per_byte": validation.get("bits_per_byte"),
        "accuracy": validation.get("accuracy"),
    }


def best_validation(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the evaluation with the lowest loss; evaluations of the whole split have precedence over samples."""
    known = [event for event in events if event["event"] == "evaluation" and event.get("loss") is not None]
    known = [event for event in known if math.isfinite(event["loss"])]
    known = [event for event in known if event.get("whole")] or known
    best = min(known, key=lambda event: float(event["loss"]), default=None)
    if best is None:
        return None
    kept = {key: best.get(key) for key in (*FIGURES, "step", "whole", "floor")}
    return kept | {"weights": best.get("weights", best["step"])}  # older logs have no "weights"


def figures_of_tests(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the metrics of each test set by name; the last ones if it was evaluated several times."""
    tests = [event for event in events if event["event"] == "test"]
    return {event["name"]: {key: event.get(key) for key in (*FIGURES, "step", "weights")} for event in tests}


def describe(run: RunFolder, verify: bool = True) -> dict[str, Any]:
    """Return what `info` reports about a run without torch. `verify` reads every byte of every checkpoint."""
    summary, events, best, last = summarise_run(run), run.metrics(), run.best, run.last
    checkpoints = []
    for checkpoint in run.checkpoints():
        entry: dict[str, Any] = {"name": checkpoint.name, "step": checkpoint.step, "bytes": checkpoint.size()}
        entry |= {"best": checkpoint == best, "last": checkpoint == last, "verified": None, "problem": None}
        if verify:
            try:
                checkpoint.verify()
            except UserError as error:
                entry["problem"] = error.what
            entry["verified"] = entry["problem"] is None
        checkpoints.append(entry)
    kept = {key: summary[key] for key in ("name", "folder", "state", "steps", "tokens_seen", "seconds", "limited_at")}
    found = {"validation": best_validation(events), "tests": figures_of_tests(events)}
    return kept | {"config": run.config()} | found | {"checkpoints": checkpoints}


def differences(config_a: Mapping[str, Any], config_b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the settings that differ, by dotted name, as [a, b]; a missing setting is None."""
    a, b = flatten(config_a), flatten(config_b)
    return {name: [a.get(name), b.get(name)] for name in [*a, *(b.keys() - a.keys())] if a.get(name) != b.get(name)}
