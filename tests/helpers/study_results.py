"""Artificial results of studies: seeded metrics, and logs in the format of training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lilliput.studies.grid import Axis, Study, cells
from lilliput.studies.study_files import Plot
from lilliput.studies.study_results import Row, StudyResult

ABOUT: dict[str, Any] = {
    "command": "lilliput study window",
    "began": "2026-01-02T03:04:05+00:00",
    "ended": "2026-01-02T03:24:05+00:00",
    "seconds": 1200.0,
    "failed": [],
    "versions": {"lilliput": "0.1.0", "python": "3.11.2", "torch": "2.13.0"},
    "machine": {"system": "Linux", "processor": "a processor", "cores": 2, "memory_bytes": 8_000_000_000},
    "config": {"model.dim": 64, "model.window": None, "train.batch": 16, "optimizer.betas": [0.9, 0.95]},
}
Values = Callable[[dict[str, str], int], dict[str, float]]  # the metrics of a cell with a seed


def make_study(
    axes: Mapping[str, Mapping[str, Mapping[str, Any]]],
    seeds: tuple[int, ...] = (1, 2, 3),
    show: tuple[str, ...] = ("validation.perplexity",),
    plots: tuple[Plot, ...] = (),
    published: tuple[str, ...] = (),
    title: str = "A study",
    question: str = "Does it matter?",
) -> Study:
    return Study(
        name="made",
        title=title,
        question=question,
        recipe="speech-lm",
        seeds=seeds,
        budget={"steps": 500},
        measure=("training",),
        show=show,
        settings={"model.dim": 64},
        axes=tuple(
            Axis(name, {label: dict(said) for label, said in values.items()}, next(iter(values)))
            for name, values in axes.items()
        ),
        plots=plots,
        published=published,
    )


def make_result(study: Study, values: Values, folder: Path = Path("nowhere")) -> StudyResult:
    rows = [
        Row(
            cell.labels,
            seed,
            f"{'-'.join(cell.labels.values())}-seed{seed}".replace(" ", "-"),
            values(cell.labels, seed),
        )
        for cell in cells(study)
        for seed in study.seeds
    ]
    return StudyResult(folder, study, rows, dict(ABOUT))


def exact(table: Mapping[str, tuple[float, ...]], figure: str = "validation.perplexity") -> Values:
    """Return the metric of a label for each seed, starting at 1."""
    return lambda cell, seed: {figure: table[", ".join(cell.values())][seed - 1]}


def windows(folder: Path, seeds: tuple[int, ...] = (1, 2, 3)) -> StudyResult:
    """Return a study of attention windows with curves, significant and other differences, speeds and published values."""
    study = make_study(
        {"window": {"full": {}} | {f"{tokens} tokens": {"model.window": tokens} for tokens in (4, 8, 16)}},
        seeds,
        ("validation.perplexity", "validation.bits_per_byte", "train.seconds", "train.peak_memory_bytes", "tokens"),
        published=("A published net of this size had a perplexity of 375 with all tokens and 369 with a window of 8.",),
        title="Windows of attention",
        question="What does a model lose that sees only the last few tokens?",
    )
    shift = {"full": 0.0, "4 tokens": 9.5, "8 tokens": 2.1, "16 tokens": 0.05}
    faster = {"full": 0.0, "4 tokens": -6.0, "8 tokens": -5.0, "16 tokens": -2.5}

    def values(cell: dict[str, str], seed: int) -> dict[str, float]:
        label = cell["window"]
        common = np.random.default_rng(seed).normal()
        own = np.random.default_rng([seed, *map(ord, label)]).normal(size=4)
        perplexity = float(62.0 + 1.5 * common + shift[label] + 0.4 * own[0])
        return {
            "validation.perplexity": perplexity,
            "validation.bits_per_byte": float(np.log2(perplexity) / 4.3),
            "validation.loss": float(np.log(perplexity)),
            "train.seconds": float(41.0 + faster[label] + 0.8 * own[1]),
            "train.tokens_per_second": float(256_000 / (41.0 + faster[label] + 0.8 * own[1])),
            "train.peak_memory_bytes": float(6.1e8 + 1e6 * own[2]),
            "tokens": 256_000.0,
            "parameters": 863_243.0,
        }

    result = make_result(study, values, folder)
    for row in result.rows:
        write_log(folder / row.run, row.figures["validation.loss"], row.seed)
    return result


def write_log(folder: Path, end: float, seed: int, steps: int = 500, every: int = 10) -> None:
    """Write the log of a run whose loss decreases to `end`."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(seed)
    lines: list[dict[str, Any]] = []
    for step in range(every, steps + 1, every):
        loss = end + 4.5 * float(np.exp(-step / 90)) + 0.05 * float(noise.normal())
        lines.append(
            {"event": "step", "step": step, "loss": loss, "tokens": step * 512, "seconds": step / 12, "lr": 1e-3}
        )
        if step % 50 == 0:
            output = {
                "event": "evaluation",
                "step": step,
                "loss": end + 4.4 * float(np.exp(-step / 90)),
                "whole": False,
            }
            lines.append(output)
    (folder / "config.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
