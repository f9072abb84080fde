"""`lilliput report`: write the HTML and Markdown report of a run or a study."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lilliput.cli.error_flags import flags_in_errors
from lilliput.cli.output import print_json, stdout_console
from lilliput.errors import UserError

if TYPE_CHECKING:
    from lilliput.storage.run_folders import RunFolder

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput report demo                          report of a run
    lilliput report window                        report of a study, complete or not
    lilliput report demo --out demo.html          write demo.html and demo.md
    lilliput report demo --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="RUN|STUDY", help="run or study (folder, or name in runs/)")
    parser.add_argument("--out", metavar="FILE", help=".html file to write [report.html in the folder of the run]")
    parser.add_argument("--folder", default="runs", help="folder of runs and studies [runs]")
    parser.add_argument("--json", action="store_true", help="print the paths as one JSON object")


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
    """Print the path of a report and the command that opens it."""
    opener = {"darwin": "open", "win32": "start"}.get(sys.platform, "xdg-open")
    place = shlex.quote(str(page))
    stdout_console().print(f"report  {place}  (open with: {opener} {place})", markup=False, soft_wrap=True)


def find_study_folder(target: str, folder: str) -> Path | None:
    """Return the folder of a started study; None if the target is not one."""
    from lilliput.studies.study_results import STUDY

    for place in (Path(target), Path(folder) / target):
        if target and os.path.isfile(place / STUDY):
            return place
    return None


def find_trained(target: str, folder: str) -> RunFolder:
    """Return a run, given by its name, folder or checkpoint; raise a specific error for a study that was not run."""
    from lilliput.storage.run_folders import RunFolder, find_run
    from lilliput.studies.study_files import shipped_studies

    try:
        found = find_run(target, folder)
    except UserError as error:
        if error.code != "run.missing":
            raise
        if target in shipped_studies() and not os.path.exists(target):
            quick = find_study_folder(f"{target}-quick", folder)
            fix = f"run lilliput report {quick.name}" if quick else f"run lilliput study {target}"
            what = f"study {target} was not run"
            raise UserError(what, f"{folder}/{target}", fix=fix, code="study.incomplete") from None
        raise
    return found if isinstance(found, RunFolder) else RunFolder.open(found.folder.absolute().parents[1])
