"""What a study has found: the folder in which its runs, its figures and its report are.

Owns: `study.json` (the study, every cell's complete settings, versions, machine, command, times),
`metrics.jsonl` (a line for each cell and seed that was measured), `processes.jsonl` (a line for each process
that ended), `table.csv`, and refusing a folder that holds another study. Does not own: making any of it
happen (`runner`), the runs themselves (`lilliput.storage.run_folders`), tables and sentences for people
(`study_report`). Needs no torch.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lilliput import __version__
from lilliput.errors import UserError
from lilliput.settings.loading import as_begun, config_to_dict
from lilliput.settings.source_names import INPUT_PATHS, resolve_input
from lilliput.storage import atomic_files as files
from lilliput.storage.dotted_names import flatten
from lilliput.storage.run_folders import Run, differences, looks_like_run
from lilliput.studies.grid import Cell, Study, cell_config, cells, study_from_dict

STUDY, METRICS, PROCESSES, TABLE, LOCK = "study.json", "metrics.jsonl", "processes.jsonl", "table.csv", ".lock"
FORMAT = 1
LIBRARIES = ("torch", "numpy", "numba", "tokenizers", "safetensors", "sacrebleu")


@dataclass(frozen=True)
class Row:
    """The figures of one cell with one seed. `measures` are those that gave them."""

    cell: dict[str, str]
    seed: int
    run: str
    figures: dict[str, float]
    measures: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyResult:
    """A study with what is known of it so far, the rows in the order of its cells, each with all its seeds."""

    folder: Path
    study: Study
    rows: list[Row]
    about: dict[str, Any] = field(default_factory=dict)

    def curve(self, run: str) -> list[dict[str, Any]]:
        """The lines of the run's own log."""
        return Run(self.folder / run).metrics()


@contextmanager
def open_result(study: Study, folder: Path, command: str, overwrite: bool = False) -> Iterator[StudyResult]:
    """The folder of a study, made, or gone on with if it is this study's, and locked; of another's, the refusal."""
    files.clean_leftovers(folder.parent, folder.name)
    if overwrite and (folder / STUDY).exists():
        remove_study(folder)
    if looks_like_run(folder):
        what = f"{folder} is the folder of a run, not of a study"
        raise UserError(what, str(folder), fix="use another folder", code="run.exists", setting="folder")
    if folder.is_dir() and not (folder / STUDY).exists() and any(entry.name != LOCK for entry in folder.iterdir()):
        what = f"{folder} exists and is not a study"
        raise UserError(what, str(folder), fix="use another folder", code="run.exists", setting="folder")
    settings = [{"labels": cell.labels, "settings": complete} for cell, complete in complete_settings(study)]
    about: dict[str, Any] = {"command": command, "versions": versions(), "machine": machine()}
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
    """Versions and parts of the machine that were others when some of the figures were made, by their names."""
    found: dict[str, list[str]] = {name: list(others) for name, others in before.get("changed", {}).items()}
    for part in ("versions", "machine"):
        for name, value in before[part].items():
            if value != after[part].get(name) and str(value) not in found.setdefault(name, []):
                found[name].append(str(value))
    return {name: others for name, others in found.items() if others}


def remove_study(folder: Path) -> None:
    """Renamed first: what is half removed must not look like a study."""
    with locked(folder):
        gone = folder.with_name(f"{files.REMOVING}{folder.name}")
        os.rename(folder, gone)
    shutil.rmtree(gone)


def refuse_other(study: Study, folder: Path, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """A study may gain and lose cells and seeds; a cell that stays must be what it was."""
    fix = "use another folder, or overwrite the study"
    common = [
        (old["labels"], old["settings"], new["settings"])
        for old in before
        for new in after
        if old["labels"] == new["labels"]
    ]
    if not common:
        what = f"{folder} holds another study named {study.name}: no cell is the same"
        raise UserError(what, str(folder), fix=fix, code="study.changed")
    for labels, old, new in common:
        for name, (was, wanted) in differences(as_begun(old, str(folder / STUDY)), new).items():
            if name in old or name in new:  # others are no part of a cell
                cell = f" of {', '.join(labels.values())}" if labels else ""
                what = f"{name}{cell} was {was} when study {study.name} began, and is {wanted} now"
                raise UserError(what, str(folder), fix=fix, code="study.changed", setting=name)


def complete_settings(study: Study) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Each cell with every setting, but for what differs from run to run. Paths are whole, from wherever the study is called;
    that of the data's folder is told by its name, since it is another one on the next machine."""
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
    """When all is done that could be: the times, what failed, and the table."""
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
            raise ValueError(f"format {content.get('format')}, not {FORMAT}")
        return content | {"study": study_from_dict(content["study"])}
    except OSError as error:
        what = f"{folder} is not the folder of a study: it has no {STUDY}"
        raise UserError(what, str(folder), fix="name the folder of a study", code="study.missing") from error
    except (ValueError, KeyError, ValidationError) as error:
        what = f"{STUDY} is damaged: {str(error).splitlines()[0]}"
        raise UserError(what, str(path), fix="overwrite the study", code="file.damaged") from error


def read_result(folder: str | Path) -> StudyResult:
    """What the folder of a study holds. Of a cell and seed that were measured twice, the later figures go before."""
    place = Path(folder)
    content = read_study(place)
    study: Study = content["study"]
    found: dict[tuple[tuple[tuple[str, str], ...], int], Row] = {}
    for number, line in enumerate(read_lines(place / METRICS), start=1):
        try:
            row = Row(line["cell"], line["seed"], line["run"], line["figures"], tuple(line["measures"]))
            found[tuple(sorted(row.cell.items())), row.seed] = row
        except (KeyError, TypeError, AttributeError) as error:
            where = f"{place / METRICS}, line {number}"
            what = f"{METRICS} is damaged: a line has not the keys of a measurement"
            raise UserError(what, where, fix="remove that line", code="file.damaged") from error
    wanted = [(tuple(sorted(cell.labels.items())), seed) for cell in cells(study) for seed in study.seeds]
    about = content["about"] | {"config": content["cells"][0]["settings"]}
    return StudyResult(place, study, [found[key] for key in wanted if key in found], about)


# Lines.


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """One object, in the hands of the disk before anything else happens."""
    data = (json.dumps(line, allow_nan=False) + "\n").encode("utf-8")
    try:
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise files.cannot_write(error, path, len(data)) from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines; one that was being written when its process ended is none."""
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
    """Removes a line that was being written, so that the next one begins on its own."""
    if path.exists():
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            files.write_whole(path, data[: data.rfind(b"\n") + 1])


def table(result: StudyResult) -> str:
    """A row for each cell and seed, a column for each figure that any of them has."""
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
    """Held while a study is run: a second process is refused."""
    import filelock

    lock = filelock.FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0.3)  # as long as it takes another one to look
    except filelock.Timeout:
        what, fix = f"another process runs the study in {folder}", "wait until it has ended, or use another folder"
        raise UserError(what, str(folder), fix=fix, code="run.locked", setting="folder") from None
    except OSError as error:
        raise files.cannot_write(error, folder / LOCK) from error
    try:
        yield
    finally:
        lock.release()


# Circumstances.


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Of what computes: told by the packages' own records, since importing them takes seconds."""
    found = {"lilliput": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine() -> dict[str, Any]:
    """What times depend on; nothing that tells whose it is."""
    about: dict[str, Any] = {"system": platform.system(), "processor": processor(), "cores": os.cpu_count()}
    if sys.platform != "win32":
        with suppress(ValueError, OSError):
            about["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return about


def processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
