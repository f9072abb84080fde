"""Samples with references in the report of a run: continuations of held-out documents.

Owns: what is requested, its result in `samples.json` of the run's folder, and the section. Does not own: the metrics
(`evaluation.overlap`), or the other sections (`run_report`).

The result is computed once per checkpoint and request, if the run's prepared data is available. Later reports read the file,
so they need neither the data nor the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from lilliput.decoding.mixture_weights import describe_mixture
from lilliput.errors import UserError
from lilliput.evaluation.metric_format import format_perplexity
from lilliput.evaluation.overlap_settings import OverlapTask
from lilliput.reports.document import Block, Paragraph, Table
from lilliput.reports.formatting import counted
from lilliput.settings.loading import replace as change
from lilliput.storage.atomic_files import json_bytes, parse_object, write_whole
from lilliput.storage.run_folders import RunFolder, resolve_checkpoint

SAMPLES, FORMAT = "samples.json", 1
SHOWN = 10  # rows of the table


@dataclass(frozen=True)
class SampleRequest:
    """The prompts and lengths, the set whose documents are continued, and changes of the run's `generate.*` settings."""

    task: OverlapTask = field(default_factory=OverlapTask)
    on: str = "validation"
    generate: Mapping[str, Any] = field(default_factory=dict)  # by dotted names

    @property
    def set_name(self) -> str:
        return {"train": "the training split", "validation": "the validation split"}.get(self.on, f"the set {self.on}")


USUAL = SampleRequest()  # of the report of a run


def find_samples(run: RunFolder, request: SampleRequest = USUAL) -> dict[str, Any] | None:
    """Return the result for the run's best checkpoint, from the file or computed.

    None for a classifier, and where the data is not available.
    """
    return read_samples(run, request) or measure_samples(run, request)


def save_samples(run: RunFolder, found: dict[str, Any] | None) -> None:
    save_result(run, SAMPLES, FORMAT, found)


def read_samples(run: RunFolder, request: SampleRequest = USUAL) -> dict[str, Any] | None:
    """Return the content of the file; None if it is of another request. A file without one is of the usual request."""
    found = read_result(run, SAMPLES, FORMAT)
    return found if found and found.get("request", asdict(USUAL)) == asdict(request) else None


def save_result(run: RunFolder, name: str, version: int, found: dict[str, Any] | None) -> None:
    """Write the result to the file, unless it is there or cannot be written: a run may be read-only."""
    if found is not None and read_result(run, name, version) != found:
        with suppress(UserError):
            write_whole(run.folder / name, json_bytes(found))


def read_result(run: RunFolder, name: str, version: int) -> dict[str, Any] | None:
    """Return the content of the file; None if it is missing, damaged, or of another checkpoint or version."""
    with suppress(OSError, ValueError, UserError):  # UserError: a run without a checkpoint
        found = parse_object((run.folder / name).read_bytes())
        if (found.get("format"), found.get("checkpoint")) == (version, resolve_checkpoint(run.folder).name):
            return found
    return None


def measure_samples(run: RunFolder, request: SampleRequest = USUAL) -> dict[str, Any] | None:
    from lilliput.evaluation.evaluate import evaluate_overlap, open_evaluation, settings_of

    try:
        checkpoint, config = settings_of(run.folder)
        if config.model.task == "classifier":
            return None
        evaluation = open_evaluation(checkpoint.folder, request.on, build=False)
        settings = change(config, request.generate).generate
        measured = evaluate_overlap(evaluation, request.task, settings, samples=True)
    except UserError:  # no checkpoint, no prepared data, or no document that is long enough
        return None
    return {"format": FORMAT, "checkpoint": checkpoint.name, "request": asdict(request), **measured}


def sample_blocks(found: dict[str, Any], request: SampleRequest = USUAL, shown: int = SHOWN) -> list[Block]:
    """Return a summary of the request's result, and a table of the first `shown` samples."""
    from lilliput.evaluation.prompt_selection import describe_prompts

    samples, overlap, bleu = found["samples"], found["overlap"], found["bleu"]
    task, count = overlap["task"], len(found["samples"])
    prompts = describe_prompts(task["prompt_choice"], task["prompt_tokens"], task["seed"])
    own, other = format_perplexity(overlap["perplexity"]), format_perplexity(overlap["reference_perplexity"])
    about = (
        f"The model continues {counted(count, 'prompt')} of {request.set_name} ({overlap['different_prompts']} distinct) "
        f"by up to {counted(task['tokens'], 'token')}, with the run's generate.* settings. Prompts: {prompts}. The reference is "
        f"the text that follows in the document, up to {counted(task['tokens'], 'token')}. {generated_by(overlap)}"
        f"Over all {count}: perplexity {own} of the generated texts and {other} of the references, BLEU-4 {bleu['4']:.2f}."
    )
    note = (
        "Perplexity: exp(mean nats per token) of the tokens after the prompt, with the model's probabilities before logit "
        "processors. The perplexity of a generated text includes its end-of-text token. Sentence BLEU-4: sacrebleu, 0 to 100, "
        f"{bleu['sentence']['signature']}."
    )
    columns = ["prompt", "generated", "reference", "perplexity, generated", "perplexity, reference", "sentence BLEU-4"]
    rows = [
        [
            *(" ".join(row[name].split()) for name in ("prompt", "generated", "reference")),
            *(format_perplexity(row[name]) for name in ("generated_perplexity", "reference_perplexity")),
            f"{row['sentence_bleu']:.2f}",
        ]
        for row in samples[:shown]
    ]
    caption = f"The first {shown} of {count} samples" if count > shown else "Samples"
    return [Paragraph(about), Table(columns, rows, caption=caption, note=note, heads=3)]


def generated_by(overlap: dict[str, Any]) -> str:
    """Return a sentence if the texts were generated by a mixture with n-grams; earlier results have no such entry."""
    if overlap.get("mixture") is None:
        return ""
    return f"The texts are generated by a mixture: {describe_mixture(overlap['mixture'])}. "
