"""Reports of studies: complete, well-formed, self-contained, reproducible, and tested in a browser."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from helpers.attention_pages import launch_browser, watched_page
from helpers.study_results import make_result, make_study, windows
from lilliput.reports.document import (
    Bullets,
    Entry,
    FactList,
    Paragraph,
    QuotedText,
    ReportDocument,
    Section,
    Table,
)
from lilliput.reports.html import to_html
from lilliput.reports.markdown import escaped, to_markdown
from lilliput.studies.study_files import Plot
from lilliput.studies.study_report import describe_study, format_range, write_report
from lilliput.studies.study_results import StudyResult


class Reader(HTMLParser):
    """Collects the references, tags and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.references += [
            value or "" for name, value in attributes if name in ("src", "href", "srcset", "action", "data")
        ]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return windows(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def written(result: StudyResult) -> tuple[Path, Path]:
    return write_report(result)


def test_report_is_in_the_study_folder(written: tuple[Path, Path], result: StudyResult) -> None:
    assert written == (result.folder / "report.html", result.folder / "report.md")


def test_page_is_well_formed_and_self_contained(written: tuple[Path, Path]) -> None:
    page = written[0].read_text("utf-8")
    xml.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    found = read(page)
    assert "http" not in page and "@import" not in page and "url(" not in page.replace("url(#", "")
    assert all(one.startswith(("#", "data:")) for one in found.references)
    assert not found.tags & {"script", "link", "iframe", "object", "embed"}


def test_report_is_complete(written: tuple[Path, Path], result: StudyResult) -> None:
    page, markdown = (path.read_text("utf-8") for path in written)
    sections = [
        "Findings", "Overview", "Figures", "Metrics in detail", "Published results and notes",
        "Other metrics", "Compared settings", "Command and environment", "All settings of the first cell",
    ]  # fmt: skip
    text = read(page).text
    for source in (page, markdown):
        assert re.findall(r"(?:<h2>|^## )([^<\n]*)", source, re.MULTILINE) == sections
    for source in (text, markdown):
        for words in (
            "Windows of attention",
            "What does a model lose that sees only the last few tokens?",
            "4 cells · 3 seeds · 12 runs · 500 steps per run · recipe speech-lm · 2026-01-02",
            "Worse than full: 4 tokens 72.95 (+10.04, +16%; 95% CI +7.76 to +12.31).",
            "A published net of this size",
            "lilliput study window",
            "torch version",
            "a processor",
            "8.0 GB",
            "model.window = 8",
            "optimizer.betas",
            "0.9, 0.95",
            "20 min",
        ):
            assert words in source, words


def test_markdown_has_the_same_values_and_linked_figures(written: tuple[Path, Path], result: StudyResult) -> None:
    page, markdown = (path.read_text("utf-8") for path in written)
    figures = re.findall(r"<td class=\"figure\">(?:<strong>)?([^<]+)", page)
    assert len(figures) > 60
    assert all(figure in markdown for figure in figures)
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", markdown)
    assert len(pictures) == 7
    for picture in pictures:
        assert (result.folder / picture).read_bytes().startswith(b"\x89PNG")
    for line in markdown.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


def test_same_result_gives_the_same_bytes_in_another_folder(result: StudyResult, tmp_path: Path) -> None:
    short = replace(result, study=replace(result.study, plots=(Plot("curves"), Plot("bars"))))
    here, there = write_report(short, tmp_path / "report.html"), write_report(short, tmp_path / "new" / "report.html")
    assert [path.read_bytes() for path in here] == [path.read_bytes() for path in there]
    for picture in (tmp_path / "report-figures").iterdir():
        assert picture.read_bytes() == (tmp_path / "new" / "report-figures" / picture.name).read_bytes()


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (400, "dark")])
def test_page_in_a_browser(written: tuple[Path, Path], width: int, scheme: str) -> None:
    # A watched page fails on console errors and on requests.
    with sync_playwright() as player, watched_page(launch_browser(player), width) as page:
        page.emulate_media(color_scheme=scheme)
        page.goto(written[0].as_uri())
        assert page.title() == "Windows of attention"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "no horizontal scrolling"
        boxes = [picture.bounding_box() for picture in page.locator("figure svg").all()]
        assert len(boxes) == 7
        assert all(box["width"] > 300 and box["height"] > 90 for box in boxes)
        label = page.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
        assert label == ("rgb(87, 96, 106)" if scheme == "light" else "rgb(160, 168, 178)")
        pages = len(re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True)))
        assert 3 <= pages <= 6, "on A4"


def test_report_of_one_seed_has_no_comparisons(tmp_path: Path) -> None:
    result = windows(tmp_path, seeds=(1,))
    page, markdown = write_report(replace(result, study=replace(result.study, plots=(Plot("bars"),))))
    text = markdown.read_text("utf-8")
    assert "no difference is tested" in text
    assert not re.search(r"\b([Bb]etter|[Ww]orse) than (full|every)|significant|Best( mean)?:", text)
    assert "**7" not in text.split("## Overview")[1].split("##")[0], "nothing is bold"
    assert '<td class="figure"><strong>' not in page.read_text("utf-8")


def test_report_begins_with_what_is_missing(tmp_path: Path) -> None:
    result = windows(tmp_path)
    result.rows.pop(4)
    result.about["failed"] = [{"kind": "training", "name": "4-tokens-seed2", "what": "out of memory"}]
    study = replace(result.study, show=(*result.study.show, "bleu.4"), plots=(Plot("bars"),))
    (verdict, *_) = describe_study(replace(result, study=study)).sections
    first = verdict.blocks[0]
    assert first == Paragraph(
        "Missing: 1 of 12 measurements (4 tokens with seed 2). In the study's `show`, but not measured: BLEU-4. "
        "Failed: training 4-tokens-seed2: out of memory.",
        warning=True,
    )


def test_report_without_measurements(tmp_path: Path) -> None:
    result = windows(tmp_path)
    result.rows.clear()
    document = describe_study(result)
    assert [section.title for section in document.sections][:2] == ["Findings", "Published results and notes"]
    assert "Nothing was measured yet." in to_markdown(document, "figures")
    xml.fromstring(to_html(document).removeprefix("<!DOCTYPE html>\n"))


def test_title_of_a_quick_form(tmp_path: Path) -> None:
    result = windows(tmp_path)
    quick = describe_study(replace(result, study=replace(result.study, quick=True, plots=(Plot("bars"),))))
    assert quick.title == "Windows of attention (quick form)"


def test_table_of_fitted_laws() -> None:
    study = make_study(
        {"size": {"s": {}, "m": {}, "l": {}}},
        show=("validation.loss",),
        plots=(Plot("fit", x="parameters", y="validation.loss"),),
    )
    millions = {"s": 0.1, "m": 0.5, "l": 2.0}

    def values(cell: dict[str, str], seed: int) -> dict[str, float]:
        x = millions[cell["size"]]
        return {"parameters": 1e6 * x, "validation.loss": 2.0 + 0.8 * x**-0.3}

    section = next(
        one for one in describe_study(make_result(study, values)).sections if one.title == "Fitted power law"
    )
    (table,) = section.blocks
    assert isinstance(table, Table)
    assert list(table.rows[0]) == ["all", "2.000", "2.000 to 2.000", "0.800", "0.300", "0.300 to 0.300", "9"]
    ranges = [None, (None, None), (None, 1.0), (0.5, None), (0.5, 1.0)]
    assert list(map(format_range, ranges)) == ["no interval", "open", "up to 1.000", "0.500 and up", "0.500 to 1.000"]


def test_texts_are_left_aligned_and_figures_right_aligned() -> None:
    table = Table(["a", "b", "c", "d"], [["1", "2", "3\n4", "5"]], texts=("a", "c"))
    assert table.kinds() == ["name", "figure", "text", "figure"]
    document = ReportDocument("", "", "", [Section("", [table])])
    assert "| --- | ---: | --- | ---: |\n| 1 | 2 | 3 4 | 5 |" in to_markdown(document, "figures")
    kinds = re.findall(r'<t[hd](?: scope="row")? class="(\w+)">([^<]*)<', to_html(document))
    assert kinds == [("name", "1"), ("figure", "2"), ("text", "3\n4"), ("figure", "5")]


def test_special_characters_are_escaped() -> None:
    nasty = "<b>&\"' | *x* _y_ `z` [l](m) \\ \x00\x0c <script>alert(1)</script>"
    table = Table(["a", nasty], [[nasty, Entry(nasty, True, nasty)]], nasty, nasty)
    words = [Paragraph(nasty), Bullets([(nasty, nasty)]), FactList([(nasty, nasty)])]
    blocks = [*words, table, QuotedText(nasty, nasty), QuotedText("```", code=True)]
    document = ReportDocument(nasty, nasty, nasty, [Section(nasty, blocks)])
    page = to_html(document)
    tree = xml.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    assert "script" not in {node.tag for node in tree.iter()}
    assert tree.find(".//h1").text == nasty.replace("\x00", "\ufffd").replace("\x0c", "\ufffd")
    markdown = to_markdown(document, "figures")
    (row,) = [line for line in markdown.splitlines() if line.startswith("| \\<")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
    assert "````\n```\n````" in markdown


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ("tokens_per_second", "tokens_per_second"),
        ("_x_", "\\_x\\_"),
        ("- x", "\\- x"),
        ("1. x", "1\\. x"),
        ("# x", "\\# x"),
        ("1.5", "1.5"),
        ("−0.5", "−0.5"),
    ],
)
def test_plain_text_in_markdown(plain: str, expected: str) -> None:
    assert escaped(plain) == expected
