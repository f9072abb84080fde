"""Reports of runs and `lilliput report`: a finished run, a new run, a classifier, a checkpoint path, a study."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import pytest

from helpers.attention_pages import small_writer
from helpers.labelled_corpora import labelled_changes
from helpers.small_runs import copy_of_trained, lilliput, small_config, train_small, trained
from helpers.study_results import windows
from lilliput.decoding.writer import Sample
from lilliput.interpret import capture_text
from lilliput.interpret.head_scores import Tally
from lilliput.reports.document import ReportDocument, Table
from lilliput.reports.formatting import duration
from lilliput.reports.head_section import head_blocks
from lilliput.reports.markdown import to_markdown
from lilliput.reports.run_plots import draw_run, floor_in_nats
from lilliput.reports.run_report import describe_run, write_run_report
from lilliput.reports.sample_section import find_samples
from lilliput.storage.run_folders import RunFolder
from lilliput.studies.measures import measure_training


@pytest.fixture(scope="module")
def document() -> ReportDocument:
    run = RunFolder(trained() / "runs" / "mine")
    return describe_run(run, find_samples(run))


def test_sections_and_content(document: ReportDocument) -> None:
    assert [section.title for section in document.sections] == [
        "Results", "Speed and machine", "Training", "History", "Samples", "Samples with references", "Attention heads",
        "Checkpoints and parameters", "Settings",
    ]  # fmt: skip
    assert document.title == "mine"
    assert document.lead == "A language model with 2 layers, dim 16, 2 heads, trained on mytext.txt."
    text = to_markdown(document, "figures")
    best = [event for event in RunFolder(trained() / "runs" / "mine").metrics() if event["event"] == "evaluation"][-1]
    for words in (
        f"- validation loss: {best['loss']:.4f}",
        f"- bits per byte: {best['bits_per_byte']:.4f}",
        "Evaluated on the whole validation split",
        "Sample 1 of 3, 12 tokens",
        "- torch version: ",
        "- precision: float64",
        "- checkpoint step-000008: ",
        "- train.batch: 4",
        "- data.tests: none",
    ):
        assert words in text, words
    assert text.count("![") == 6
    heads = re.findall(r"^\| (layer.*?|all.*?) \|", text, re.MULTILINE)
    assert heads == [*(f"layer {layer}, head {head}" for layer in (0, 1) for head in (0, 1)), "all layers, uniform"]


def test_heads_are_compared_with_uniform_attention() -> None:
    """Layers with the same visible tokens share one row."""
    writer = small_writer(layers=3, window=(4, None, 4))
    _, table = head_blocks(writer, Sample("A bee", " saw the sea.", 13, 0.0, "length"))
    assert isinstance(table, Table)
    assert table.rows[5][0] == "layer 2, head 1"
    even = Tally().add(capture_text(writer, "A bee saw the sea.")).even()
    for row, name, one in zip(table.rows[6:], ("layers 0 and 2, uniform", "layer 1, uniform"), even[:2], strict=True):
        assert row == [name, *("–" if score is None else f"{score:.2f}" for score in one.scores.values())]


def test_samples_equal_those_of_training(document: ReportDocument) -> None:
    from lilliput.decoding.writer import load

    writer = load(trained() / "runs" / "mine")
    expected = writer.samples([writer.config.generate.prompt] * 3, seed=1001)
    section = next(one for one in document.sections if one.title == "Samples")
    texts = [block.text for block in section.blocks[1:]]  # type: ignore[union-attr]
    assert texts == [(sample.prompt + sample.text).strip() for sample in expected]


def test_report_files_are_complete_and_deterministic(tmp_path: Path) -> None:
    run = RunFolder(copy_of_trained(tmp_path) / "runs" / "mine")
    page, markdown = write_run_report(run)
    assert (page, markdown) == (run.folder / "report.html", run.folder / "report.md")
    text = page.read_text("utf-8")
    xml.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    assert "http" not in text
    first = page.read_bytes(), markdown.read_bytes()
    (run.folder / "report-figures" / "old.png").write_bytes(b"")
    write_run_report(run)
    assert (page.read_bytes(), markdown.read_bytes()) == first
    pictures = {path.name for path in (run.folder / "report-figures").iterdir()}
    assert pictures == {"loss.png", "perplexity.png", "learning-rate.png", "gradient.png", "speed.png", "attention.png"}


def test_a_run_that_has_just_started(tmp_path: Path) -> None:
    run = RunFolder(copy_of_trained(tmp_path) / "runs" / "mine")
    shutil.rmtree(run.checkpoints_folder)
    run.metrics_path.write_text("")
    document = describe_run(run)
    assert [section.title for section in document.sections] == ["Results", "Checkpoints and parameters", "Settings"]
    assert "**The run has no evaluation yet.**" in to_markdown(document, "figures")


def test_the_step_of_the_evaluated_weights_is_reported(tmp_path: Path) -> None:
    """A learning rate that is too high: the best checkpoint is not the last."""
    run, _ = train_small(small_config(tmp_path, evaluate__every="1", schedule__kind="constant", optimizer__lr="3"))
    assert run.best is not None and run.last is not None and run.best.step < run.last.step
    text = to_markdown(describe_run(run), "figures")
    assert f"with the weights of step {run.best.step}." in text


def test_the_training_time_equals_that_of_a_study(tmp_path: Path) -> None:
    run = RunFolder(copy_of_trained(tmp_path) / "runs" / "mine")
    events = run.metrics()
    events[-1]["seconds"] = 900.0  # most of it to evaluate the whole split
    run.metrics_path.write_text("".join(json.dumps(event) + "\n" for event in events))
    document = describe_run(run)
    seconds = duration(measure_training(run.folder, {}, seed=1)["train.seconds"])
    assert f"- training time: {seconds}\n" in to_markdown(document, "figures")
    assert document.about.endswith(f" · {seconds} of training")


def test_a_classifier_has_accuracy_and_tests_and_no_samples(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path, evaluate__every="2", **labelled_changes(tmp_path)))
    document = describe_run(run)
    assert [section.title for section in document.sections] == [
        "Results", "Test sets", "Speed and machine", "Training", "History", "Checkpoints and parameters", "Settings",
    ]  # fmt: skip
    text = to_markdown(document, "figures")
    test = next(event for event in run.metrics() if event["event"] == "test")
    assert document.lead.startswith("A classifier with 2 layers")
    assert "| test set | loss | accuracy | tokens | documents |" in text
    assert f"| heard | {test['loss']:.4f} | {test['accuracy']:.1%} |" in text
    assert "- accuracy: " in text and "perplexity: " not in text
    assert "accuracy.png" in text


def log(steps: int, falls: bool = True, **evaluation: Any) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        level = step if falls else 1 + steps - step
        events.append({"event": "step", "step": step, "loss": 4.0 / level, "lr": 0.1, "tokens": step, "seconds": 1.0})
        values = {"loss": 5.0 / level, "perplexity": None, "bits_per_byte": None, "accuracy": None, "floor": None}
        events.append({"event": "evaluation", "step": step, "whole": False, **values, **evaluation})
    return events


def test_plots_of_the_logged_metrics() -> None:
    assert draw_run(log(2)) == []
    assert [picture.name for picture in draw_run(log(5))] == ["loss", "learning-rate"]
    pictures = draw_run(log(5, accuracy=0.5))
    assert [picture.name for picture in pictures] == ["loss", "accuracy", "learning-rate"]
    assert "Loss, nats/document" in pictures[0].svg
    assert pictures[1].alt == "Accuracy: validation from 50 to 50."


def test_a_clipped_curve_is_noted() -> None:
    assert draw_run(log(20))[0].caption.endswith(
        "fixed validation sample. The start of the curve is above the plotted range."
    )
    assert draw_run(log(20, falls=False))[0].caption.endswith("fixed validation sample.")


def test_the_floor_has_the_unit_of_the_loss() -> None:
    events = log(4, perplexity=3.0, bits_per_byte=0.5, floor=0.4)
    assert floor_in_nats(events) == pytest.approx(5.0 / 4 * 0.4 / 0.5, abs=1e-12)
    picture = draw_run(events)[0]
    assert ">floor<" in picture.svg and "the floor is 1.000" in picture.alt
    assert floor_in_nats(log(4)) is None


# The command


def test_a_run_by_name_folder_and_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy_of_trained(tmp_path))
    outcome = lilliput("report", "mine")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("report  runs/mine/report.html  ")
    assert outcome.out.count("\n") == 1
    outcome = lilliput("report", "runs/mine/checkpoints/step-000008", "--out", "elsewhere/my run.html", "--json")
    assert json.loads(outcome.out) == {
        "kind": "run",
        "html": "elsewhere/my run.html",
        "markdown": "elsewhere/my run.md",
    }
    assert Path("elsewhere/my run-figures/loss.png").is_file()
    assert "![" in Path("elsewhere/my run.md").read_text("utf-8")
    assert "(my%20run-figures/loss.png)" in Path("elsewhere/my run.md").read_text("utf-8")


def test_a_study_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = windows(tmp_path / "runs" / "made", seeds=(1, 2))
    about = {name: value for name, value in result.about.items() if name != "config"}
    cells = [{"labels": row.cell, "settings": {"model.dim": 64}} for row in result.rows[:1]]
    study = {"format": 1, "study": result.study.as_dict(), "about": about, "cells": cells}
    (result.folder / "study.json").write_text(json.dumps(study))
    lines = [
        {"cell": row.cell, "seed": row.seed, "run": row.run, "figures": row.figures, "measures": []}
        for row in result.rows
    ]
    (result.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome = lilliput("report", "made", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out) == {
        "kind": "study",
        "html": "runs/made/report.html",
        "markdown": "runs/made/report.md",
    }
    assert "# Windows of attention" in Path("runs/made/report.md").read_text("utf-8")


def test_a_study_without_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = lilliput("report", "window")
    assert outcome.code == 2
    assert (
        outcome.error is not None
        and "window" in outcome.error.what
        and "lilliput study window" in (outcome.error.fix or "")
    )


def test_a_mixture_with_ngrams_is_named(tmp_path: Path) -> None:
    """Without the text, the samples are those of the model alone, and the report states it."""
    run, _ = train_small(small_config(tmp_path, generate__mix_ngram="0.75"))
    write_run_report(run)
    found = to_markdown(describe_run(run, find_samples(run)), "figures")
    samples, references = (found[found.index(f"## {title}") :] for title in ("Samples", "Samples with references"))
    for section in (samples, references):
        assert "generated by a mixture: 25.0% this model + 75.0% Kneser-Ney" in section[:1000]
    (tmp_path / "mytext.txt").unlink()
    found = to_markdown(describe_run(run), "figures")
    assert "generate.mix_ngram is not applied" in found and "generated by a mixture" not in found
