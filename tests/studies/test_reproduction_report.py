"""The document of a reproduction: a checklist of every item, a section for each, settings, and what differs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.small_reproductions import reproduced, write_reproduction
from lilliput.data.storybook.annotations import annotated_stories
from lilliput.interpret import measure_functions
from lilliput.interpret.head_score_definitions import FUNCTIONS
from lilliput.reports.document import (
    Bullets,
    Gallery,
    Paragraph,
    QuotedText,
    ReportDocument,
    Section,
    Table,
    as_entry,
    list_pictures,
)
from lilliput.reports.html import to_html
from lilliput.studies.reproduction_blocks import Builder
from lilliput.studies.reproduction_files import TextsItem
from lilliput.studies.reproduction_plan import Form, Plan, load_plan
from lilliput.studies.reproduction_report import Outcome, describe_reproduction, produce
from lilliput.studies.reproduction_report import write_reproduction as write

TITLES = [
    "Checklist", "History", "Strategies", "Sizes", "Windows", "Curves", "All evaluations", "Samples and references", "Heads",
    "Maps", "Texts", "Parts and shapes", "Losses of the windows", "One prompt", "Doubts about the report", "Runs and studies",
    "Settings", "What differs and why",
]  # fmt: skip


@pytest.fixture(scope="module")
def outcome() -> Iterator[Outcome]:
    with chdir(reproduced()):
        yield produce(load_plan("mine.toml"))


@pytest.fixture
def document(outcome: Outcome) -> ReportDocument:
    with chdir(reproduced()):
        return describe_reproduction(outcome)


def section(document: ReportDocument, title: str) -> Section:
    return next(one for one in document.sections if one.title == title)


def test_sections_in_the_order_of_the_file(document: ReportDocument) -> None:
    assert [one.title for one in document.sections] == TITLES


def test_checklist_has_every_table_and_figure(outcome: Outcome, document: ReportDocument) -> None:
    (table,) = section(document, "Checklist").blocks
    assert isinstance(table, Table)
    rows = [[as_entry(cell).text for cell in row] for row in table.rows]
    assert [row[:2] for row in rows] == [[item.place, item.title] for item in outcome.plan.content.items]
    states = {row[1]: row[2] for row in rows}
    assert {title for title, state in states.items() if state != "produced"} == {"History", "A photograph"}
    assert states["History"] == "partly" and rows[-1][2:] == ["not produced", "no camera"]


def test_blocks_of_each_kind(document: ReportDocument) -> None:
    (gallery,) = section(document, "Curves").blocks
    assert isinstance(gallery, Gallery) and len(gallery.pictures) == 2
    (maps,) = section(document, "Maps").blocks
    assert isinstance(maps, Gallery) and len(maps.pictures) == 2
    texts = section(document, "Texts").blocks
    assert [block.text[:3] for block in texts if isinstance(block, QuotedText)] == ["A b", "Zoë"]
    assert [block.text for block in texts if isinstance(block, Paragraph)] == ["The report has other prompts."]
    (examples,) = section(document, "One prompt").blocks
    assert isinstance(examples, Table)
    assert [row[0] for row in examples.rows] == ["greedy", "sampling"]


def test_published_functions_of_heads(document: ReportDocument) -> None:
    """The text of the run is not the storybook; functions are measured on it, as by `lilliput attention --conllu storybook`."""
    table = next(block for block in section(document, "Heads").blocks if isinstance(block, Table))
    with chdir(reproduced()):
        writer = Builder(load_plan("mine.toml"), []).writer("base")
    measured = [one for one in measure_functions(writer, annotated_stories(40), 40) if one.head.layer == 1]
    assert [row[0] for row in table.rows] == ["1 (ours 0)", "2 (ours 1)"]
    assert [row[1] for row in table.rows] == ["previous token", "article and noun"]
    for row, one, name in zip(table.rows, measured, ("previous", "article-noun"), strict=True):
        score = one.scores[name]
        assert score is not None
        assert row[2] == (FUNCTIONS[one.pattern].title if one.pattern in FUNCTIONS else one.pattern)
        assert row[3] == f"{score.score:.2f}" + "*" * score.significant
        assert row[4] == f"{max(score.even, score.position or 0.0):.2f}"
        scores = {other.head.head: found.score for other in measured if (found := other.scores[name])}
        assert as_entry(row[5]).text.startswith(f"{max(scores, key=scores.__getitem__)}: {max(scores.values()):.2f}")
    equal = sum(one.pattern == name for one, name in zip(measured, ("previous", "article-noun"), strict=True))
    assert f"{equal} of 2 heads" in table.caption


def test_samples_are_those_of_the_first_cell(document: ReportDocument) -> None:
    about, table = section(document, "Samples and references").blocks
    with chdir(reproduced()):
        result = load_plan("mine.toml").runs["base"].result()
    assert result is not None and isinstance(about, Paragraph) and isinstance(table, Table)
    (row,) = (row for row in result.rows if row.cell == {"evaluation": "greedy"})
    figures = row.figures
    assert 0 < len(table.rows) <= 2 and "8 tokens" in about.text
    for name in ("writing.perplexity", "reference.perplexity", "bleu.4"):
        assert f"{figures[name]:,.2f}" in about.text


def test_texts_of_a_mixture_name_it(outcome: Outcome) -> None:
    with chdir(reproduced()):
        builder = Builder(outcome.plan, [])
        writer, folder = builder.writer("base"), builder.run("base").folder
        mixed = replace(writer.config.generate, mix_ngram=0.75)
        builder.writers[folder] = replace(writer, config=replace(writer.config, generate=mixed))
        item = next(item for item in outcome.plan.content.items if isinstance(item, TextsItem))
        blocks = builder.texts(item)
    assert len(blocks) == 2
    assert all(isinstance(block, QuotedText) and "75.0% Kneser-Ney" in block.about for block in blocks)


def test_doubts_are_where_they_belong(document: ReportDocument) -> None:
    found = {
        one.title: [item for block in one.blocks if isinstance(block, Bullets) for item in block.items]
        for one in document.sections
    }
    assert found["Strategies"] == [("[1]", "Too low.")]
    assert found["Texts"] == [("[2]", "Too good.")]
    assert found["Doubts about the report"] == [("[3]", "The report has no date.")]


def test_pictures_have_unique_names_and_ids(document: ReportDocument) -> None:
    names = [picture.name for picture in list_pictures(document)]
    assert len(set(names)) == len(names) >= 7
    ids = re.findall(r'\bid="([^"]+)"', to_html(document))
    assert len(set(ids)) == len(ids)
    for target in re.findall(r'(?:href="#|url\(#)([^")]+)', to_html(document)):
        assert target in ids


def test_what_differs(document: ReportDocument) -> None:
    found = [block for block in section(document, "What differs and why").blocks if isinstance(block, Bullets)]
    leads = [[lead for lead, _ in block.items] for block in found]
    assert leads == [["optimizer:"], ["layers:"]]
    assert "faster" in found[0].items[0][1] and "small" in found[1].items[0][1]


def test_files_and_the_quick_form(tmp_path: Path) -> None:
    write_reproduction(tmp_path)
    with chdir(tmp_path):
        plan: Plan = load_plan("mine.toml", form=Form(quick=True))
        outcome = produce(plan)
        page, markdown = write(outcome)
        assert page == Path("runs/reproduce-mine-quick/report.html") and page.is_file() and markdown.is_file()
        document = describe_reproduction(outcome)
        last = section(document, "What differs and why").blocks[-1]
    states = {one.item.title: one.state for one in outcome.items}
    assert {title for title, state in states.items() if state == "produced"} == {"Settings of the report"}
    assert isinstance(last, Bullets)
    assert [lead for lead, _ in last.items] == ["run base:", "study small.toml:"]
    assert "3 steps in place of 8 steps; evaluate.every = 1" in last.items[0][1]


def test_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(reproduced(), tmp_path / "copy"))
    with chdir(copy):
        pages = [write(produce(load_plan("mine.toml")))[0].read_bytes() for _ in range(2)]
    assert pages[0] == pages[1]
