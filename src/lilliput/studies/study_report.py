"""The report of a study, as HTML and Markdown.

Owns: the sections and their order. Does not own: tables, plots and sentences (`study_tables`, `study_plots`,
`study_verdict`), rendering (`reports.html`, `reports.markdown`), the report of a single run (`reports.run_report`).
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
from lilliput.studies.study_history import example_tables, history_tables
from lilliput.studies.study_metrics import find_figure
from lilliput.studies.study_plots import draw_study, fit_groups
from lilliput.studies.study_results import TABLE, StudyResult
from lilliput.studies.study_tables import NOTHING, column_title, figure_table, other_figures_tables, overview_tables
from lilliput.studies.study_verdict import absent_note, name_cell, rule_of_claims, shown_figures, verdict


def write_report(result: StudyResult, out: Path | None = None) -> tuple[Path, Path]:
    """Write the HTML and Markdown report, by default in the study's folder; the same result gives the same bytes."""
    return write_document(describe_study(result), out or result.folder / REPORT)


def describe_study(result: StudyResult) -> ReportDocument:
    study, compared = result.study, [name for name in shown_figures(result) if not find_figure(name).given]
    sections = [
        Section("Findings", finding_blocks(result)),
        Section("Overview", overview_tables(result)) if result.rows else None,
        Section("Figures", [Gallery(pictures)]) if (pictures := draw_study(result)) else None,
        *law_sections(result),
        Section("One prompt, every cell", example_tables(result)),
        Section("History", history_tables(result)),
        Section("Metrics in detail", [figure_table(result, name) for name in compared]),
        Section("Published results and notes", [Bullets([("", sentence) for sentence in study.published])])
        if study.published
        else None,
        Section("Other metrics", other_figures_tables(result)),
        Section("Compared settings", grid_blocks(result)),
        Section("Command and environment", environment_blocks(result)),
        Section("All settings of the first cell", settings_blocks(result)),
    ]
    quick = " (quick form)" if study.quick else ""
    return ReportDocument(
        study.title + quick, study.question, size_line(result), [one for one in sections if one and one.blocks]
    )


def size_line(result: StudyResult) -> str:
    """Return the size of the study in one line."""
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
        return "budget differs between cells"
    unit, amount = budgets.pop()
    unit = "FLOPs" if unit == "flops" else unit
    return f"{amount:.3g} {unit} per run" if amount >= 1e9 else f"{amount:,.10g} {unit} per run"


def finding_blocks(result: StudyResult) -> list[Block]:
    blocks: list[Block] = []
    if missing := missing_warning(result):
        blocks.append(Paragraph(missing, warning=True))
    if result.study.quick:
        blocks.append(
            Paragraph("Quick form of the study: fewer seeds and smaller budgets, only a trial.", warning=True)
        )
    blocks.append(Paragraph(rule_of_claims(result)))
    return [*blocks, Bullets(found)] if (found := verdict(result)) else blocks


def missing_warning(result: StudyResult) -> str:
    """Describe missing cells, seeds and metrics, failures, and changes of the machine or of versions."""
    missing, study = find_missing(result), result.study
    sentences = []
    if missing:
        total = len(cells(study)) * len(study.seeds)
        which = [f"{name_cell(cell)} with seed {seed}" for cell, seed in missing]
        which = which[:5] + ([f"{len(which) - 5} more"] if len(which) > 5 else [])
        sentences.append(f"Missing: {len(missing)} of {total} measurements ({listed(which)}).")
    if absent := absent_note(result):
        sentences.append(absent)
    if changed := result.about.get("changed"):
        others = listed([f"{name.replace('_', ' ')} {' or '.join(values)}" for name, values in changed.items()])
        sentences.append(f"Some measurements were made with {others}; this can cause differences, mainly in speed.")
    for failure in result.about.get("failed") or []:
        sentences.append(f"Failed: {failure['kind']} {failure['name']}: {failure['what']}.")
    return " ".join(sentences)


def law_sections(result: StudyResult) -> list[Section]:
    """Return a table of the parameters of every fitted law."""
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
        columns = ["", "floor", "95% confidence interval", "scale", "exponent", "95% confidence interval", "points"]
        upward, across = (column_title(find_figure(name)) for name in (plot.y, plot.x))
        note = (
            f"y = floor + scale · x^−exponent, where y is {upward} and x is {across}; fitted by least squares over all seeds, "
            "profile-likelihood intervals. Open: the points do not bound this end. The law holds only in the measured range."
        )
        if rows:
            blocks.append(Table(columns, rows, f"{capital(upward)} against {across}", note))
    return [Section("Fitted power law" if len(blocks) == 1 else "Fitted power laws", blocks)] if blocks else []


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
    """List the labels of each axis with their settings, and the settings that all cells share."""
    study = result.study
    blocks: list[Block] = []
    for axis in study.axes:
        rows = [
            [
                f"{label} (reference)" if label == axis.compare and len(axis.values) > 1 else label,
                format_settings(settings),
            ]
            for label, settings in axis.values.items()
        ]
        blocks.append(Table([axis.name, "settings"], rows, texts=("settings",)))
    shared = format_settings(study.settings) if study.settings else "none"
    seeds = ("seed " if len(study.seeds) == 1 else "seeds ") + listed([str(seed) for seed in study.seeds])
    blocks.append(
        Paragraph(
            f"All cells use the recipe {Path(study.recipe).stem} and {seeds}. Settings that differ from the recipe: {shared}. "
            f"Measures: {listed(study.measure)}. The study's folder holds all runs and, in {TABLE}, the values of each seed."
        )
    )
    return blocks


def format_settings(settings: dict[str, object]) -> str:
    return ", ".join(f"{name} = {format_value(value)}" for name, value in settings.items()) or "recipe unchanged"


def environment_blocks(result: StudyResult) -> list[Block]:
    about = result.about
    facts = [(f"{name} version", str(value)) for name, value in (about.get("versions") or {}).items()]
    facts += machine_facts(about.get("machine") or {})
    times = {"started": about.get("began"), "ended": about.get("ended")}
    facts += [(name, str(time).replace("T", " ")) for name, time in times.items() if time]
    if about.get("seconds"):
        facts.append(("total time", duration(about["seconds"])))
    command: Sequence[Block] = [QuotedText(about["command"], code=True)] if about.get("command") else []
    return [*command, *([FactList(facts)] if facts else [])]


def settings_blocks(result: StudyResult) -> list[Block]:
    """List all settings of the first cell; the other cells differ by the settings of their labels."""
    settings = result.about.get("config") or {}
    return [FactList([(name, format_value(value)) for name, value in settings.items()])] if settings else []
