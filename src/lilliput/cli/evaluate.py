"""`lilliput evaluate`: how good a run is, on documents that it has not seen or on any others.

Owns: the flags, and checking them before torch is imported. Does not own: the figures
(`evaluation`), or how they are shown (`evaluation_tables`).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from lilliput.cli.error_flags import flag, flags_in_errors, gather
from lilliput.cli.generation_flags import (
    add_flags,
    apply_given,
    check_flags,
    check_generate,
    given_flags,
)
from lilliput.cli.output import chatter, print_json, progress, say
from lilliput.errors import UserError, UserErrors
from lilliput.evaluation.overlap_settings import OverlapTask
from lilliput.settings.tree import STRICT, Count, GenerateSettings, NotNegative, Probability, describe

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput evaluate demo
    lilliput evaluate demo --stride 64 --by position --by frequency
    lilliput evaluate demo --on mytext.txt --csv documents.csv
    lilliput evaluate demo --baselines                       beside n-grams and compressors, which need no net
    lilliput evaluate demo --overlap --beams 5               BLEU of what it writes after the beginnings of documents
    lilliput evaluate demo --stories 20                      how whole texts read beside documents; are they valid?
    lilliput evaluate speech-lm --on tests --overlapping     all test sets, each and together
    lilliput evaluate speech-classifier --on test --json
"""
PARTS = ("position", "frequency", "label", "set")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvaluateFlags:
    """How a text is read, and what is written to be judged."""

    stride: Count | None = describe(
        "tokens between the beginnings of windows (none: the context, as in training)", None
    )
    stories: Count | None = describe("write so many whole texts, and tell how they read beside documents", None)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OverlapFlags:
    """What of the run's `generate` settings is most often compared."""

    temperature: NotNegative = describe("0 is greedy", 0.7)
    top_k: Count | None = describe("choose among the k likeliest tokens only", None)
    top_p: Probability | None = describe("choose among the likeliest tokens that together have this probability", None)
    beams: Count | None = describe("width of a beam search", None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run (its folder or its name in runs/) or a checkpoint's folder")
    parser.add_argument(
        "--on",
        metavar="SET|FILE",
        default="validation",
        help="train, validation, a test set by its name, tests (all of them), or a file or folder of texts [validation]",
    )
    add_flags(parser, EvaluateFlags, with_default=True)
    parser.add_argument(
        "--overlapping",
        action="store_true",
        help="also the loss over a window at every offset: exp(mean of batch losses), as some published figures are",
    )
    parser.add_argument(
        "--by", action="append", choices=PARTS, default=[], help="show figures by part, too; give it again for more"
    )
    parser.add_argument("--baselines", action="store_true", help="also score n-gram, compression and linear baselines")
    parser.add_argument("--csv", metavar="FILE", help="write the figures of each document into this file")
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help="where to compute [auto]"
    )
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object on stdout")
    overlap = parser.add_argument_group("overlap", "what it writes after the first tokens of documents, beside them")
    overlap.add_argument("--overlap", action="store_true", help="measure it: BLEU, chrF, diversity, speed")
    overlap.add_argument("--overlap-csv", metavar="FILE", help="write each prompt, reference and text into this file")
    add_flags(overlap, OverlapTask, with_default=True)
    generation = parser.add_argument_group("generation", "defaults: the run's generate.* settings")
    add_flags(generation, OverlapFlags, with_default=False)


def run(arguments: argparse.Namespace) -> int:
    with flags_in_errors():
        request = check(arguments)
        from lilliput.evaluation.evaluate import evaluate

        with progress(chatter()) as report:
            found = evaluate(arguments.run, report=report, **request)
    if arguments.json:
        print_json(found)
    else:
        from lilliput.cli.evaluation_tables import show

        show(found, arguments.by)
    return 0


def check(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `evaluate`, or raise all errors at once."""
    from lilliput.evaluation.evaluate import check_arguments, settings_of

    errors: list[UserError] = []
    task = gather(errors, lambda: check_flags(OverlapTask, given_flags(arguments, OverlapTask)))
    gather(errors, lambda: check_generate(given_flags(arguments, OverlapFlags)))
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
        gather(
            errors,
            lambda: check_arguments(config, arguments.on, own.stride, arguments.overlapping, overlap, stories),
        )
        if (overlap or stories) and not errors:
            settings = gather(errors, lambda: generate_settings(config.generate, given_flags(arguments, OverlapFlags)))
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
        "labelled": "label" in arguments.by,
        "device": arguments.device,
    }


def generate_settings(run: GenerateSettings, given: dict[str, Any]) -> GenerateSettings:
    settings, notes = apply_given(run, given)
    for note in notes:
        say(note)
    return settings


def with_overlap(arguments: argparse.Namespace) -> dict[str, Any]:
    return {} if arguments.overlap_csv is None else {"overlap_csv": arguments.overlap_csv}


def check_apart(csv: str | None, overlap_csv: str | None) -> None:
    if csv is not None and overlap_csv is not None and Path(csv).resolve() == Path(overlap_csv).resolve():
        what = "--csv and --overlap-csv name the same file"
        raise UserError(what, csv, fix="give two different files", code="flag.conflict")


def check_place(name: str, path: str | None) -> None:
    """Raise before minutes of measuring, not after, where the file cannot be written."""
    if path is None:
        return
    fix = "give the path of a file"
    if Path(path).is_dir():
        raise UserError(f"{flag(name)} is a folder, expected a file", path, fix=fix, code="file.is-folder")
    if not Path(path).absolute().parent.is_dir():
        raise UserError(f"{flag(name)}: the folder of the file does not exist", path, fix=fix, code="file.not-written")
