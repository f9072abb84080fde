"""Samples with references in the report of a run: continuations of held-out documents.

Owns: the task, its result in `samples.json` of the run's folder, and the section. Does not own: the metrics
(`evaluation.overlap`), or the other sections (`run_report`).

The result is computed once per checkpoint, if the run's prepared data is available. Later reports read the file, so they
need neither the data nor the time.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from lilliput.errors import UserError
from lilliput.evaluation.metric_format import format_perplexity
from lilliput.evaluation.overlap_settings import OverlapTask
from lilliput.reports.document import Block, Paragraph, Table
from lilliput.reports.formatting import counted
from lilliput.storage.atomic_files import json_bytes, parse_object, write_whole
from lilliput.storage.run_folders import Run, resolve_checkpoint

SAMPLES, FORMAT = "samples.json", 1
SHOWN = 10  # rows of the table


def find_samples(run: Run) -> dict[str, Any] | None:
    """Return the result for the run's best checkpoint, from the file or computed.

    None for a classifier, and where the data is not available.
    """
    return read_samples(run) or measure_samples(run)


def save_samples(run: Run, found: dict[str, Any] | None) -> None:
    save_result(run, SAMPLES, FORMAT, found)


def read_samples(run: Run) -> dict[str, Any] | None:
    return read_result(run, SAMPLES, FORMAT)


def save_result(run: Run, name: str, version: int, found: dict[str, Any] | None) -> None:
    """Write the result to the file, unless it is there or cannot be written: a run may be read-only."""
    if found is not None and read_result(run, name, version) != found:
        with suppress(UserError):
            write_whole(run.folder / name, json_bytes(found))


def read_result(run: Run, name: str, version: int) -> dict[str, Any] | None:
    """Return the content of the file; None if it is missing, damaged, or of another checkpoint or version."""
    with suppress(OSError, ValueError, UserError):  # UserError: a run without a checkpoint
        found = parse_object((run.folder / name).read_bytes())
        if (found.get("format"), found.get("checkpoint")) == (version, resolve_checkpoint(run.folder).name):
            return found
    return None


def measure_samples(run: Run) -> dict[str, Any] | None:
    from lilliput.evaluation.evaluate import evaluate_overlap, open_evaluation, settings_of

    try:
        checkpoint, config = settings_of(run.folder)
        if config.model.task == "classifier":
            return None
        evaluation = open_evaluation(checkpoint.folder, build=False)
        measured = evaluate_overlap(evaluation, OverlapTask(), samples=True)
    except UserError:  # no checkpoint, no prepared data, or no document that is long enough
        return None
    return {"format": FORMAT, "checkpoint": checkpoint.name, **measured}


def sample_blocks(found: dict[str, Any]) -> list[Block]:
    from lilliput.evaluation.prompt_selection import describe_prompts

    samples, overlap, bleu = found["samples"], found["overlap"], found["bleu"]
    task, count = overlap["task"], len(found["samples"])
    prompts = describe_prompts(task["prompt_choice"], task["prompt_tokens"], task["seed"])
    own, other = format_perplexity(overlap["perplexity"]), format_perplexity(overlap["reference_perplexity"])
    about = (
        f"The model continues {counted(count, 'prompt')} of the validation split ({overlap['different_prompts']} distinct; "
        f"{prompts}) by up to {counted(task['tokens'], 'token')}, with the run's generate.* settings. The reference is the "
        f"text that follows in the document, up to {counted(task['tokens'], 'token')}. "
        f"Over all {count}: perplexity {own} of the generated texts and {other} of the references, BLEU-4 {bleu['4']:.2f}."
    )
    note = (
        "Perplexity: exp(mean nats per token) under the model after the prompt, before logit processors; that of a generated "
        f"text includes its end of text. Sentence BLEU-4: sacrebleu, 0 to 100, {bleu['sentence']['signature']}."
    )
    columns = ["prompt", "generated", "reference", "perplexity, generated", "perplexity, reference", "sentence BLEU-4"]
    rows = [
        [
            *(" ".join(row[name].split()) for name in ("prompt", "generated", "reference")),
            *(format_perplexity(row[name]) for name in ("generated_perplexity", "reference_perplexity")),
            f"{row['sentence_bleu']:.2f}",
        ]
        for row in samples[:SHOWN]
    ]
    caption = f"The first {SHOWN} of {count} samples" if count > SHOWN else "Samples"
    return [Paragraph(about), Table(columns, rows, caption=caption, note=note, heads=3)]
