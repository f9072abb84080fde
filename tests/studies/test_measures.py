"""What is measured of a run, beside the same figures made by hand from its log, its model and its texts."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.labelled_corpora import labelled_changes
from helpers.small_runs import small_config, train_small, trained
from helpers.user_errors import refused
from lilliput.decoding.writer import load
from lilliput.errors import UserErrors
from lilliput.evaluation.evaluate import evaluate, open_evaluation
from lilliput.evaluation.overlap import measure_overlap
from lilliput.evaluation.overlap_settings import OverlapTask
from lilliput.model.recompute import measure_kept
from lilliput.storage.run_folders import Run
from lilliput.studies.measures import MEASURES, Watched, main, measure, read_settings
from lilliput.studies.study_metrics import FIGURES, find_figure

SHORT = {"measure.prompts": 5, "measure.tokens": 9, "measure.batch": 2}


def run_of_all() -> Path:
    return trained() / "runs" / "mine"


def taken(name: str, settings: dict[str, Any] | None = None, run: Path | None = None) -> dict[str, float]:
    return MEASURES[name](run or run_of_all(), settings or {}, 3)


# The run's own log.


def test_training_is_what_the_log_says() -> None:
    found, events = taken("training"), Run.open(run_of_all()).metrics()
    steps = [event for event in events if event["event"] == "step"]
    (whole,) = [event for event in events if event["event"] == "evaluation" and event["whole"]]
    assert found["updates"] == 8 and found["tokens"] == steps[-1]["tokens"]
    assert found["train.loss"] == steps[-1]["loss"]  # a tenth of 8 is one
    assert found["train.seconds"] == steps[-1]["seconds"] < events[-1]["seconds"]
    for name in ("loss", "perplexity", "bits_per_byte", "tokens"):
        assert found[f"validation.{name}"] == whole[name]
    assert "validation.accuracy" not in found  # a language model has none


def test_the_training_loss_is_a_mean_over_the_last_tenth(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path, train__steps="30", evaluate__every="30"))
    losses = [event["loss"] for event in run.metrics() if event["event"] == "step"]
    assert taken("training", run=run.folder)["train.loss"] == pytest.approx(sum(losses[-3:]) / 3, abs=1e-12)


def test_costs_are_those_of_the_real_model() -> None:
    found, writer = taken("training"), load(run_of_all())
    model, train = writer.model, writer.config.train
    assert found["parameters"] == found["trainable_parameters"] == sum(one.numel() for one in model.parameters())
    assert found["flops"] == model.count().flops_per_token * found["tokens"]
    ids = torch.zeros(train.batch, model.settings.context, dtype=torch.long)
    kept = measure_kept(model, lambda: model.trunk(ids, model.begin(ids, None, None)))
    ends = ids.nbytes + 8 * ids.numel() * (
        model.settings.dim + 1
    )  # the embedding's ids, the last norm's output and scale
    assert found["train.activation_bytes"] == pytest.approx(kept - ends, rel=0.02)


def test_activations_that_arithmetic_does_not_know_are_not_told(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path, model__dropout="0.1"))
    found = taken("training", run=run.folder)
    assert "train.activation_bytes" not in found and found["flops"] == taken("training")["flops"]


def test_recomputing_costs_work_and_saves_activations(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path, train__recompute="block"))
    plain, again = taken("training"), taken("training", run=run.folder)
    assert again["flops"] > 1.2 * plain["flops"] and again["train.activation_bytes"] < plain["train.activation_bytes"]
    assert again["train.loss"] == plain["train.loss"] and again["validation.loss"] == plain["validation.loss"]


def test_training_tells_every_test_set_by_its_name(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path, **labelled_changes(tmp_path)))
    found = taken("training", run=run.folder)
    tested = next(event for event in run.metrics() if event["event"] == "test")
    assert found["test.heard.accuracy"] == tested["accuracy"] and found["test.heard.loss"] == tested["loss"]
    assert find_figure("test.heard.accuracy").title == "accuracy on heard"
    assert "validation.perplexity" not in found and found["validation.accuracy"] is not None
    judged = taken("accuracy", {"measure.on": "heard"}, run.folder)
    assert judged["accuracy"] == tested["accuracy"] and 0 <= judged["calibration_error"] <= 1


def test_a_run_without_an_update_is_told(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "new", Run.open(run_of_all()).config(), overwrite=False)
    assert refused(lambda: taken("training", run=run.folder)).code == "run.no-figures"


# The model.


def test_likelihood_is_that_of_evaluate_and_of_the_run_itself() -> None:
    found, judged = taken("likelihood"), evaluate(run_of_all())
    assert found["validation.loss"] == pytest.approx(taken("training")["validation.loss"], abs=1e-12)
    for name in ("bits_per_byte", "bits_per_byte_spelled", "word_perplexity", "unknown_rate"):
        assert found[f"validation.{name}"] == judged[name]


def test_the_split_and_the_stride_are_the_settings() -> None:
    found = taken("likelihood", {"measure.on": "train", "measure.stride": 4})
    assert found["training.loss"] == evaluate(run_of_all(), on="train", stride=4)["loss"]
    assert found["training.loss"] != taken("likelihood", {"measure.on": "train"})["training.loss"]


def test_a_language_model_has_no_accuracy() -> None:
    assert refused(lambda: taken("accuracy")).code == "model.task"


# What it writes.


@pytest.mark.parametrize(
    "strategy", [{"generate.temperature": 0.0}, {"generate.beams": 3, "generate.temperature": 0.0}]
)
def test_overlap_is_that_of_the_evaluation(strategy: dict[str, Any]) -> None:
    found, judged = taken("overlap", SHORT | strategy), open_evaluation(run_of_all())
    how = judged.writer.checked(None, {name.removeprefix("generate."): value for name, value in strategy.items()})
    told = measure_overlap(judged.writer, judged.file, how, OverlapTask(prompts=5, tokens=9, seed=3, batch=2)).as_dict()
    assert [found[f"bleu.{order}"] for order in (1, 2, 3, 4)] == [told["bleu"][str(order)] for order in (1, 2, 3, 4)]
    assert found["chrf"] == told["chrf"]["score"] and found["writing.perplexity"] == told["perplexity"]
    assert found["distinct.2"] == told["written"]["distinct"]["2"]
    assert found.get("repetition") == told["written"]["repetition"]["4"]
    assert found["tokens_per_second"] * found["seconds_per_sample"] == pytest.approx(found["writing.tokens"])


def test_writing_is_timed_over_texts_of_exactly_so_many_tokens() -> None:
    how = {"generate.tokens": 20, "generate.temperature": 0.0, "measure.repeats": 2, "measure.batch": 2}
    found = taken("writing", how)
    assert found["writing.tokens"] == 20
    assert found["tokens_per_second"] * found["seconds_per_sample"] == pytest.approx(20)
    writer = load(run_of_all())
    (sample,) = writer.samples(
        [""], settings=writer.checked(None, {"tokens": 20, "min_tokens": 20, "temperature": 0.0})
    )
    assert found["writing.perplexity"] == pytest.approx(math.exp(-sample.logprob / 20), abs=1e-9)


def test_without_a_cache_the_same_is_written_and_nothing_is_kept() -> None:
    how = {"generate.tokens": 20, "generate.temperature": 0.0, "measure.repeats": 1}
    cached, uncached = (taken("writing", how | {"generate.engine": engine}) for engine in ("torch", "uncached"))
    assert uncached["cache_bytes"] == 0
    counted = load(run_of_all()).model.count().cache_bytes_per_token
    assert 20 * counted <= cached["cache_bytes"] <= 2 * 20 * counted  # room grows by doubling
    assert cached["writing.perplexity"] == pytest.approx(uncached["writing.perplexity"], abs=1e-9)


def test_the_most_that_was_kept_is_of_all_rows_that_were_begun() -> None:
    """A text longer than the context is read anew by fewer tokens: what was kept before counts."""
    engine = load(run_of_all()).engine_for(load(run_of_all()).config.generate)
    watched = Watched(engine)
    assert watched.most == 0
    watched.prefill([list(range(30))])
    most = watched.most
    watched.prefill([[1]])
    assert watched.most == most > engine.prefill([[1]])[1].nbytes


def test_stories_are_judged_as_the_cell_writes_them(tmp_path: Path) -> None:
    changes = {"data__source": "storybook", "data__documents": "30", "tokenizer__kind": "word"}
    run, _ = train_small(small_config(tmp_path, **changes))
    assert taken("stories", {"measure.stories": 3, "generate.tokens": 5}, run.folder) == {"stories.valid": 0.0}
    floor = taken("training", run=run.folder)
    assert floor["validation.above_floor"] > 0
    assert floor["validation.above_floor"] == pytest.approx(
        taken("likelihood", run=run.folder)["validation.above_floor"], abs=1e-9
    )


# Settings, and the process.


def test_settings_of_measures_have_defaults_and_all_mistakes_are_told() -> None:
    assert read_settings({"generate.beams": 5}).prompts == 50
    assert read_settings({"measure.stride": "none"}).stride is None
    with pytest.raises(UserErrors) as told:
        read_settings({"measure.promts": 3, "measure.batch": 0, "measure.tokens": "many"})
    assert {(error.code, error.setting) for error in told.value.errors} == {
        ("setting.value", "measure.batch"),
        ("setting.value", "measure.tokens"),
        ("setting.unknown", "measure.promts"),
    }
    (unknown,) = (error for error in told.value.errors if error.code == "setting.unknown")
    assert "measure.prompts" in (unknown.fix or "")


def test_figures_of_all_measures_are_known() -> None:
    found = measure(run_of_all(), ["training", "likelihood", "overlap", "writing"], SHORT | {"measure.repeats": 1}, 1)
    assert found.keys() <= FIGURES.keys()
    assert all(math.isfinite(value) for value in found.values())
    assert find_figure("nobody.knows").title == "nobody.knows" and find_figure("nobody.knows").better is None


@pytest.mark.parametrize("name", ["training", "likelihood", "overlap", "writing"])
def test_every_figure_names_the_measure_that_gave_it(name: str) -> None:
    settings = {} if name in ("training", "likelihood") else SHORT | {"measure.repeats": 1}
    assert all(name in find_figure(figure).measures for figure in taken(name, settings))
    assert {name for figure in FIGURES.values() for name in figure.measures} == MEASURES.keys()
    assert all(figure.measures for figure in FIGURES.values())


def test_the_process_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"measures": ["training", "overlap"], "settings": SHORT, "seed": 1}
    assert main([str(run_of_all()), "--spec", json.dumps(spec)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["updates"] == 8 and told["bleu.1"] >= told["bleu.4"]


def test_a_mistake_is_told_in_three_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--spec", '{"measures": ["training"], "settings": {}, "seed": 1}']) == 2
    out, err = capsys.readouterr()
    assert not out and len(err.splitlines()) <= 3 and "not the folder of a run" in err


def test_the_log_is_read_without_torch() -> None:
    code = "import sys; from lilliput.studies.measures import main; main(); sys.exit('torch' in sys.modules)"
    spec = '{"measures": ["training"], "settings": {}, "seed": 1}'
    ended = subprocess.run(
        [sys.executable, "-c", code, str(run_of_all()), "--spec", spec], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0 and json.loads(ended.stdout)["updates"] == 8, ended.stderr
