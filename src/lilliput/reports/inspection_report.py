"""The page of an inspected model: tables of parts, shapes and checks, and pictures of its masks and positions.

Owns: its sections and pictures. Does not own: what is inspected (`interpret.inspection`), or files (`report_files`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lilliput.interpret.inspection import Inspection
from lilliput.reports.document import Gallery, Picture, ReportDocument, Section, Table
from lilliput.reports.plot_style import finish, new_drawing, styled
from lilliput.reports.report_files import write_document

if TYPE_CHECKING:
    from torch import Tensor


def write_inspection(name: str, found: Inspection, path: Path) -> tuple[Path, Path]:
    return write_document(describe_inspection(name, found), path)


def describe_inspection(name: str, found: Inspection) -> ReportDocument:
    checks = [
        [check.name, check.meaning, "ok" if check.passed else "failed", f"{check.value:.3g}"] for check in found.checks
    ]
    shapes = [[stage.name, " x ".join(map(str, stage.shape))] for stage in found.stages]
    parts = [[part.name, part.kind, f"{part.parameters:,}"] for part in found.parts]
    passed = sum(check.passed for check in found.checks)
    with styled():
        pictures = draw_inspection(found)
    sections = [
        Section("Checks", [Table(["check", "meaning", "result", "value"], checks, heads=2)]),
        Section("Masks and positions", [Gallery(pictures)]),
        Section("Shapes of one batch", [Table(["stage", "shape"], shapes)]),
        Section("Parts", [Table(["part", "kind", "parameters"], parts, heads=2)]),
    ]
    lead = f"{passed} of {len(checks)} checks passed. The checks compute in float64 with the weights of this model."
    return ReportDocument(name, lead, "lilliput inspect", sections)


def draw_inspection(found: Inspection) -> list[Picture]:
    pictures = []
    for number, (window, mask) in enumerate(found.masks.items()):
        kind = "no window" if window is None else f"window {window}"
        alt = f"mask of {len(mask)} positions, {kind}: each query sees {int(mask.sum(dim=1).max())} keys at most"
        caption = f"Attention mask, {kind}. Dark: the query (row) sees the key (column)."
        pictures.append(draw_table(mask.float(), f"mask-{number}", "key", "query", "Greys", alt, caption))
    if found.positions is not None:
        kind = "cosines of the rotation" if found.position_kind == "rotary" else "values added to the embedding"
        alt = f"positional encoding ({found.position_kind}) of {len(found.positions)} positions"
        caption = f"Positional encoding, {found.position_kind}: {kind}."
        pictures.append(draw_table(found.positions, "positions", "dimension", "position", "RdBu", alt, caption))
    return pictures


def draw_table(values: Tensor, name: str, x: str, y: str, colours: str, alt: str, caption: str) -> Picture:
    drawing, (axes,) = new_drawing(3.2)
    most = values.abs().max().item()
    least = 0.0 if colours == "Greys" else -most
    grid = values.float().cpu().numpy()
    shown = axes.imshow(grid, cmap=colours, vmin=least, vmax=most, aspect="auto", interpolation="nearest")
    if colours != "Greys":
        drawing.colorbar(shown, ax=axes)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=False)
    return finish(drawing, name, alt, caption, paper=True)
