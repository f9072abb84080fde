"""The result of `Run.report`: the report of a run in a notebook, or as files.

Owns: `ReportPage`. Does not own: the content of the report (`reports.run_report`) or its files (`reports.report_files`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lilliput.api.rendering import framed
from lilliput.errors import UserError
from lilliput.reports.html import to_html
from lilliput.reports.markdown import to_markdown
from lilliput.reports.report_files import REPORT, check_place, write_document

if TYPE_CHECKING:
    from lilliput.reports.document import ReportDocument
    from lilliput.storage.run_folders import RunFolder

HEIGHT = 900  # pixels of the page in a notebook


class ReportPage:
    """A report. A notebook shows it inline; `save` writes HTML and Markdown."""

    def __init__(self, document: ReportDocument, folder: Path) -> None:
        self.document = document
        self.folder = folder

    def html(self) -> str:
        """Return the page: one HTML file without scripts or external links."""
        return to_html(self.document)

    def markdown(self) -> str:
        return to_markdown(self.document, "report-figures")

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the page, the Markdown and the figures next to it; return the path of the page. None: report.html in the
        folder of the run."""
        place = self.folder / REPORT if path is None else Path(path)
        try:
            check_place(place)
        except UserError as error:
            raise UserError(error.what, error.where, fix=error.fix, code=error.code, setting="path") from None
        return write_document(self.document, place)[0]

    def __repr__(self) -> str:
        return f"ReportPage({self.document.title!r}, {len(self.document.sections)} sections)"

    def _repr_html_(self) -> str:
        return framed(self.html(), HEIGHT, scripts=False)


def run_report(run: RunFolder) -> ReportPage:
    """Return the report of a run. Samples and scores of heads are computed once and kept in its folder."""
    from lilliput.reports.head_section import find_heads, save_heads
    from lilliput.reports.run_report import describe_run
    from lilliput.reports.sample_section import find_samples, save_samples

    samples, heads = find_samples(run), find_heads(run)
    save_samples(run, samples)
    save_heads(run, heads)
    return ReportPage(describe_run(run, samples, heads), run.folder)
