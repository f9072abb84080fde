"""The report of a study: a page to read, print and hand in, and the same as Markdown.

Owns: which sections it has and in which order. Does not own: tables, pictures, sentences (`study_tables`,
`study_plots`, `study_verdict`), HTML and Markdown (`reports.html`, `reports.markdown`), nor the report of a single run
(`reports.run_report`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lilliput.reports.document import (
    Block,
    Bullets,
    FactList,
    Gallery,
    Paragraph,
    QuotedText,
    ReportDocument,
    Section,
    Table,
)
from lilliput.reports.formatting import capital, counted, duration, fixed, format_value, listed, machine_facts
from lilliput.reports.report_files import REPORT, write_document
from lilliput.studies.comparison import find_missing
from lilliput.studies.grid import budget_of, cells
from lilliput.studies.study_metrics import find_figure
from lilliput.studies.study_plots import draw_study, fit_groups
from lilliput.studies.study_results import TABLE, StudyResult
from lilliput.studies.study_tables import NOTHING, column_title, figure_table, other_figures_table, overview_table
from lilliput.studies.study_verdict import absent_note, name_cell, rule_of_claims, shown_figures, verdict


def write_report(result: StudyResult, out: Path | None = None) -> tuple[Path, Path]:
    """The page and the Markdown, in the study's folder unless another place is given. The same outcome gives the same bytes."""
    return write_document(describe_study(result), out or result.folder / REPORT)


def describe_study(result: StudyResult) -> ReportDocument:
    study = result.study
    sections = [
        Section("Verdict", verdict_blocks(result)),
        Section("Figures at a glance", [overview_table(result)]) if result.rows else None,
        Section("Pictures", [Gallery(pictures)]) if (pictures := draw_study(result)) else None,
        *law_sections(result),
        Section("Each figure in full", [figure_table(result, name) for name in shown_figures(result)]),
        Section("Published, and to keep in mind", [Bullets([("", sentence) for sentence in study.published])])
        if study.published
        else None,
        Section("All other figures", [others]) if (others := other_figures_table(result)) else None,
        Section("What was compared", grid_blocks(result)),
        Section("How it was made", environment_blocks(result)),
        Section("Every setting", settings_blocks(result)),
    ]
    quick = ": the quick form" if study.quick else ""
    return ReportDocument(
        study.title + quick, study.question, size_line(result), [one for one in sections if one and one.blocks]
    )


def size_line(result: StudyResult) -> str:
    """What the figures come from, in a line."""
    study, about = result.study, result.about
    runs = len({row.run for row in result.rows})
    parts = [
        counted(len(cells(study)), "cell"),
        counted(len(study.seeds), "seed"),
        counted(runs, "run"),
        format_budget(result),
        f"recipe {Path(study.recipe).stem}",
        *([about["began"][:10]] if about.get("began") else []),
    ]
    return " · ".join(parts)


def format_budget(result: StudyResult) -> str:
    budgets = {budget_of(cell) for cell in cells(result.study)}
    if len(budgets) > 1:
        return "budgets as the cells say"
    unit, amount = budgets.pop()
    words = {"steps": "updates", "minutes": "minutes", "tokens": "tokens", "flops": "FLOPs"}[unit]
    return f"{amount:.3g} {words} each" if amount >= 1e9 else f"{amount:,.10g} {words} each"


def verdict_blocks(result: StudyResult) -> list[Block]:
    blocks: list[Block] = []
    if missing := missing_warning(result):
        blocks.append(Paragraph(missing, warning=True))
    if result.study.quick:
        blocks.append(Paragraph("The quick form: smaller than the study itself, to see that it works.", warning=True))
    blocks.append(Paragraph(rule_of_claims(result)))
    return [*blocks, Bullets(found)] if (found := verdict(result)) else blocks


def missing_warning(result: StudyResult) -> str:
    """Cells and seeds that were not measured, figures that the study shows and nothing has, what failed, and what was another
    machine or version."""
    missing, study = find_missing(result), result.study
    sentences = []
    if missing:
        total = len(cells(study)) * len(study.seeds)
        which = [f"{name_cell(cell)} with seed {seed}" for cell, seed in missing]
        which = which[:5] + ([f"{len(which) - 5} more"] if len(which) > 5 else [])
        sentences.append(f"Missing: {len(missing)} of {total} ({listed(which)}). n says how many each figure has.")
    if absent := absent_note(result):
        sentences.append(absent)
    if changed := result.about.get("changed"):
        others = listed([f"{name.replace('_', ' ')} {' or '.join(values)}" for name, values in changed.items()])
        sentences.append(f"Some of it was made with {others}: what differs may differ by that, times above all.")
    for failure in result.about.get("failed") or []:
        sentences.append(f"Failed: {failure['kind']} {failure['name']}, {failure['what']}.")
    return " ".join(sentences)


def law_sections(result: StudyResult) -> list[Section]:
    """The parameters of every fitted law with their intervals."""
    blocks = []
    for plot in result.study.plots:
        if plot.kind != "fit" or plot.x is None or plot.y is None:
            continue
        rows = []
        for group in fit_groups(result, plot.x, plot.y):
            law = group.law
            if law is None:
                rows.append([group.label or "all", *[NOTHING] * 5, str(len(group.x))])
                continue
            floors, exponents = format_range(law.floor_range), format_range(law.exponent_range)
            scale, points = fixed(law.scale, 3), str(law.points)
            rows.append(
                [group.label or "all", fixed(law.floor, 3), floors, scale, fixed(law.exponent, 3), exponents, points]
            )
        columns = ["", "floor", "95% interval", "scale", "exponent", "95% interval", "points"]
        upward, across = (column_title(find_figure(name)) for name in (plot.y, plot.x))
        note = (
            f"y = floor + scale · x^−exponent, where y is {upward} and x is {across}; least squares over all seeds, intervals by "
            "the profile of the squares. An open end: the points do not bound it. No law outside the sizes that were measured."
        )
        if rows:
            blocks.append(Table(columns, rows, f"{capital(upward)} against {across}", note))
    return [Section("Fitted law" if len(blocks) == 1 else "Fitted laws", blocks)] if blocks else []


def format_range(ends: tuple[float | None, float | None] | None) -> str:
    if ends is None:
        return "no interval"
    low, high = ends
    if low is None or high is None:
        return (
            "open"
            if low is high
            else f"up to {fixed(high, 3)}"
            if high is not None
            else f"{fixed(low or 0.0, 3)} and up"
        )
    return f"{fixed(low, 3)} to {fixed(high, 3)}"


def grid_blocks(result: StudyResult) -> list[Block]:
    """The labels of each axis with what they set, and what all cells share beyond the recipe."""
    study = result.study
    blocks: list[Block] = []
    for axis in study.axes:
        rows = [
            [
                f"{label} (compared with)" if label == axis.compare and len(axis.values) > 1 else label,
                format_settings(said),
            ]
            for label, said in axis.values.items()
        ]
        blocks.append(Table([axis.name, "settings"], rows, heads=2))
    shared = format_settings(study.settings) if study.settings else "nothing"
    seeds = ("seed " if len(study.seeds) == 1 else "seeds ") + listed([str(seed) for seed in study.seeds])
    blocks.append(
        Paragraph(
            f"Every cell has the recipe {Path(study.recipe).stem}, {seeds}, and beyond the recipe: {shared}. Measured: "
            f"{listed(study.measure)}. Every single value is in {TABLE}; each run's folder is beside this report."
        )
    )
    return blocks


def format_settings(settings: dict[str, object]) -> str:
    return ", ".join(f"{name} = {format_value(value)}" for name, value in settings.items()) or "as the recipe says"


def environment_blocks(result: StudyResult) -> list[Block]:
    about = result.about
    facts = [(f"version of {name}", str(value)) for name, value in (about.get("versions") or {}).items()]
    facts += machine_facts(about.get("machine") or {})
    facts += [(name, str(about[name]).replace("T", " ")) for name in ("began", "ended") if about.get(name)]
    if about.get("seconds"):
        facts.append(("time, all runs and measures", duration(about["seconds"])))
    command: Sequence[Block] = [QuotedText(about["command"], code=True)] if about.get("command") else []
    return [*command, *([FactList(facts)] if facts else [])]


def settings_blocks(result: StudyResult) -> list[Block]:
    """Those of the first cell, complete: the others differ by what the axes say."""
    settings = result.about.get("config") or {}
    return [FactList([(name, format_value(value)) for name, value in settings.items()])] if settings else []
