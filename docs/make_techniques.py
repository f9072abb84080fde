"""Write the summary of the technique studies: `python docs/make_techniques.py`.

The source is the tables of docs/studies. A study whose table lacks the cells of its technique counts as not run.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from lilliput.errors import UserError
from lilliput.reports.markdown import to_markdown
from lilliput.studies.grid import load_study
from lilliput.studies.study_files import shipped_studies
from lilliput.studies.technique_summary import read_table, technique_document

FOLDER = Path(__file__).parent / "studies"
PAGE = FOLDER / "techniques.md"


def write_page() -> str:
    studies, rows = [load_study(name) for name in shipped_studies()], {}
    for study in studies:
        with suppress(UserError, FileNotFoundError):
            rows[study.name] = read_table(FOLDER / f"{study.name}.csv", study)
    return to_markdown(technique_document(studies, rows), "techniques-figures")


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
