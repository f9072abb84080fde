"""The table of a study's metrics: titles, units, digits, and whether lower or higher is better.

Owns: these properties, and the measures that return each metric. Does not own: computing a metric (`measures`), tables
or plots. Does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Figure:
    """A metric, shown as value x `scale` with `digits` digits after the point. `better` is None for metrics without a
    preferred direction, such as a budget. `of_a_text`: grows with the requested amount of text. `signed`: may be negative.
    `factor`: differences are shown as a factor (1.5x) instead of a percentage. `given`: follows from the settings, so that it
    has no findings."""

    title: str
    unit: str
    better: Literal["lower", "higher"] | None
    digits: int
    scale: float = 1.0
    of_a_text: bool = False
    signed: bool = False
    factor: bool = False
    given: bool = False
    measures: tuple[str, ...] = ()  # that return it

    @property
    def heading(self) -> str:
        """The title with a capital, unless its first word has one inside (chrF)."""
        return self.title if any(map(str.isupper, self.title.split()[0])) else self.title[:1].upper() + self.title[1:]


def given_by(measures: str, figures: dict[str, Figure]) -> dict[str, Figure]:
    """Set the measures of all these metrics; `measures` are names separated by spaces."""
    return {name: replace(figure, measures=tuple(measures.split())) for name, figure in figures.items()}


ORDERS = (1, 2, 3, 4)  # of n-grams
EXAMPLE = "example"  # a text, not a metric
# Metrics that curves may be drawn against.
UNITS_OF_METRICS = {
    "updates": "steps",
    "micro_batches": "micro-batches",
    "tokens": "tokens",
    "train.seconds": "minutes",
}

# Metrics of a whole split, by the last part of the name. `bits_per_byte_spelled` includes the bits for spelling unknown
# words, so that it compares different tokenizers.
OF_A_SPLIT = {
    "loss": Figure("loss", "nats/token", "lower", 4),
    "perplexity": Figure("perplexity", "", "lower", 2),
    "bits_per_byte": Figure("bits per byte", "bits/byte", "lower", 4),
    "bits_per_byte_spelled": Figure("bits per byte, unknown words spelled out", "bits/byte", "lower", 4),
    "word_perplexity": Figure("word perplexity", "", "lower", 2),
    "word_perplexity_spelled": Figure("word perplexity, unknown words spelled out", "", "lower", 2),
    "unknown_rate": Figure("unknown words", "%", "lower", 2, 100.0),
    "above_floor": Figure("bits per byte above the floor", "%", "lower", 1, 100.0, signed=True),
    "accuracy": Figure("accuracy", "%", "higher", 1, 100.0),
    "tokens": Figure("tokens", "", None, 0),
}


def split_figures(split: str) -> dict[str, Figure]:
    return {f"{split}.{name}": replace(figure, title=f"{split} {figure.title}") for name, figure in OF_A_SPLIT.items()}


FIGURES: dict[str, Figure] = {
    **given_by("training likelihood", split_figures("validation")),
    **given_by("likelihood", split_figures("training")),
    **given_by(
        "training",
        {
            "train.loss": Figure("training loss (last 10%)", "nats/token", "lower", 4),
            "train.seconds": Figure("training time", "s", "lower", 1),
            "train.tokens_per_second": Figure("training speed", "tokens/s", "higher", 0),
            "train.activation_bytes": Figure("activation memory (computed)", "MB", "lower", 1, 1e-6),
            "train.rows_per_step": Figure("effective batch", "rows", None, 0, given=True),
            "train.micro_batch_seconds": Figure("time of 2,000 micro-batches", "s", "lower", 1, 2000.0),
            "train.epoch_seconds": Figure("time per epoch", "s", "lower", 1),
            "updates": Figure("steps", "", None, 0),
            "micro_batches": Figure("micro-batches", "", None, 0),
            "tokens": Figure("training tokens", "million", None, 2, 1e-6),
            "flops": Figure("training compute", "TFLOP", None, 2, 1e-12),
            "parameters": Figure("parameters", "million", None, 3, 1e-6),
            "trainable_parameters": Figure("trainable parameters", "million", None, 3, 1e-6),
        },
    ),
    # Of the training process: added to every measurement.
    **given_by(
        "training likelihood accuracy overlap writing stories",
        {"train.peak_memory_bytes": Figure("peak process memory", "MB", "lower", 0, 1e-6)},
    ),
    **given_by(
        "overlap",
        {
            **{f"bleu.{order}": Figure(f"BLEU-{order}", "0 to 100", "higher", 2) for order in ORDERS},
            "chrf": Figure("chrF", "0 to 100", "higher", 2),
            **{f"distinct.{order}": Figure(f"distinct {order}-grams", "%", None, 1, 100.0) for order in ORDERS},
            "repetition": Figure("repeated 4-grams", "%", "lower", 1, 100.0),
            "self_bleu": Figure("self-BLEU-4", "0 to 100", None, 1),
            "reference.perplexity": Figure("perplexity of reference text", "", "lower", 2),
        },
    ),
    **given_by(
        "overlap writing",
        {
            "writing.perplexity": Figure("perplexity of generated text", "", None, 2),
            "writing.tokens": Figure("tokens per sample", "", None, 1),
            "tokens_per_second": Figure("generation speed", "tokens/s", "higher", 0, factor=True),
            "seconds_per_sample": Figure("time per sample", "s", "lower", 4, of_a_text=True),
        },
    ),
    **given_by(
        "writing",
        {
            "cache_bytes": Figure("KV cache size", "MB", "lower", 2, 1e-6, of_a_text=True),
            "writing.seconds": Figure("total time of a batch", "s", "lower", 3, of_a_text=True),
            "writing.peak_memory_bytes": Figure(
                "peak process memory, generating", "MB", "lower", 0, 1e-6, of_a_text=True
            ),
        },
    ),
    **given_by("stories", {"stories.valid": Figure("valid stories", "%", "higher", 1, 100.0)}),
    **given_by(
        "accuracy",
        {
            "accuracy": Figure("accuracy", "%", "higher", 1, 100.0),
            "calibration_error": Figure("expected calibration error", "%", "lower", 1, 100.0),
        },
    ),
}


def is_figure(name: str) -> bool:
    return name in FIGURES or (name.startswith("test.") and name.rpartition(".")[2] in OF_A_SPLIT)


def find_figure(name: str) -> Figure:
    """Return the entry of a metric. One of a test set, `test.NAME.perplexity`, has the set's name in its title; an unknown
    metric has its name as title, and no direction."""
    if name in FIGURES:
        return FIGURES[name]
    split, _, last = name.rpartition(".")
    if split.startswith("test.") and last in OF_A_SPLIT:
        figure = OF_A_SPLIT[last]
        title = f"{figure.title} on {split.removeprefix('test.')}"
        return replace(figure, title=title, measures=("training", "likelihood"))
    return Figure(name, "", None, 4)
