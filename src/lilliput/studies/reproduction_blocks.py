"""Sections of a reproduction for each table and figure of the report, from its runs and studies.

Owns: which section an item of each kind becomes, and its line in the checklist. Does not own: tables of numbers
(`reproduction_tables`), or the plots, samples and head scores of a run (`reports`, `interpret`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.decoding.mixture_weights import describe_mixture
from lilliput.errors import UserError
from lilliput.reports.document import Block, Gallery, Paragraph, Picture, QuotedText, renamed
from lilliput.reports.formatting import counted
from lilliput.reports.head_section import find_heads, head_blocks, save_heads
from lilliput.reports.plot_style import finish, styled
from lilliput.reports.run_history import history_table, run_history
from lilliput.reports.run_plots import draw_run
from lilliput.reports.run_report import SEED
from lilliput.reports.sample_section import SampleRequest, find_samples, sample_blocks, save_samples
from lilliput.storage.run_folders import RunFolder
from lilliput.studies.grid import cells
from lilliput.studies.measure_settings import read_settings
from lilliput.studies.reproduction_files import (
    AbsentItem,
    CurvesItem,
    ExamplesItem,
    HeadsItem,
    Item,
    MapsItem,
    PlotsItem,
    RunItem,
    SamplesItem,
    SettingsItem,
    TableItem,
    TextsItem,
)
from lilliput.studies.reproduction_plan import Part, Plan
from lilliput.studies.reproduction_tables import Marks, doubt_list, heads_table, summarise_table, table_blocks
from lilliput.studies.reproduction_values import Compared, compare_table
from lilliput.studies.study_history import example_tables
from lilliput.studies.study_plots import draw_study

if TYPE_CHECKING:
    from lilliput.decoding.writer import Writer

PRODUCED, MISSING = "produced", "not produced"


@dataclass(frozen=True)
class Produced:
    """An item with its section and its line of the checklist; `rows` are the cells of a table."""

    item: Item
    state: str
    text: str
    blocks: Sequence[Block]
    rows: Sequence[Sequence[Compared]] = ()


@dataclass
class Builder:
    """Builds the sections; a model is loaded once."""

    plan: Plan
    doubts: Marks
    writers: dict[Path, Writer] = field(default_factory=dict)

    def build(self, number: int, item: Item) -> Produced:
        """Return the section of an item; `number` makes the names of its pictures unique."""
        if isinstance(item, TableItem):
            rows = compare_table(self.plan, item)
            state, text = summarise_table(rows)
            return Produced(item, state, text, table_blocks(item, rows, self.doubts), rows)
        notes: list[Block] = [Paragraph(item.note)] if item.note else []
        notes += doubt_list(item.title, self.doubts)
        if isinstance(item, AbsentItem):
            return Produced(item, MISSING, item.reason, notes)
        if isinstance(item, SettingsItem):
            return Produced(item, PRODUCED, "section Settings", notes)
        try:
            blocks = self.blocks(item)
        except UserError as error:  # no checkpoint yet, or a text that the model cannot read
            return Produced(item, MISSING, error.what, notes)
        kept = [unique(block, f"item-{number}") for block in blocks]
        state, text = (PRODUCED, "") if kept else (MISSING, "nothing was logged for it")
        return Produced(item, state, text, [*kept, *notes])

    def blocks(self, item: Item) -> list[Block]:
        build: dict[type[Item], Callable[[Any], list[Block]]] = {
            CurvesItem: self.curves,
            RunItem: self.about_run,
            SamplesItem: self.samples,
            HeadsItem: self.heads,
            MapsItem: self.maps,
            TextsItem: self.texts,
            PlotsItem: self.plots,
            ExamplesItem: self.examples,
        }
        return build[type(item)](item)

    def run(self, name: str) -> RunFolder:
        """Return the folder of a run of the file: that of its first cell."""
        part = self.plan.runs[name]
        result = part.result()
        if result is None or not result.rows:
            raise not_run(part)
        return RunFolder.open(result.folder / result.rows[0].run)

    def writer(self, name: str) -> Writer:
        from lilliput.decoding.writer import load

        folder = self.run(name).folder
        if folder not in self.writers:
            self.writers[folder] = load(folder)
        return self.writers[folder]

    def curves(self, item: CurvesItem) -> list[Block]:
        pictures = [one for one in draw_run(self.run(item.run).metrics()) if one.name in item.curves]
        return [Gallery(pictures)] if pictures else []

    def about_run(self, item: RunItem) -> list[Block]:
        if item.kind == "history":
            rows = run_history(self.run(item.run).metrics())
            return [history_table(rows)] if rows else []
        from lilliput.interpret.inspection import inspect_model
        from lilliput.reports.inspection_report import describe_inspection

        document = describe_inspection(item.title, inspect_model(self.writer(item.run).model))
        return [block for section in document.sections for block in section.blocks]

    def samples(self, item: SamplesItem) -> list[Block]:
        run, study = self.run(item.run), self.plan.runs[item.run].study
        settings = cells(study)[0].settings
        measure = read_settings(settings)
        generate = {name: value for name, value in settings.items() if name.startswith("generate.")}
        request = SampleRequest(measure.overlap_task(study.seeds[0]), measure.on, generate)
        found = find_samples(run, request)
        save_samples(run, found)
        return sample_blocks(found, request, item.shown) if found else []

    def heads(self, item: HeadsItem) -> list[Block]:
        run, writer = self.run(item.run), self.writer(item.run)
        alone = replace(writer.config.generate, mix_ngram=None)
        sample = writer.samples([alone.prompt], seed=SEED, settings=alone)[0]
        measured = find_heads(run, functions=bool(item.published))
        save_heads(run, measured)
        blocks = head_blocks(writer, sample, measured)
        if not item.published:
            return blocks
        functions = measured["functions"] if measured else None
        if functions is None:
            what, fix = "functions of heads are not measured for a model of this size", "use a smaller model"
            raise UserError(what, str(run.folder), fix=fix, code="reproduction.incomplete")
        return [heads_table(item, functions["heads"]), *blocks]

    def maps(self, item: MapsItem) -> list[Block]:
        from lilliput.interpret import capture_text
        from lilliput.interpret.heat_maps import draw_layer

        pictures = []
        for number, text in enumerate(item.texts, start=1):
            attention = capture_text(self.writer(item.run), text, layers=[item.layer], pad=item.pad, title="")
            caption = (
                f"Attention weights of layer {item.layer}, all heads, {counted(len(attention.tokens), 'position')}."
            )
            with styled():
                drawing = draw_layer(attention, item.layer)
                pictures.append(finish(drawing, f"map-{number}", f"{caption} Text: {text}", caption, paper=True))
        return [Gallery(pictures)]

    def texts(self, item: TextsItem) -> list[Block]:
        writer = self.writer(item.run)
        settings = writer.config.generate
        if item.tokens is not None:
            settings = replace(settings, tokens=item.tokens)
        mixture = writer.mixture_for(settings)
        by = "" if mixture is None else f", by a mixture: {describe_mixture(mixture.as_dict())}"
        return [
            QuotedText((one.prompt + one.text).strip(), f"After “{one.prompt}”, {counted(one.tokens, 'token')}{by}")
            for one in writer.samples(list(item.prompts), SEED, settings)
        ]

    def plots(self, item: PlotsItem) -> list[Block]:
        part = self.plan.studies[item.study]
        result = part.result()
        if result is None or not result.rows:
            raise not_run(part)
        found = {int(picture.name.split("-")[1]): picture for picture in draw_study(result)}
        pictures = [found[number] for number in item.plots if number in found]
        return [Gallery(pictures)] if pictures else []

    def examples(self, item: ExamplesItem) -> list[Block]:
        part = self.plan.runs[item.run] if item.run is not None else self.plan.studies[item.study or ""]
        result = part.result()
        if result is None:
            raise not_run(part)
        return list(example_tables(result))


def not_run(part: Part) -> UserError:
    what, fix = f"{part.kind} {part.name} has no results", "run the same command again"
    return UserError(what, str(part.folder), fix=fix, code="reproduction.incomplete")


def unique(block: Block, prefix: str) -> Block:
    """Return the block; the names of its pictures begin with `prefix`."""
    if not isinstance(block, Gallery):
        return block
    pictures: list[Picture] = [renamed(picture, f"{prefix}-{picture.name}") for picture in block.pictures]
    return Gallery(pictures)
