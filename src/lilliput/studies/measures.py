"""Measures of a trained run: each returns metrics by dotted names.

Owns: the measures, and the process that runs a set of them:

    python -m lilliput.studies.measures RUN --spec '{"measures": ["training"], "settings": {}, "seed": 1}'

prints one JSON object. Does not own: computing a metric (`evaluation`, `storage.run_folders`, `model.counting`),
titles and units (`study_metrics`), the settings
`measure.*` (`measure_settings`). Only the measures that need a model import torch; `training` reads the run's log.

A measure is a function of the run's folder, the cell's settings `generate.*` and `measure.*`, and the cell's seed. A value
that is a str is a text for the report, not a metric. Metrics that a run does not have (a classifier has no perplexity) are
left out.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.errors import UserError
from lilliput.settings.loading import config_from_dict
from lilliput.settings.loading import replace as change
from lilliput.settings.plugins import load_plugin
from lilliput.settings.tree import Config
from lilliput.storage.checkpoints import CONFIG
from lilliput.storage.run_folders import RunFolder, best_validation, figures_of_tests
from lilliput.studies.measure_settings import MeasureSettings, read_settings
from lilliput.studies.study_metrics import EXAMPLE, OF_A_SPLIT, ORDERS
from lilliput.studies.subprocesses import own_peak

if TYPE_CHECKING:
    from torch import Tensor

    from lilliput.decoding.engines import Engine, EngineRows
    from lilliput.decoding.writer import Sample, Writer

Measure = Callable[[Path, Mapping[str, Any], int], Mapping[str, float | str]]

LAST = 0.1  # share of the logged steps whose mean loss is the training loss: the loss of one batch is noisy
WARM_UP = 8  # tokens generated before timing: the first ones load and compile


# From the run's log and settings.


def measure_training(run: Path, settings: Mapping[str, Any], seed: int) -> dict[str, float]:
    """Return the losses of the run's own evaluations and the costs of training. `train.seconds` ends with the last step: the
    final evaluation is not training."""
    opened = RunFolder.open(run)
    events, config = opened.metrics(), config_from_dict(opened.config(), str(run / CONFIG))
    steps = [event for event in events if event["event"] == "step"]
    if not steps:
        what, fix = f"run {opened.name} has no logged step", "train the run before measuring it"
        raise UserError(what, str(run), fix=fix, code="run.no-figures")
    last = steps[-1]
    losses = [step["loss"] for step in steps[-max(1, round(LAST * len(steps))) :]]
    found: dict[str, float | None] = {
        "train.loss": statistics.fmean(losses),
        "train.seconds": last["seconds"],
        "train.tokens_per_second": statistics.median(step["tokens_per_second"] for step in steps),
        "train.rows_per_step": config.train.batch * config.train.accumulate,
        "train.micro_batch_seconds": last["seconds"] / (last["step"] * config.train.accumulate),
        "micro_batches": last["step"] * config.train.accumulate,
        "train.epoch_seconds": epoch_seconds(events),
        "updates": last["step"],
        "tokens": last["tokens"],
        **count_costs(config, last["tokens"]),
    }
    validation = best_validation(events) or {}
    found |= split_figures("validation", validation)
    if validation.get("floor"):
        found["validation.above_floor"] = validation["bits_per_byte"] / validation["floor"] - 1.0
    for name, test in figures_of_tests(events).items():
        found |= split_figures(f"test.{name}", test)
    return finite(found)


def epoch_seconds(events: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the training time per epoch at the last evaluation during training; None if there is none."""
    found = [
        event for event in events if event["event"] == "evaluation" and event.get("epoch") and event.get("seconds")
    ]
    return found[-1]["seconds"] / found[-1]["epoch"] if found else None


def count_costs(config: Config, tokens: int) -> dict[str, float]:
    """Compute the costs by arithmetic. Activations are those of a micro-batch of full rows at their peak. They are left out
    for a model with dropout, which also keeps masks and, on some devices, all attention weights."""
    from lilliput.model.counting import activations, count, recomputed_flops

    model, train = config.model, config.train
    counted = count(model, config.vectors)
    flops = counted.flops_per_token + recomputed_flops(model, train.recompute, train.recompute_every)
    numbers = train.batch * model.context * activations(model, train.recompute, train.recompute_every).most
    kept = numbers * (8 if train.precision == "float64" else 4)
    found: dict[str, float] = {
        "parameters": counted.parameters.total,
        "trainable_parameters": counted.parameters.trainable,
        "flops": flops * tokens,
    }
    return found if model.dropout else found | {"train.activation_bytes": kept}


# From evaluations of the model.


def measure_likelihood(run: Path, settings: Mapping[str, Any], seed: int) -> dict[str, float]:
    """Evaluate the whole split `measure.on`, each token once."""
    from lilliput.evaluation.evaluate import evaluate

    task = read_settings(settings)
    evaluation = evaluate(run, on=task.on, stride=task.stride)
    split = name_split(task.on)
    found = split_figures(split, evaluation)
    if evaluation.get("floor"):
        found[f"{split}.above_floor"] = evaluation["bits_per_byte"] / evaluation["floor"] - 1.0
    return finite(found)


def measure_accuracy(run: Path, settings: Mapping[str, Any], seed: int) -> dict[str, float]:
    """Evaluate a classifier on `measure.on`."""
    from lilliput.evaluation.evaluate import evaluate

    evaluation = evaluate(run, on=read_settings(settings).on)
    if "accuracy" not in evaluation:
        raise UserError(
            "the measure accuracy requires a classifier (got a language model)",
            str(run),
            fix='use measure = ["likelihood"]',
            code="model.task",
        )
    return finite({"accuracy": evaluation["accuracy"], "calibration_error": evaluation["calibration"]["error"]})


# From generated texts.


def measure_overlap(run: Path, settings: Mapping[str, Any], seed: int) -> dict[str, float]:
    """Compare continuations of held-out documents with the real ones, and measure the generation speed."""
    from lilliput.evaluation import overlap
    from lilliput.evaluation.evaluate import open_evaluation

    task = read_settings(settings)
    evaluation = open_evaluation(run, on=task.on)
    writer = with_settings(evaluation.writer, settings)
    figures = overlap.measure_overlap(
        writer, evaluation.file, writer.config.generate, task.overlap_task(seed), evaluation.leaked
    ).as_dict()
    written = figures["written"]
    return finite(
        {
            **{f"bleu.{order}": figures["bleu"][str(order)] for order in ORDERS},
            "chrf": figures["chrf"]["score"],
            **{f"distinct.{order}": written["distinct"][str(order)] for order in ORDERS},
            "repetition": written["repetition"][str(max(ORDERS))],
            "self_bleu": written["self_bleu"],
            "writing.tokens": figures["tokens"],
            "writing.perplexity": figures["perplexity"],
            "reference.perplexity": figures["reference_perplexity"],
            "tokens_per_second": figures["tokens_per_second"],
            "seconds_per_sample": figures["seconds_per_sample"],
        }
    )


def measure_writing(run: Path, settings: Mapping[str, Any], seed: int) -> dict[str, float]:
    """Measure speed and memory of generating `measure.batch` texts of exactly `generate.tokens` tokens after
    `generate.prompt`, or after the first tokens of different held-out documents: the median of `measure.repeats`, after a
    warm-up."""
    from lilliput.decoding.writer import load

    task, writer = read_settings(settings), with_settings(load(run), settings)
    generate = writer.config.generate
    generate = replace(generate, min_tokens=generate.tokens)  # no early end: equal work for every text
    prompts = held_out_prompts(run, task) if task.different_prompts else [generate.prompt] * task.batch
    watched = Watched(writer.engine_for(generate))
    writer = replace(writer, engine=watched)
    writer.samples(prompts, seed, replace(generate, tokens=WARM_UP, min_tokens=WARM_UP))
    took: list[float] = []
    samples: list[Sample] = []
    for repeat in range(task.repeats):
        began = time.perf_counter()
        samples += writer.samples(prompts, seed + repeat, generate)
        took.append(time.perf_counter() - began)
    tokens, seconds = sum(sample.tokens for sample in samples), statistics.median(took)
    return finite(
        {
            "tokens_per_second": tokens / task.repeats / seconds,
            "seconds_per_sample": seconds / len(prompts),
            "writing.seconds": seconds,
            "writing.peak_memory_bytes": None if sys.platform == "win32" else own_peak(),
            "cache_bytes": watched.most,
            "writing.tokens": tokens / len(samples),
            # Six digits: engines round float32 differently, which is not a difference in quality.
            "writing.perplexity": float(f"{math.exp(-sum(sample.logprob for sample in samples) / tokens):.6g}"),
        }
    )


def held_out_prompts(run: Path, task: MeasureSettings) -> list[str]:
    """Return the first tokens of `measure.batch` documents of `measure.on`, evenly spread over the split."""
    from lilliput.evaluation.evaluate import open_evaluation
    from lilliput.evaluation.prompt_selection import choose_documents, first_tokens

    evaluation = open_evaluation(run, on=task.on)
    documents = choose_documents(evaluation.file, task.batch, task.prompt_tokens)
    if len(documents) < task.batch:
        what = f"{task.batch} different prompts require as many documents of {task.prompt_tokens} tokens (got {len(documents)})"
        raise UserError(what, str(run), fix="lower measure.batch", code="setting.value", setting="measure.batch")
    ids = (first_tokens(evaluation.file, document, task.prompt_tokens) for document in documents.tolist())
    return [evaluation.writer.tokenizer.decode(prompt) for prompt in ids]


class Watched:
    """An engine that records the peak memory of its rows. Rows only grow, so their size is read when they are replaced and
    when `most` is read."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name, self.context = engine, engine.name, engine.context
        self.rows: EngineRows | None = None
        self.before = 0

    def prefill(self, views: Sequence[Sequence[int]]) -> tuple[Tensor, EngineRows]:
        self.before = self.most
        logits, self.rows = self.engine.prefill(views)
        return logits, self.rows

    @property
    def most(self) -> int:
        return max(self.before, self.rows.nbytes if self.rows is not None else 0)


def measure_stories(run: Path, settings: Mapping[str, Any], seed: int) -> dict[str, float]:
    """Return the share of stories generated without a prompt that are valid stories of the storybook."""
    from lilliput.decoding.writer import load
    from lilliput.evaluation.generated_stories import story_validity

    task, writer = read_settings(settings), with_settings(load(run), settings)
    return {"stories.valid": story_validity(writer, task.stories, seed).share}


def measure_example(run: Path, settings: Mapping[str, Any], seed: int) -> dict[str, str]:
    """Return the text that continues the prompt `measure.example`."""
    from lilliput.decoding.writer import load

    task, writer = read_settings(settings), with_settings(load(run), settings)
    (sample,) = writer.samples([task.example], seed, replace(writer.config.generate, tokens=task.tokens))
    return {EXAMPLE: sample.prompt + sample.text}


MEASURES: dict[str, Measure] = {
    "training": measure_training,
    "likelihood": measure_likelihood,
    "accuracy": measure_accuracy,
    "overlap": measure_overlap,
    "writing": measure_writing,
    "example": measure_example,
    "stories": measure_stories,
}


# Helpers.


def with_settings(writer: Writer, settings: Mapping[str, Any]) -> Writer:
    """Return the writer with the cell's `generate.*` settings."""
    changes = {name: value for name, value in settings.items() if name.startswith("generate.")}
    return replace(writer, config=change(writer.config, changes))


def name_split(on: str) -> str:
    """Return the first part of the names of the split's metrics."""
    return {"train": "training", "validation": "validation"}.get(on, f"test.{on}")


def split_figures(split: str, found: Mapping[str, Any]) -> dict[str, float | None]:
    return {f"{split}.{name}": found.get(name) for name in OF_A_SPLIT if found.get(name) is not None}


def finite(figures: Mapping[str, float | None]) -> dict[str, float]:
    """Return the finite values: JSON has no infinity, and it would spoil a mean over seeds."""
    return {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}


def measure(run: Path, names: Sequence[str], settings: Mapping[str, Any], seed: int) -> dict[str, float | str]:
    """Return all metrics and texts of these measures; if two return the same metric, the later one is kept."""
    figures: dict[str, float | str] = {}
    for name in names:
        figures |= MEASURES[name](run, settings, seed)
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lilliput.studies.measures", description="Measure one run.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--spec", required=True, help='JSON: {"measures": [...], "settings": {...}, "seed": 1}')
    parser.add_argument("--plugin", action="append", default=[], help="a Python file that registers choices")
    arguments = parser.parse_args(argv)
    spec = json.loads(arguments.spec)
    try:
        for path in arguments.plugin:
            load_plugin(path)
        figures = measure(arguments.run, spec["measures"], spec["settings"], spec["seed"])
    except UserError as error:
        print(error.printed(), file=sys.stderr)
        return 2
    print(json.dumps(figures, allow_nan=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
