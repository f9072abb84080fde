"""`lilliput evaluate`: evaluate a run on held-out or other documents.

Owns: the flags, and checking them before torch is imported. Does not own: the metrics (`evaluation`), or the printed tables
(`api.evaluation_tables`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from lilliput.cli.error_flags import check_place, flag, flags_in_errors, gather
from lilliput.cli.generation_flags import (
    add_flags,
    apply_given,
    check_flags,
    check_generate,
    given_flags,
)
from lilliput.cli.output import print_json, print_note, progress, stderr_console, stdout_console
from lilliput.errors import UserError, UserErrors
from lilliput.evaluation.overlap_settings import OverlapTask
from lilliput.settings.tree import STRICT, Count, GenerateSettings, MixShare, NotNegative, Probability, describe

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput evaluate demo
    lilliput evaluate demo --stride 64 --by position --by frequency
    lilliput evaluate demo --on mytext.txt --csv documents.csv
    lilliput evaluate demo --baselines                       compare with n-grams and compressors
    lilliput evaluate demo --mix-ngram auto                  also the mixture of the model with n-grams
    lilliput evaluate demo --overlap --beams 5               BLEU of continuations of documents
    lilliput evaluate demo --overlap --prompt-choice middle --seed 1 --samples
    lilliput evaluate demo --stories 20                      statistics of generated texts
    lilliput evaluate speech-lm --on tests --overlapping     all test sets
    lilliput evaluate speech-classifier --on test --json
"""
REQUIRED = {
    "position": "a language model",
    "frequency": "a language model and its training data",
    "label": "a language model and documents with labels",
    "set": "a language model and several sets",
}  # by the names of --by


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvaluateFlags:
    """Flags of the command."""

    stride: Count | None = describe(
        "tokens between the starts of windows (none: the context length, as in training)", None
    )
    stories: Count | None = describe(
        "generate this number of texts without a prompt and compare their statistics with the documents", None
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OverlapFlags:
    """The most used `generate` settings."""

    temperature: NotNegative = describe("sampling temperature; 0: greedy", 0.7)
    top_k: Count | None = describe("sample from the K most likely tokens", None)
    top_p: Probability | None = describe("sample from the most likely tokens with this total probability", None)
    beams: Count | None = describe("beam width (none: no beam search)", None)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MixtureFlags:
    """The `generate` setting that also adds metrics."""

    mix_ngram: MixShare | None = describe(
        "also evaluate a mixture of the model with an n-gram model of its training text: share (0 to 1) of the n-gram model; "
        "auto: the share that is best on validation; continuations and stories are generated with the mixture",
        None,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run (folder, or name in runs/) or checkpoint folder")
    parser.add_argument(
        "--on",
        metavar="SET|FILE",
        default="validation",
        help="documents: train, validation, a test set, tests (all of them), or a text file or folder [validation]",
    )
    add_flags(parser, EvaluateFlags, with_default=True)
    parser.add_argument(
        "--overlapping",
        action="store_true",
        help="overlapping windows: also compute the mean loss and perplexity over windows that start at every token, as with "
        "data.windows overlapping (different from --overlap below)",
    )
    parser.add_argument(
        "--by",
        action="append",
        choices=tuple(REQUIRED),
        default=[],
        help="also show the loss by token position, token frequency, label or test set (repeatable)",
    )
    parser.add_argument(
        "--baselines",
        action="store_true",
        help="also score n-gram, compression and linear baselines on the same documents",
    )
    parser.add_argument("--csv", metavar="FILE", help="write the metrics of each document to FILE")
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help="device to compute on [auto]"
    )
    parser.add_argument("--json", action="store_true", help="print all metrics as one JSON object")
    overlap = parser.add_argument_group("overlap", "word overlap of generated continuations with the documents")
    overlap.add_argument(
        "--overlap",
        action="store_true",
        help="overlap of generated continuations with the documents: BLEU, chrF, diversity and speed",
    )
    overlap.add_argument(
        "--overlap-csv",
        metavar="FILE",
        help="write each prompt, text and reference, with perplexities and BLEU, to FILE",
    )
    overlap.add_argument(
        "--samples", action="store_true", help="also show the first samples; with --json all, in the key samples"
    )
    add_flags(overlap, OverlapTask, with_default=True)
    generation = parser.add_argument_group("generation", "defaults: the run's generate.* settings")
    add_flags(generation, MixtureFlags, with_default=False)
    add_flags(generation, OverlapFlags, with_default=False)


def run(arguments: argparse.Namespace) -> int:
    with flags_in_errors():
        request = check(arguments)
        from lilliput.evaluation.evaluate import evaluate

        with progress(stderr_console()) as report:
            found = evaluate(arguments.run, report=report, **request)
    if arguments.json:
        print_json(found)
    else:
        show(found, arguments.by)
    return 0


def show(found: dict[str, Any], by: Sequence[str]) -> None:
    from lilliput.api.evaluation_tables import heading, main_table, sentences, tables

    console = stdout_console()
    console.print(heading(found))
    console.print(main_table(found))
    for sentence in sentences(found):
        console.print(sentence, markup=False)
    for name in by:
        if not found.get("by", {}).get(name):
            console.print(f"--by {name} requires {REQUIRED[name]}", markup=False)
    for table in tables(found, by, flag):
        console.print()
        console.print(table)


def check(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `evaluate`, or raise all errors at once."""
    from lilliput.evaluation.evaluate import check_arguments, settings_of

    errors: list[UserError] = []
    task = gather(errors, lambda: check_flags(OverlapTask, given_flags(arguments, OverlapTask)))
    generation = given_flags(arguments, OverlapFlags) | given_flags(arguments, MixtureFlags)
    gather(errors, lambda: check_generate(generation))
    own = gather(errors, lambda: check_flags(EvaluateFlags, given_flags(arguments, EvaluateFlags))) or EvaluateFlags()
    for name in ("csv", "overlap_csv"):
        gather(errors, lambda name=name: check_place(name, getattr(arguments, name)))  # type: ignore[misc]
    gather(errors, lambda: check_apart(arguments.csv, arguments.overlap_csv))
    given = {**given_flags(arguments, OverlapTask), **with_overlap(arguments)}
    if own.stories is None:
        given |= given_flags(arguments, OverlapFlags)
    if given and not arguments.overlap:
        names = ", ".join(map(flag, given))
        what = f"{names} {'require' if len(given) > 1 else 'requires'} --overlap"
        errors.append(UserError(what, None, fix="add --overlap", code="flag.conflict"))
    found = gather(errors, lambda: settings_of(arguments.run))
    settings = None
    if found is not None:
        _, config = found
        overlap, stories = arguments.overlap, own.stories is not None
        mixed = generation.get("mix_ngram", "none") != "none"
        gather(
            errors,
            lambda: check_arguments(config, arguments.on, own.stride, arguments.overlapping, overlap, stories, mixed),
        )
        if (overlap or stories or "mix_ngram" in generation) and not errors:
            settings = gather(errors, lambda: generate_settings(config.generate, generation))
    if errors:
        raise UserErrors(errors)
    return {
        "on": arguments.on,
        "stride": own.stride,
        "stories": own.stories,
        "overlapping": arguments.overlapping,
        "overlap": task if arguments.overlap else None,
        "settings": settings,
        "baselines": arguments.baselines,
        "csv": arguments.csv,
        "overlap_csv": arguments.overlap_csv,
        "samples": arguments.samples,
        "labelled": "label" in arguments.by,
        "device": arguments.device,
    }


def generate_settings(run: GenerateSettings, given: dict[str, Any]) -> GenerateSettings:
    settings, notes = apply_given(run, given)
    for note in notes:
        print_note(note)
    return settings


def with_overlap(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {"overlap_csv": arguments.overlap_csv, "samples": arguments.samples or None}
    return {name: value for name, value in given.items() if value is not None}


def check_apart(csv: str | None, overlap_csv: str | None) -> None:
    if csv is not None and overlap_csv is not None and Path(csv).resolve() == Path(overlap_csv).resolve():
        what = "--csv and --overlap-csv must be different files"
        raise UserError(what, csv, fix="choose two different files", code="flag.conflict")
