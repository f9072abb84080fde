"""`lilliput.study`: run a study from Python.

Owns: `StudyOutcome`, and what Ctrl-C does. Does not own: the processes of a study (`studies.runner`), its progress
(`study_progress`), or its report (`studies.study_report`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lilliput.api.arguments import as_path, checked, python_errors
from lilliput.api.consoles import choose_output
from lilliput.api.rendering import as_html, as_text, rows_table
from lilliput.settings.tree import Seed

if TYPE_CHECKING:
    from lilliput.studies.study_results import StudyResult


class StudyOutcome:
    """The measurements of a study. `print` shows its verdict and its table."""

    def __init__(self, result: StudyResult) -> None:
        self.result = result

    @property
    def name(self) -> str:
        return self.result.study.name

    @property
    def folder(self) -> Path:
        """The folder of the study: its runs, table.csv and report.html."""
        return self.result.folder

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row per cell and seed: the labels of the cell, the seed, the run, and a column per metric."""
        return [{**row.cell, "seed": row.seed, "run": row.run, **row.figures} for row in self.result.rows]

    @property
    def verdict(self) -> list[str]:
        """What the study shows, one sentence per line."""
        from lilliput.studies.study_verdict import verdict_lines

        return verdict_lines(self.result)

    @property
    def missing(self) -> list[dict[str, Any]]:
        """The cells and seeds that are not measured: a process failed, or the study was interrupted."""
        from lilliput.studies.comparison import find_missing

        return [{"cell": cell, "seed": seed} for cell, seed in find_missing(self.result)]

    @property
    def finished(self) -> bool:
        return not self.missing

    def to_dict(self) -> dict[str, Any]:
        return {
            "study": self.name,
            "folder": str(self.folder),
            "verdict": self.verdict,
            "table": self.table,
            "missing": self.missing,
            "failed": list(self.result.about.get("failed", [])),
        }

    def __repr__(self) -> str:
        return f"StudyOutcome({self.name!r}, {len(self.table)} measurements, {len(self.missing)} missing)"

    def __str__(self) -> str:
        return as_text([*map(Text, self.verdict), rows_table(self._shown())])

    def _repr_html_(self) -> str:
        return as_html([*map(Text, self.verdict), rows_table(self._shown())])

    def _shown(self) -> list[dict[str, Any]]:
        """Return the table with the metrics that the study shows."""
        from lilliput.studies.study_verdict import shown_figures

        names = {*shown_figures(self.result)} if self.result.rows else set()
        return [
            {**row.cell, "seed": row.seed, **{name: value for name, value in row.figures.items() if name in names}}
            for row in self.result.rows
        ]


def study(
    name: str | os.PathLike[str],
    *,
    quick: bool = False,
    seeds: Sequence[int] | None = None,
    folder: str | os.PathLike[str] = "runs",
    overwrite: bool = False,
    progress: bool = True,
) -> StudyOutcome:
    """Run a study (the name of a shipped one, or a .toml file) and return its measurements; finished work is kept.

    `quick` runs its short form. `seeds` replace those of the study. Ctrl-C saves the present run and returns what is
    measured; the same call continues.

    >>> lilliput.study("window.toml", quick=True, progress=False).table[0]["seed"]
    1
    """
    chosen = checked("seeds", seeds, list[Seed] | None)
    for word, value in (("quick", quick), ("overwrite", overwrite), ("progress", progress)):
        checked(word, value, bool)
    from lilliput.api.study_progress import showing
    from lilliput.studies.grid import load_study
    from lilliput.studies.runner import run_study
    from lilliput.studies.study_report import write_report
    from lilliput.studies.study_results import read_result
    from lilliput.studies.subprocesses import Interrupted

    with python_errors(argument="name"):
        loaded = load_study(as_path(name, "name"), quick, chosen)
        place = Path(as_path(folder, "folder")) / loaded.folder_name
        try:
            with showing(choose_output(progress)) as report:
                result = run_study(loaded, place, report, overwrite)
        except Interrupted:
            return StudyOutcome(read_result(place))
        if result.rows:
            write_report(result)
        return StudyOutcome(result)
