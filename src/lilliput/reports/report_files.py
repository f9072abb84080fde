"""The files of a report: the HTML page, the Markdown next to it, and the folder of its pictures.

Owns: their names and writing them. Does not own: their content (`html`, `markdown`, `document`).
"""

from __future__ import annotations

from pathlib import Path

from lilliput.errors import UserError
from lilliput.reports.document import ReportDocument, list_pictures
from lilliput.reports.html import to_html
from lilliput.reports.markdown import to_markdown
from lilliput.storage import atomic_files as files

REPORT = "report.html"  # name of the page in the folder of a run or a study


def write_document(document: ReportDocument, path: Path) -> tuple[Path, Path]:
    """Write the page to `path`, the Markdown and a folder of pictures next to it; return both paths."""
    markdown = path.with_suffix(".md")
    folder = path.with_name(f"{path.stem}-figures")
    pictures = list_pictures(document)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if pictures:
            folder.mkdir(exist_ok=True)
            for old in folder.glob("*.png"):  # of an earlier report
                old.unlink()
    except OSError as error:
        raise files.cannot_write(error, path) from error
    for picture in pictures:
        files.write_whole(folder / f"{picture.name}.png", picture.png)
    files.write_whole(markdown, to_markdown(document, folder.name).encode("utf-8"))
    files.write_whole(path, to_html(document).encode("utf-8"))
    return path, markdown


def check_place(path: Path) -> None:
    """Raise an error if no report can be written to `path`."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(
            f"the report path must end in .html (got {str(path)!r})",
            fix=f"use {path.with_suffix('.html')}",
            code="file.format",
            setting="out",
        )
    if path.is_dir():
        raise UserError(
            f"the report path must be an .html file (got the folder {str(path)!r})",
            fix=f"use {path / REPORT}",
            code="file.is-folder",
            setting="out",
        )
    blocker = next((parent for parent in path.parents if parent.exists() and not parent.is_dir()), None)
    if blocker:
        raise UserError(
            f"cannot write {str(path)!r}: {blocker} is a file, not a folder",
            fix="choose a path in another folder",
            code="file.not-written",
            setting="out",
        )
