"""The document of a reproduction, as HTML and Markdown: a checklist, each table and figure, runs, settings, and what differs.

Owns: its sections and their order. Does not own: the section of an item (`reproduction_blocks`), rendering (`reports`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lilliput.reports.document import Block, Bullets, FactList, Paragraph, ReportDocument, Section, Table
from lilliput.reports.formatting import counted, duration, machine_facts
from lilliput.reports.report_files import REPORT, write_document
from lilliput.storage.run_folders import RunFolder, describe
from lilliput.studies.grid import budget_of, cells
from lilliput.studies.reproduction_blocks import Builder, Produced
from lilliput.studies.reproduction_plan import Part, Plan
from lilliput.studies.reproduction_settings import NOT_STATED, compare_settings, settings_table, shown
from lilliput.studies.reproduction_tables import doubt_list
from lilliput.studies.study_report import format_settings


@dataclass(frozen=True)
class Outcome:
    """The items of a reproduction with their sections, in the order of the file."""

    plan: Plan
    items: Sequence[Produced]


def produce(plan: Plan) -> Outcome:
    """Look up every value and draw every figure, from the results so far."""
    builder = Builder(plan, list(enumerate(plan.content.doubts, start=1)))
    return Outcome(plan, [builder.build(number, item) for number, item in enumerate(plan.content.items, start=1)])


def write_reproduction(outcome: Outcome) -> tuple[Path, Path]:
    """Write HTML and Markdown to the folder of the reproduction."""
    return write_document(describe_reproduction(outcome), outcome.plan.folder / REPORT)


def describe_reproduction(outcome: Outcome) -> ReportDocument:
    plan, content = outcome.plan, outcome.plan.content
    sections = [
        Section("Checklist", checklist_blocks(outcome)),
        *(Section(one.item.title, one.blocks) for one in outcome.items),
        Section("Doubts about the report", doubt_list(None, list(enumerate(content.doubts, start=1)))),
        Section("Runs and studies", run_blocks(plan)),
        Section("Settings", [settings_table(content)] if content.settings else []),
        Section("What differs and why", difference_blocks(plan)),
    ]
    lead = f"The tables and figures of report {content.report}, from runs of Lilliput, next to the published values."
    line = [form_text(plan), counted(len(plan.runs), "run"), counted(len(plan.studies), "study", "studies")]
    return ReportDocument(content.title, lead, " · ".join(line), [section for section in sections if section.blocks])


def form_text(plan: Plan) -> str:
    form = plan.form
    minutes = "" if form.minutes is None else f", budgets scaled to {form.minutes:g} minutes of training"
    return ("quick form" if form.quick else "full form") + minutes


def checklist_blocks(outcome: Outcome) -> list[Block]:
    rows = [[one.item.place, one.item.title, one.state, one.text] for one in outcome.items]
    columns = ["in the report", "table or figure", "state", "difference, or reason"]
    blocks: list[Block] = []
    if shortened(outcome.plan):
        text = f"This is the {form_text(outcome.plan)}, a trial. Its budgets differ from the budgets of the full form."
        blocks.append(Paragraph(text, warning=True))
    return [*blocks, Table(columns, rows, heads=2, texts=columns[2:])]


def shortened(plan: Plan) -> list[Part]:
    """Return the parts that are not run in their full form."""
    return [part for part in plan.parts if replace(part.study, seeds=part.whole.seeds) != part.whole]


# Runs


def run_blocks(plan: Plan) -> list[Block]:
    """List the runs and studies with their recipes, budgets, settings and training times, and the machine."""
    rows = [run_row(part) for part in plan.runs.values()]
    columns = ["run", "recipe", "budget", "settings that differ from the recipe", "steps", "tokens", "training time"]
    blocks: list[Block] = [Table(columns, rows, texts=columns[1:4])] if rows else []
    if plan.studies:
        studies = [
            [
                part.name + (", quick form" if part.study.quick else ""),
                ", ".join(map(str, part.study.seeds)),
                measured(part),
            ]
            for part in plan.studies.values()
        ]
        blocks.append(Table(["study", "seeds", "measured"], studies, texts=("seeds", "measured")))
    results = [result for part in plan.parts if (result := part.result())]
    if results:
        facts = [(f"{name} version", str(value)) for name, value in results[0].about["versions"].items()]
        blocks.append(FactList([*facts, *machine_facts(results[0].about["machine"])]))
    return blocks


def run_row(part: Part) -> list[str]:
    study, result = part.study, part.result()
    unit, amount = budget_of(cells(study)[0])
    row = [part.name, Path(study.recipe).stem, f"{amount:,.4g} {unit}", format_settings(study.settings)]
    if result is None or not result.rows:
        return [*row, "–", "–", "–"]
    about = describe(RunFolder(result.folder / result.rows[0].run), verify=False)
    return [*row, f"{about['steps']:,}", f"{about['tokens_seen']:,}", duration(about["seconds"])]


def measured(part: Part) -> str:
    result = part.result()
    total = len(cells(part.study)) * len(part.study.seeds)
    return f"{0 if result is None else len(result.rows)} of {total} cells x seeds"


def difference_blocks(plan: Plan) -> list[Block]:
    """List the settings that are not the stated ones, with reasons; those that the report leaves open; and shorter parts."""
    compared = [one for one in compare_settings(plan.content) if not one.equal] if plan.content.settings else []
    other = [one for one in compared if one.stated.stated]
    chosen = [one for one in compared if not one.stated.stated]
    blocks: list[Block] = []
    for title, found in (
        ("Settings that differ from the report:", other),
        ("Settings that the report does not state:", chosen),
    ):
        if found:
            items = [
                (f"{one.stated.name}:", f"{stated(one.stated.stated)}, ours {shown(one.ours)} ({one.stated.reason}).")
                for one in found
            ]
            blocks += [Paragraph(title), Bullets(items)]
    if parts := shortened(plan):
        items = [(f"{part.kind} {part.name}:", shorter_text(part)) for part in parts]
        blocks += [Paragraph(f"This is the {form_text(plan)}. It differs from the full form:"), Bullets(items)]
    return blocks


def shorter_text(part: Part) -> str:
    if part.kind == "study":
        return "the quick form of the study."
    (unit, amount), (full_unit, full) = (budget_of(cells(study)[0]) for study in (part.study, part.whole))
    changes = {name: value for name, value in part.study.settings.items() if part.whole.settings.get(name) != value}
    settings = f"; {format_settings(changes)}" if changes else ""
    return f"{amount:,.4g} {unit} in place of {full:,.4g} {full_unit}{settings}."


def stated(text: str) -> str:
    return f"stated {text}" if text else NOT_STATED
