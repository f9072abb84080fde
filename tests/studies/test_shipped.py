"""The shipped studies: each is valid, has a question and metrics, and fits into its time."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from lilliput.model.counting import count, recomputed_flops
from lilliput.settings.loading import replace
from lilliput.settings.tree import Config
from lilliput.studies.grid import Study, budget_of, cell_config, cells, load_study
from lilliput.studies.job_plan import Measurement, Training, plan, tokens_for
from lilliput.studies.measure_settings import MeasureSettings
from lilliput.studies.measures import MEASURES
from lilliput.studies.study_files import shipped_studies
from lilliput.studies.study_metrics import FIGURES, find_figure

NAMES = [
    "accumulation", "checkpointing", "decoding", "embeddings", "kv-cache", "norm",
    "optimizers", "positions", "scaling", "tokenizers", "width-depth", "window",
]  # fmt: skip
LONGEST, QUICK = 15 * 60, 3 * 60  # seconds
# A low estimate for two idle cores: the machine of docs/results reached 60 to 100 GFLOP/s with models of this size.
SPEED, PROCESS, UPDATE = 50e9, 5.0, 0.005
# Seconds of a measurement without the start of its process; beam search and the uncached engine are slowest.
MEASURING = {"training": 0.0, "likelihood": 3.0, "overlap": 8.0, "writing": 6.0, "example": 1.0}


@pytest.fixture(autouse=True)
def data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LILLIPUT_DATA", "/texts")  # the files need not exist


def complete(config: Config) -> Config:
    """Return the config with an assumed vocabulary size: the real one depends on the data."""
    tokenizer = config.tokenizer
    learned = {"byte": 257, "character": 120, "word": tokenizer.max_vocabulary, "bpe": tokenizer.vocab_size}
    size = config.model.vocab_size or learned[tokenizer.kind]
    return replace(config, {"model.vocab_size": size})


def training_seconds(training: Training, budget: tuple[str, float]) -> float:
    config = complete(training.config)
    model, train = config.model, config.train
    of_update = train.batch * train.accumulate * model.context
    unit, amount = budget
    if unit == "flops":
        tokens = tokens_for(config, amount, model.vocab_size or 0, config.vectors.width)
    else:
        tokens = round(amount * of_update if unit == "steps" else amount)
    flops = count(model, config.vectors).flops_per_token
    flops += recomputed_flops(model, train.recompute, train.recompute_every)
    return tokens * flops / SPEED + UPDATE * train.accumulate * tokens / of_update


def estimate(study: Study) -> float:
    """Estimate the seconds of a study; all seeds take the same time."""
    budgets = {str(cell.labels): budget_of(cell) for cell in cells(study)}
    jobs, seconds = plan(dataclasses.replace(study, seeds=study.seeds[:1])), 0.0
    for job, following in itertools.pairwise([*jobs, None]):
        if isinstance(job, Training):
            assert isinstance(following, Measurement)  # of the first cell of the run
            seconds += PROCESS + training_seconds(job, budgets[str(following.cell)])
        elif isinstance(job, Measurement):
            seconds += PROCESS + sum(MEASURING[name] for name in job.measures)
    return len(study.seeds) * seconds


def test_names_of_shipped_studies() -> None:
    assert list(shipped_studies()) == NAMES


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("name", NAMES)
def test_study_is_valid_and_fits_into_its_time(name: str, quick: bool) -> None:
    study = load_study(name, quick)
    assert estimate(study) <= (QUICK if quick else LONGEST), f"about {estimate(study):.0f} s"
    assert len(study.seeds) >= (1 if quick else 3)
    assert len(cells(study)) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_study_has_a_question_notes_and_metrics(name: str) -> None:
    study = load_study(name)
    assert study.title and study.question.endswith("?") and study.published
    assert all(sentence.endswith(".") for sentence in study.published)
    assert find_figure(study.show[0]).better is not None  # the main metric
    for plot in study.plots:
        assert {plot.x, plot.y} - {None} <= FIGURES.keys() | set(study.show)


@pytest.mark.parametrize("name", NAMES)
def test_labels_of_an_axis_differ(name: str) -> None:
    study = load_study(name)
    for axis in study.axes:
        labels = [str(sorted(settings.items(), key=str)) for settings in axis.values.values()]
        assert len(set(labels)) == len(labels), axis.name
        assert axis.compare in axis.values


def configs(name: str, axis: str) -> dict[str, Config]:
    study = load_study(name)
    return {cell.labels[axis]: complete(cell_config(study, cell.settings)) for cell in cells(study)}


def total(config: Config) -> int:
    return count(config.model, config.vectors).parameters.total


def test_shapes_have_equal_parameters() -> None:
    sizes = [total(config) for config in configs("width-depth", "shape").values()]
    assert max(sizes) < 1.004 * min(sizes)


def test_window_study_has_the_published_model() -> None:
    found = configs("window", "window")
    assert {total(config) for config in found.values()} == {863_243}
    assert [config.model.window for config in found.values()] == [None, 16, 8, 4]
    assert {config.train.steps * config.train.batch * config.model.context for config in found.values()} == {256_000}  # type: ignore[operator]


def test_accumulated_steps_have_the_rows_of_the_large_batch() -> None:
    found = configs("accumulation", "update")
    rows = {label: config.train.batch * config.train.accumulate for label, config in found.items()}
    assert rows == {"1 x 8": 8, "2 x 8": 16, "4 x 8": 32, "8 x 8": 64, "1 x 64": 64}


@pytest.mark.parametrize(("name", "cells_of_a_run"), [("decoding", 5), ("kv-cache", 12)])
def test_decoding_strategies_share_a_run(name: str, cells_of_a_run: int) -> None:
    jobs = plan(load_study(name, seeds=[1, 2]))
    assert sum(isinstance(job, Training) for job in jobs) == 2
    assert len(jobs) == 2 * (1 + cells_of_a_run)


def test_example_in_the_guide_is_valid(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "studies.md").read_text("utf-8")
    path = tmp_path / "heads.toml"
    path.write_text(guide.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    for quick in (False, True):
        study = load_study(path, quick)
        assert [cell.labels["heads"] for cell in cells(study)] == ["4 heads", "1 head", "8 heads"]


def test_guide_lists_every_study_measure_and_setting() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "studies.md").read_text("utf-8")
    names = [*NAMES, *MEASURES, *(f"measure.{field.name}" for field in dataclasses.fields(MeasureSettings))]
    assert not [name for name in names if f"`{name}`" not in guide]
