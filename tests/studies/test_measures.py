"""Measures of a run, compared with values computed from its log, model and texts."""

from __future__ import annotations

import dataclasses
import itertools
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
from lilliput.storage.run_folders import RunFolder
from lilliput.studies.measure_settings import MEASURE_TEXTS, read_settings
from lilliput.studies.measures import MEASURES, Watched, held_out_prompts, main, measure
from lilliput.studies.study_metrics import EXAMPLE, FIGURES, find_figure

SHORT = {"measure.prompts": 5, "measure.tokens": 9, "measure.batch": 2}


def run_of_all() -> Path:
    return trained() / "runs" / "mine"


def taken(name: str, settings: dict[str, Any] | None = None, run: Path | None = None) -> dict[str, float]:
    return MEASURES[name](run or run_of_all(), settings or {}, 3)


# From the log.


def test_training_equals_the_log() -> None:
    found, events = taken("training"), RunFolder.open(run_of_all()).metrics()
    steps = [event for event in events if event["event"] == "step"]
    (whole,) = [event for event in events if event["event"] == "evaluation" and event["whole"]]
    assert found["updates"] == 8 and found["tokens"] == steps[-1]["tokens"]
    assert found["train.loss"] == steps[-1]["loss"]  # a tenth of 8 is one
    assert found["train.seconds"] == steps[-1]["seconds"] < events[-1]["seconds"]
    for name in ("loss", "perplexity", "bits_per_byte", "tokens"):
        assert found[f"validation.{name}"] == whole[name]
    assert "validation.accuracy" not in found  # a language model has none


def test_times_and_effective_batch_equal_the_log(tmp_path: Path) -> None:
    changes = {"train__batch": "2", "train__accumulate": "3", "train__steps": "12", "evaluate__every": "4"}
    run, _ = train_small(small_config(tmp_path, **changes))
    found, events = taken("training", run=run.folder), run.metrics()
    last = [event for event in events if event["event"] == "step"][-1]
    evaluations = [event for event in events if event["event"] == "evaluation" and not event["whole"]]
    assert (found["train.rows_per_step"], found["micro_batches"]) == (6, 36)
    assert found["train.micro_batch_seconds"] == pytest.approx(last["seconds"] / 36)
    assert found["train.epoch_seconds"] == pytest.approx(evaluations[-1]["seconds"] / evaluations[-1]["epoch"])


def test_training_loss_is_the_mean_of_the_last_tenth(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path, train__steps="30", evaluate__every="30"))
    losses = [event["loss"] for event in run.metrics() if event["event"] == "step"]
    assert taken("training", run=run.folder)["train.loss"] == pytest.approx(sum(losses[-3:]) / 3, abs=1e-12)


def test_costs_equal_those_of_the_real_model() -> None:
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


def test_no_activation_bytes_with_dropout(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path, model__dropout="0.1"))
    found = taken("training", run=run.folder)
    assert "train.activation_bytes" not in found and found["flops"] == taken("training")["flops"]


def test_recompute_adds_flops_and_saves_activations(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path, train__recompute="block"))
    plain, again = taken("training"), taken("training", run=run.folder)
    assert again["flops"] > 1.2 * plain["flops"] and again["train.activation_bytes"] < plain["train.activation_bytes"]
    assert again["train.loss"] == plain["train.loss"] and again["validation.loss"] == plain["validation.loss"]


def test_training_returns_metrics_of_every_test_set(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path, **labelled_changes(tmp_path)))
    found = taken("training", run=run.folder)
    tested = next(event for event in run.metrics() if event["event"] == "test")
    assert found["test.heard.accuracy"] == tested["accuracy"] and found["test.heard.loss"] == tested["loss"]
    assert find_figure("test.heard.accuracy").title == "accuracy on heard"
    assert "validation.perplexity" not in found and found["validation.accuracy"] is not None
    measured = taken("accuracy", {"measure.on": "heard"}, run.folder)
    assert measured["accuracy"] == tested["accuracy"] and 0 <= measured["calibration_error"] <= 1


def test_run_without_steps_is_an_error(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "new", RunFolder.open(run_of_all()).config(), overwrite=False)
    assert refused(lambda: taken("training", run=run.folder)).code == "run.no-figures"


# From evaluations.


def test_likelihood_equals_evaluate_and_the_log() -> None:
    found, evaluated = taken("likelihood"), evaluate(run_of_all())
    assert found["validation.loss"] == pytest.approx(taken("training")["validation.loss"], abs=1e-12)
    for name in ("bits_per_byte", "bits_per_byte_spelled", "word_perplexity", "unknown_rate"):
        assert found[f"validation.{name}"] == evaluated[name]


def test_settings_select_split_and_stride() -> None:
    found = taken("likelihood", {"measure.on": "train", "measure.stride": 4})
    assert found["training.loss"] == evaluate(run_of_all(), on="train", stride=4)["loss"]
    assert found["training.loss"] != taken("likelihood", {"measure.on": "train"})["training.loss"]


def test_accuracy_of_a_language_model_is_an_error() -> None:
    assert refused(lambda: taken("accuracy")).code == "model.task"


# From generated texts.


@pytest.mark.parametrize(
    "strategy", [{"generate.temperature": 0.0}, {"generate.beams": 3, "generate.temperature": 0.0}]
)
def test_overlap_equals_the_evaluation(strategy: dict[str, Any]) -> None:
    found, opened = taken("overlap", SHORT | strategy), open_evaluation(run_of_all())
    settings = opened.writer.checked(None, {name.removeprefix("generate."): value for name, value in strategy.items()})
    task = OverlapTask(prompts=5, tokens=9, seed=3, batch=2)
    expected = measure_overlap(opened.writer, opened.file, settings, task).as_dict()
    assert [found[f"bleu.{order}"] for order in (1, 2, 3, 4)] == [
        expected["bleu"][str(order)] for order in (1, 2, 3, 4)
    ]
    assert found["chrf"] == expected["chrf"]["score"] and found["writing.perplexity"] == expected["perplexity"]
    assert found["reference.perplexity"] == expected["reference_perplexity"]
    assert found["distinct.2"] == expected["written"]["distinct"]["2"]
    assert found.get("repetition") == expected["written"]["repetition"]["4"]
    assert found["tokens_per_second"] * found["seconds_per_sample"] == pytest.approx(found["writing.tokens"])


def test_the_choice_of_prompts_is_a_setting() -> None:
    settings = SHORT | {"generate.temperature": 0.0, "measure.on": "train", "measure.prompt_choice": "middle"}
    found, opened = taken("overlap", settings), open_evaluation(run_of_all(), on="train")
    greedy = opened.writer.checked(None, {"temperature": 0.0})
    task = OverlapTask(prompts=5, prompt_choice="middle", tokens=9, seed=3, batch=2)
    expected = measure_overlap(opened.writer, opened.file, greedy, task, opened.leaked).as_dict()
    assert found["writing.perplexity"] == expected["perplexity"] and found["bleu.1"] == expected["bleu"]["1"]
    error = refused(lambda: taken("overlap", settings | {"measure.prompt_choice": "end"}))
    assert (error.code, error.setting) == ("setting.value", "measure.prompt_choice")


def test_writing_measures_texts_of_exact_length() -> None:
    settings = {"generate.tokens": 20, "generate.temperature": 0.0, "measure.repeats": 2, "measure.batch": 2}
    found = taken("writing", settings)
    assert found["writing.tokens"] == 20
    assert found["tokens_per_second"] * found["seconds_per_sample"] == pytest.approx(20)
    writer = load(run_of_all())
    (sample,) = writer.samples(
        [""], settings=writer.checked(None, {"tokens": 20, "min_tokens": 20, "temperature": 0.0})
    )
    assert found["writing.perplexity"] == float(f"{math.exp(-sample.logprob / 20):.6g}")


def test_uncached_engine_has_no_cache_and_the_same_perplexity() -> None:
    settings = {"generate.tokens": 20, "generate.temperature": 0.0, "measure.repeats": 1}
    cached, uncached = (taken("writing", settings | {"generate.engine": engine}) for engine in ("torch", "uncached"))
    assert uncached["cache_bytes"] == 0
    counted = load(run_of_all()).model.count().cache_bytes_per_token
    assert 20 * counted <= cached["cache_bytes"] <= 2 * 20 * counted  # capacity grows by doubling
    assert cached["writing.perplexity"] == uncached["writing.perplexity"], "rounded to six digits"


def test_a_batch_of_different_prompts() -> None:
    settings = {"measure.batch": 3, "measure.prompt_tokens": 4, "measure.repeats": 1, "generate.tokens": 5}
    settings |= {"measure.on": "train"}  # its validation split has too few documents
    prompts = held_out_prompts(run_of_all(), read_settings(settings))
    assert len(prompts) == 3 and len(set(prompts)) > 1
    evaluation = open_evaluation(run_of_all(), on="train")
    texts = [
        evaluation.writer.tokenizer.decode(evaluation.file.tokens[start:end].tolist())
        for start, end in itertools.pairwise(evaluation.file.offsets.tolist())
    ]
    assert all(any(text.startswith(prompt) for text in texts) for prompt in prompts)
    found = taken("writing", settings | {"measure.different_prompts": True})
    assert found["writing.seconds"] == pytest.approx(3 * found["seconds_per_sample"])
    assert found["writing.peak_memory_bytes"] > 1e8
    assert found["tokens_per_second"] == pytest.approx(15 / found["writing.seconds"])
    error = refused(lambda: taken("writing", settings | {"measure.different_prompts": True, "measure.batch": 10_000}))
    assert (error.code, error.setting) == ("setting.value", "measure.batch")


@pytest.mark.parametrize("strategy", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.0, "beams": 3}])
def test_example_is_the_text_of_the_cell(strategy: dict[str, Any]) -> None:
    settings = {f"generate.{name}": value for name, value in strategy.items()}
    found = MEASURES[EXAMPLE](run_of_all(), settings | {"measure.example": "once", "measure.tokens": 6}, 1)
    writer = load(run_of_all())
    generate = dataclasses.replace(writer.config.generate, tokens=6, **strategy)
    (best,) = (
        next(writer.beams(["once"], 1, generate)) if "beams" in strategy else writer.samples(["once"], 1, generate)
    )
    assert found == {EXAMPLE: "once" + best.text}


def test_cache_peak_includes_replaced_rows() -> None:
    """A text longer than the context is prefilled again with fewer tokens; the earlier, larger cache counts."""
    engine = load(run_of_all()).engine_for(load(run_of_all()).config.generate)
    watched = Watched(engine)
    assert watched.most == 0
    watched.prefill([list(range(30))])
    most = watched.most
    watched.prefill([[1]])
    assert watched.most == most > engine.prefill([[1]])[1].nbytes


def test_stories_use_the_generation_settings_of_the_cell(tmp_path: Path) -> None:
    changes = {"data__source": "storybook", "data__documents": "30", "tokenizer__kind": "word"}
    run, _ = train_small(small_config(tmp_path, **changes))
    assert taken("stories", {"measure.stories": 3, "generate.tokens": 5}, run.folder) == {"stories.valid": 0.0}
    floor = taken("training", run=run.folder)
    assert floor["validation.above_floor"] > 0
    assert floor["validation.above_floor"] == pytest.approx(
        taken("likelihood", run=run.folder)["validation.above_floor"], abs=1e-9
    )


# Settings and the process.


def test_measure_settings_have_defaults_and_report_all_errors() -> None:
    assert read_settings({"generate.beams": 5}).prompts == 50
    assert read_settings({"measure.stride": "none"}).stride is None
    with pytest.raises(UserErrors) as raised:
        read_settings({"measure.promts": 3, "measure.batch": 0, "measure.tokens": "many"})
    assert {(error.code, error.setting) for error in raised.value.errors} == {
        ("setting.value", "measure.batch"),
        ("setting.value", "measure.tokens"),
        ("setting.unknown", "measure.promts"),
    }
    (unknown,) = (error for error in raised.value.errors if error.code == "setting.unknown")
    assert "measure.prompts" in (unknown.fix or "")


def test_metrics_of_all_measures_are_in_the_table() -> None:
    found = measure(run_of_all(), ["training", "likelihood", "overlap", "writing"], SHORT | {"measure.repeats": 1}, 1)
    assert found.keys() <= FIGURES.keys()
    assert all(math.isfinite(value) for value in found.values())
    assert find_figure("un.known").title == "un.known" and find_figure("un.known").better is None


@pytest.mark.parametrize("name", ["training", "likelihood", "overlap", "writing"])
def test_every_metric_names_its_measures(name: str) -> None:
    settings = {} if name in ("training", "likelihood") else SHORT | {"measure.repeats": 1}
    assert all(name in find_figure(figure).measures for figure in taken(name, settings))
    assert {name for figure in FIGURES.values() for name in figure.measures} == MEASURES.keys() - {EXAMPLE}
    assert MEASURE_TEXTS.keys() == MEASURES.keys()
    assert all(figure.measures for figure in FIGURES.values())


def test_process_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"measures": ["training", "overlap"], "settings": SHORT, "seed": 1}
    assert main([str(run_of_all()), "--spec", json.dumps(spec)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["updates"] == 8 and printed["bleu.1"] >= printed["bleu.4"]


def test_process_prints_an_error_in_three_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--spec", '{"measures": ["training"], "settings": {}, "seed": 1}']) == 2
    out, err = capsys.readouterr()
    assert not out and len(err.splitlines()) <= 3 and str(tmp_path) in err


def test_training_is_measured_without_torch() -> None:
    code = "import sys; from lilliput.studies.measures import main; main(); sys.exit('torch' in sys.modules)"
    spec = '{"measures": ["training"], "settings": {}, "seed": 1}'
    ended = subprocess.run(
        [sys.executable, "-c", code, str(run_of_all()), "--spec", spec], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0 and json.loads(ended.stdout)["updates"] == 8, ended.stderr
