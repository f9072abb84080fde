"""The table of the figures of a study: which measures give each, how it is shown, and whether less or more is better.

Owns: titles, units, digits, directions, and the measures of each figure. Does not own: how a figure is computed
(`measures`), tables or plots. Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Figure:
    """Shown as value x `scale` with so many `digits` after the point. `better` is None for what is neither good nor bad in
    itself, such as a budget. `of_a_text`: more where longer texts are asked for, whatever writes them.
    `signed`: may be negative."""

    title: str
    unit: str
    better: Literal["lower", "higher"] | None
    digits: int
    scale: float = 1.0
    of_a_text: bool = False
    signed: bool = False
    measures: tuple[str, ...] = ()  # that may give it


def given_by(measures: str, figures: dict[str, Figure]) -> dict[str, Figure]:
    """Set the measures of all these figures; `measures` are names separated by blanks."""
    return {name: replace(figure, measures=tuple(measures.split())) for name, figure in figures.items()}


ORDERS = (1, 2, 3, 4)  # of n-grams

# Of a whole split, by the end of the name; `bits_per_byte_spelled` is the one that tokenizers are compared by: the letters of
# unknown words are paid for.
OF_A_SPLIT = {
    "loss": Figure("loss", "nats/token", "lower", 4),
    "perplexity": Figure("perplexity", "", "lower", 2),
    "bits_per_byte": Figure("bits per byte", "bits/byte", "lower", 4),
    "bits_per_byte_spelled": Figure("bits per byte, unknown words spelled", "bits/byte", "lower", 4),
    "word_perplexity": Figure("perplexity of words", "", "lower", 2),
    "word_perplexity_spelled": Figure("perplexity of words, unknown ones spelled", "", "lower", 2),
    "unknown_rate": Figure("unknown words", "%", "lower", 2, 100.0),
    "above_floor": Figure("bits per byte above the floor", "%", "lower", 1, 100.0, signed=True),
    "accuracy": Figure("accuracy", "%", "higher", 1, 100.0),
    "tokens": Figure("tokens judged", "", None, 0),
}


def split_figures(split: str) -> dict[str, Figure]:
    return {f"{split}.{name}": replace(figure, title=f"{split} {figure.title}") for name, figure in OF_A_SPLIT.items()}


FIGURES: dict[str, Figure] = {
    **given_by("training likelihood", split_figures("validation")),
    **given_by("likelihood", split_figures("training")),
    **given_by(
        "training",
        {
            "train.loss": Figure("training loss, last tenth", "nats/token", "lower", 4),
            "train.seconds": Figure("training time", "s", "lower", 1),
            "train.tokens_per_second": Figure("training speed", "tokens/s", "higher", 0),
            "train.activation_bytes": Figure("activations at one time", "MB", "lower", 1, 1e-6),
            "updates": Figure("updates", "", None, 0),
            "tokens": Figure("tokens trained on", "million", None, 2, 1e-6),
            "flops": Figure("computation", "TFLOP", None, 2, 1e-12),
            "parameters": Figure("parameters", "million", None, 3, 1e-6),
            "trainable_parameters": Figure("parameters that learn", "million", None, 3, 1e-6),
        },
    ),
    # Of the process that trained: comes with every measure.
    **given_by(
        "training likelihood accuracy overlap writing stories",
        {"train.peak_memory_bytes": Figure("peak memory of the process", "MB", "lower", 0, 1e-6)},
    ),
    **given_by(
        "overlap",
        {
            **{f"bleu.{order}": Figure(f"BLEU-{order}", "of 100", "higher", 2) for order in ORDERS},
            "chrf": Figure("chrF", "of 100", "higher", 2),
            **{f"distinct.{order}": Figure(f"distinct {order}-grams", "%", None, 1, 100.0) for order in ORDERS},
            "repetition": Figure("repeated 4-grams within a text", "%", "lower", 1, 100.0),
            "self_bleu": Figure("BLEU-4 of texts against each other", "of 100", None, 1),
        },
    ),
    **given_by(
        "overlap writing",
        {
            "writing.perplexity": Figure("perplexity of what it writes, by itself", "", None, 2),
            "writing.tokens": Figure("tokens of a text", "", None, 1),
            "tokens_per_second": Figure("writing speed", "tokens/s", "higher", 0),
            "seconds_per_sample": Figure("time of a text", "s", "lower", 4, of_a_text=True),
        },
    ),
    **given_by("writing", {"cache_bytes": Figure("keys and values kept", "MB", "lower", 2, 1e-6, of_a_text=True)}),
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
    """Return the entry of a figure. One of a test set, `test.NAME.perplexity`, has the set's name in its title; an unknown one is
    shown by its name, without a direction."""
    if name in FIGURES:
        return FIGURES[name]
    split, _, last = name.rpartition(".")
    if split.startswith("test.") and last in OF_A_SPLIT:
        figure = OF_A_SPLIT[last]
        title = f"{figure.title} on {split.removeprefix('test.')}"
        return replace(figure, title=title, measures=("training", "likelihood"))
    return Figure(name, "", None, 4)
