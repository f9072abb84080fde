"""`lilliput report`: a run or a study as a page to read, print and hand in."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lilliput.cli.error_flags import flags_in_errors
from lilliput.cli.output import figures, print_json
from lilliput.errors import UserError

if TYPE_CHECKING:
    from lilliput.storage.run_folders import Run

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput report demo                          a run: figures, curves, texts, heads, settings
    lilliput report window                        a study, as far as it has come
    lilliput report demo --out demo.html          somewhere else, with demo.md beside it
    lilliput report demo --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="RUN|STUDY", help="a run or a study: its folder, or its name in runs/")
    parser.add_argument("--out", metavar="FILE", help="the .html file to write [report.html in its folder]")
    parser.add_argument("--folder", default="runs", help="folder of runs and studies [runs]")
    parser.add_argument("--json", action="store_true", help="where the files are, as one JSON object on stdout")


def run(arguments: argparse.Namespace) -> int:
    from lilliput.reports.report_files import check_place

    out = Path(arguments.out) if arguments.out is not None else None
    if out is not None:
        with flags_in_errors():
            check_place(out)
    study = find_study_folder(arguments.target, arguments.folder)
    if study is not None:
        from lilliput.studies.study_report import write_report
        from lilliput.studies.study_results import read_result

        page, markdown = write_report(read_result(study), out)
    else:
        found = find_trained(arguments.target, arguments.folder)
        from lilliput.reports.run_report import write_run_report

        page, markdown = write_run_report(found, out)
    if arguments.json:
        print_json({"kind": "run" if study is None else "study", "html": str(page), "markdown": str(markdown)})
    else:
        print_report_path(page)
    return 0


def print_report_path(page: Path) -> None:
    """Print where a report is, and how to open it."""
    opener = {"darwin": "open", "win32": "start"}.get(sys.platform, "xdg-open")
    place = shlex.quote(str(page))
    figures().print(f"report  {place}  (open it with  {opener} {place})", markup=False, soft_wrap=True)


def find_study_folder(target: str, folder: str) -> Path | None:
    """The folder of a study that was begun; None where the target is something else."""
    from lilliput.studies.study_results import STUDY

    for place in (Path(target), Path(folder) / target):
        if target and os.path.isfile(place / STUDY):
            return place
    return None


def find_trained(target: str, folder: str) -> Run:
    """Return a run, also by one of its checkpoints; where the target is a study that was not run, say how to run it."""
    from lilliput.storage.run_folders import Run, find_run
    from lilliput.studies.study_files import shipped_studies

    try:
        found = find_run(target, folder)
    except UserError as error:
        if error.code != "run.missing":
            raise
        if target in shipped_studies() and not os.path.exists(target):
            quick = find_study_folder(f"{target}-quick", folder)
            fix = f"lilliput report {quick.name}" if quick else f"lilliput study {target}"
            what = f"study {target} was not run yet"
            raise UserError(what, f"{folder}/{target}", fix=fix, code="study.incomplete") from None
        raise
    return found if isinstance(found, Run) else Run.open(found.folder.absolute().parents[1])
