"""The folder of a study: its definition, metrics and table.

Owns: `study.json` (the study, every cell's complete settings, versions, machine, command, times), `metrics.jsonl` (a
line per measured cell and seed), `processes.jsonl` (a line per finished process), `table.csv`, and the check that a
folder holds the same study. Does not own: running a study (`runner`), run folders (`storage.run_folders`), the report
(`study_report`). Does not import torch.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lilliput.errors import UserError
from lilliput.settings.loading import as_begun, config_to_dict
from lilliput.settings.source_names import INPUT_PATHS, resolve_input
from lilliput.storage import atomic_files as files
from lilliput.storage.dotted_names import flatten
from lilliput.storage.environment import describe_hardware, describe_versions
from lilliput.storage.run_folders import RunFolder, differences, looks_like_run
from lilliput.studies.grid import Cell, Study, cell_config, cells, study_from_dict

STUDY, METRICS, PROCESSES, TABLE, LOCK = "study.json", "metrics.jsonl", "processes.jsonl", "table.csv", ".lock"
FORMAT = 1
LIBRARIES = ("torch", "numpy", "numba", "tokenizers", "safetensors", "sacrebleu")


@dataclass(frozen=True)
class Row:
    """The metrics and texts of one cell with one seed; `measures` returned them."""

    cell: dict[str, str]
    seed: int
    run: str
    figures: dict[str, float]
    measures: tuple[str, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyResult:
    """A study with its results so far; rows are ordered by cell, then by seed."""

    folder: Path
    study: Study
    rows: list[Row]
    about: dict[str, Any] = field(default_factory=dict)

    def curve(self, run: str) -> list[dict[str, Any]]:
        """Return the lines of the run's log."""
        return RunFolder(self.folder / run).metrics()


@contextmanager
def open_result(study: Study, folder: Path, command: str, overwrite: bool = False) -> Iterator[StudyResult]:
    """Create or reopen the folder of a study and lock it; raise an error if it holds another study."""
    files.clean_leftovers(folder.parent, folder.name)
    if overwrite and (folder / STUDY).exists():
        remove_study(folder)
    if looks_like_run(folder):
        what = f"{folder} is a run folder, not a study folder"
        raise UserError(what, str(folder), fix="use another folder", code="run.exists", setting="folder")
    if folder.is_dir() and not (folder / STUDY).exists() and any(entry.name != LOCK for entry in folder.iterdir()):
        what = f"{folder} is not empty and not a study folder"
        raise UserError(what, str(folder), fix="use another folder", code="run.exists", setting="folder")
    settings = [{"labels": cell.labels, "settings": complete} for cell, complete in complete_settings(study)]
    about: dict[str, Any] = {
        "command": command,
        "versions": describe_versions(LIBRARIES),
        "machine": describe_hardware(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.cannot_write(error, folder) from error
    with locked(folder):
        about |= {"began": now(), "ended": None}
        if (folder / STUDY).exists():
            before = read_study(folder)
            refuse_other(study, folder, before["cells"], settings)
            about["began"] = before["about"]["began"]
            about["changed"] = find_changes(before["about"], about)
        for name in (METRICS, PROCESSES):
            drop_tail(folder / name)
        content = {"format": FORMAT, "study": study.as_dict(), "about": about, "cells": settings}
        files.write_whole(folder / STUDY, files.json_bytes(content))
        yield read_result(folder)


def find_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return, by name, the earlier versions and machine properties that differ from the present ones."""
    found: dict[str, list[str]] = {name: list(others) for name, others in before.get("changed", {}).items()}
    for part in ("versions", "machine"):
        for name, value in before[part].items():
            if value != after[part].get(name) and str(value) not in found.setdefault(name, []):
                found[name].append(str(value))
    return {name: others for name, others in found.items() if others}


def remove_study(folder: Path) -> None:
    """Remove a study's folder. It is renamed first, so that a half-removed folder does not look like a study."""
    with locked(folder):
        gone = folder.with_name(f"{files.REMOVING}{folder.name}")
        os.rename(folder, gone)
    shutil.rmtree(gone)


def refuse_other(study: Study, folder: Path, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """Raise an error if a cell has other settings than before. Cells and seeds may be added or removed, and texts (title,
    question, published) may change."""
    fix = "use another folder, or overwrite the study"
    common = [
        (old["labels"], old["settings"], new["settings"])
        for old in before
        for new in after
        if old["labels"] == new["labels"]
    ]
    if not common:
        what = f"{folder} holds another study named {study.name}, which has none of these cells"
        raise UserError(what, str(folder), fix=fix, code="study.changed")
    for labels, old, new in common:
        for name, (was, wanted) in differences(as_begun(old, str(folder / STUDY)), new).items():
            if name in old or name in new:  # a setting of the cell, not of its runs
                cell = f" of {', '.join(labels.values())}" if labels else ""
                what = f"{name}{cell} was {was} when study {study.name} started (got {wanted})"
                raise UserError(what, str(folder), fix=fix, code="study.changed", setting=name)


def complete_settings(study: Study) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Yield each cell with all settings except those that differ between runs. Paths are absolute, with $LILLIPUT_DATA in
    place of the data folder, which differs between machines."""
    data = os.environ.get("LILLIPUT_DATA")
    for cell in cells(study):
        settings = flatten(config_to_dict(cell_config(study, cell.settings)))
        for name in ("seed", "name", "log.folder", "train.steps", "train.tokens", "train.minutes"):
            del settings[name]
        settings |= {name: resolve_input(settings[name], Path.cwd()) for name in INPUT_PATHS}
        settings |= {name: value for name, value in cell.settings.items() if name.startswith(("budget.", "measure."))}
        text = json.dumps(settings)
        if data:
            text = text.replace(json.dumps(data)[1:-1], "$LILLIPUT_DATA")
        yield cell, json.loads(text)


def close_result(folder: Path, seconds: float, failed: Sequence[Mapping[str, str]]) -> StudyResult:
    """Write the end time, the failures and the table."""
    content = read_study(folder)
    content["study"] = content["study"].as_dict()
    content["about"] |= {"ended": now(), "seconds": seconds, "failed": list(failed)}
    files.write_whole(folder / STUDY, files.json_bytes(content))
    result = read_result(folder)
    files.write_whole(folder / TABLE, table(result).encode("utf-8"))
    return result


def read_study(folder: Path) -> dict[str, Any]:
    path = folder / STUDY
    try:
        content = files.parse_object(path.read_bytes())
        if content.get("format") != FORMAT:
            raise ValueError(f"format must be {FORMAT} (got {content.get('format')})")
        return content | {"study": study_from_dict(content["study"])}
    except OSError as error:
        what = f"{folder} is not a study folder: it has no {STUDY}"
        raise UserError(what, str(folder), fix="use the folder of a study", code="study.missing") from error
    except (ValueError, KeyError, ValidationError) as error:
        what = f"{STUDY} is damaged: {str(error).splitlines()[0]}"
        raise UserError(what, str(path), fix="overwrite the study", code="file.damaged") from error


def read_result(folder: str | Path) -> StudyResult:
    """Read the folder of a study. If a cell and seed were measured twice, the later metrics are returned."""
    place = Path(folder)
    content = read_study(place)
    study: Study = content["study"]
    found: dict[tuple[tuple[tuple[str, str], ...], int], Row] = {}
    for number, line in enumerate(read_lines(place / METRICS), start=1):
        try:
            measures, texts = tuple(line["measures"]), line.get("texts", {})
            row = Row(line["cell"], line["seed"], line["run"], line["figures"], measures, texts)
            found[tuple(sorted(row.cell.items())), row.seed] = row
        except (KeyError, TypeError, AttributeError) as error:
            where = f"{place / METRICS}, line {number}"
            what = f"{METRICS} is damaged: a line does not have the keys of a measurement"
            raise UserError(what, where, fix="remove that line", code="file.damaged") from error
    wanted = [(tuple(sorted(cell.labels.items())), seed) for cell in cells(study) for seed in study.seeds]
    about = content["about"] | {"config": content["cells"][0]["settings"]}
    return StudyResult(place, study, [found[key] for key in wanted if key in found], about)


# Lines.


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append one JSON object and flush it to disk."""
    data = (json.dumps(line, allow_nan=False) + "\n").encode("utf-8")
    try:
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise files.cannot_write(error, path, len(data)) from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return all complete lines; a truncated last line is ignored."""
    if not path.exists():
        return []
    found = []
    *whole, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(whole, start=1):
        try:
            found.append(files.parse_object(line))
        except ValueError as error:
            what, where = f"{path.name} is damaged: a line is not a JSON object", f"{path}, line {number}"
            raise UserError(what, where, fix="remove that line", code="file.damaged") from error
    return found


def drop_tail(path: Path) -> None:
    """Remove a truncated last line, so that the next line starts at the beginning."""
    if path.exists():
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            files.write_whole(path, data[: data.rfind(b"\n") + 1])


def table(result: StudyResult) -> str:
    """Return the CSV: a row per cell and seed, a column per metric."""
    axes = [axis.name for axis in result.study.axes]
    figures = list(dict.fromkeys(name for row in result.rows for name in row.figures))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*axes, "seed", "run", *figures])
    for row in result.rows:
        writer.writerow(
            [*(row.cell[axis] for axis in axes), row.seed, row.run, *(row.figures.get(name, "") for name in figures)]
        )
    return text.getvalue()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a running study; raise an error if another process holds it."""
    import filelock

    lock = filelock.FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0.3)  # another process may hold it briefly to read the study
    except filelock.Timeout:
        what, fix = f"another process is running the study in {folder}", "wait for it to end, or use another folder"
        raise UserError(what, str(folder), fix=fix, code="run.locked", setting="folder") from None
    except OSError as error:
        raise files.cannot_write(error, folder / LOCK) from error
    try:
        yield
    finally:
        lock.release()


# Environment.


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
