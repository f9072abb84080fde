"""The model card of an export: data, settings, figures, samples, limits, licence, how to load it.

Owns: README.md of an exported folder. Does not own: the figures (`storage.run_folders`, `evaluation`), or the other files.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lilliput import __version__
from lilliput.decoding.writer import Writer
from lilliput.storage.dotted_names import flatten
from lilliput.storage.run_folders import RunFolder, best_validation, figures_of_tests

SHOWN = ("model.", "optimizer.", "schedule.", "train.", "tokenizer.")
SAMPLES, SAMPLE_TOKENS, SEED = 2, 120, 1001
WIDTH = 100


@dataclass(frozen=True)
class CardFacts:
    """What an export adds to the facts of its run: the format, how to load it, what was compared, and its limits.

    `evaluation` is the JSON object of `lilliput evaluate`, with intervals and baselines, if the user gives one.
    """

    title: str
    format: str
    usage: str
    checked: str
    limits: Sequence[str]
    licence: str | None
    evaluation: Mapping[str, Any] | None = None
    library: str = "transformers"


def write_card(writer: Writer, facts: CardFacts) -> str:
    """Return the text of README.md."""
    run = (
        None
        if writer.checkpoint is None or writer.checkpoint.run_folder is None
        else RunFolder(writer.checkpoint.run_folder)
    )
    events = run.metrics() if run is not None and run.metrics_path.is_file() else []
    parts = [
        front_matter(facts),
        f"# {facts.title}",
        wrapped(
            f"A language model of {writer.model.count().parameters.total:,} parameters, trained with Lilliput "
            f"{__version__} and exported as {facts.format}."
        ),
        "## How to load it",
        facts.usage,
        "## Data",
        wrapped(data_text(writer)),
        "## Figures",
        figures_text(events, facts.evaluation),
        "## Samples",
        *sample_blocks(writer),
        "## Limits",
        bullets(facts.limits),
        "## Checks of this export",
        wrapped(facts.checked),
        "## Licence",
        wrapped(licence_text(facts.licence)),
        "## Settings",
        settings_table(writer),
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(facts: CardFacts) -> str:
    lines = [f"library_name: {facts.library}", "pipeline_tag: text-generation", "tags:", "- lilliput"]
    if facts.licence is not None:
        lines.append(f"license: {facts.licence}")
    return "\n".join(["---", *lines, "---"])


def wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def bullets(texts: Sequence[str]) -> str:
    fill = textwrap.TextWrapper(
        WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(fill.fill(text) for text in texts)


def data_text(writer: Writer) -> str:
    data, tokenizer = writer.config.data, writer.tokenizer
    own = data.validation_source
    validation = f"{data.validation_share:.0%} of the documents" if own is None else f"`{own}`"
    return (
        f"Trained on `{data.source}`; validation: {validation}. The tokenizer is of kind {tokenizer.kind}, with "
        f"{tokenizer.vocab_size:,} tokens. In training, every document begins with the token {tokenizer.start} "
        f"(`{tokenizer.token(tokenizer.start)}`); the exported tokenizer puts it before every text."
    )


def figures_text(events: list[dict[str, Any]], evaluation: Mapping[str, Any] | None) -> str:
    """Return a table of the recorded figures: validation, test sets, and, if given, intervals and baselines."""
    rows = [("set", "loss (nats/token)", "perplexity", "bits per byte", "95% interval of the loss")]
    if evaluation is not None:
        ends = (evaluation.get("interval") or {}).get("loss")
        interval = "" if ends is None else " to ".join(f"{end:.4f}" for end in ends)
        rows.append((str(evaluation.get("set", "evaluated documents")), *figures(evaluation), interval))
    elif validation := best_validation(events):
        rows.append(("validation", *figures(validation), ""))
    for name, found in figures_of_tests(events).items():
        rows.append((name, *figures(found), ""))
    if len(rows) == 1:
        return "The run has no recorded evaluation."
    for name, value in baselines_of(evaluation):
        rows.append((f"baseline: {name}", "", "", f"{value:.4f}", ""))
    columns = len(rows[0]) if any(row[-1] for row in rows[1:]) else len(rows[0]) - 1
    lines = [f"| {' | '.join(row[:columns])} |" for row in rows]
    return "\n".join([lines[0], f"|{'---|' * columns}", *lines[1:]])


def figures(found: Mapping[str, Any]) -> tuple[str, str, str]:
    def shown(name: str, digits: int) -> str:
        value = found.get(name)
        return "" if value is None else f"{value:.{digits}f}"

    return shown("loss", 4), shown("perplexity", 2), shown("bits_per_byte", 4)


def baselines_of(evaluation: Mapping[str, Any] | None) -> list[tuple[str, float]]:
    """Return the name and bits per byte of each baseline of an evaluation."""
    rows = [] if evaluation is None else evaluation.get("baselines") or []
    return [(str(row.get("name")), row["bits_per_byte"]) for row in rows if row.get("bits_per_byte") is not None]


def sample_blocks(writer: Writer) -> list[str]:
    """Return generated texts, as quoted blocks."""
    changes = {"engine": "torch", "quantise": None, "tokens": SAMPLE_TOKENS, "min_tokens": 0, "mix_ngram": None}
    settings = writer.checked(None, changes)
    prompt = settings.prompt
    texts = [prompt + one.text for one in writer.samples([prompt] * SAMPLES, SEED, settings)]
    return [fenced(text) for text in texts]


def fenced(text: str) -> str:
    """Return a block with a fence that is longer than any run of backquotes in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = [wrapped(line) for line in text.splitlines()]
    return "\n".join([f"{fence}text", *lines, fence])


def licence_text(licence: str | None) -> str:
    if licence is not None:
        return f"{licence}, as given with --license."
    return (
        "No licence was given (--license NAME). The licence of the training data also applies to what may be done with the "
        "model."
    )


def settings_table(writer: Writer) -> str:
    from lilliput.settings.loading import config_to_dict

    found = flatten(config_to_dict(writer.config))
    rows = [(name, found[name]) for name in found if name.startswith(SHOWN)]
    lines = [f"| `{name}` | {'none' if value is None else str(value).lower()} |" for name, value in rows]
    return "\n".join(["| setting | value |", "|---|---|", *lines])
