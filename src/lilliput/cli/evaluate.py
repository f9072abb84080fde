"""`lilliput evaluate`: how good a run is, on documents that it has not seen or on any others.

Owns: the flags, and refusing what does not fit before torch is imported. Does not own: the figures
(`evaluation`), or how they are shown (`evaluation_tables`).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from lilliput.cli.generation_flags import add_flags, changed, gather, naming, said, values
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
    parser.add_argument("--baselines", action="store_true", help="what needs no net, on the same documents")
    parser.add_argument("--csv", metavar="FILE", help="write the figures of each document into this file")
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help="where to compute [auto]"
    )
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object on stdout")
    overlap = parser.add_argument_group("overlap", "what it writes after the first tokens of documents, beside them")
    overlap.add_argument("--overlap", action="store_true", help="measure it: BLEU, chrF, diversity, speed")
    overlap.add_argument("--overlap-csv", metavar="FILE", help="write each prompt, reference and text into this file")
    add_flags(overlap, OverlapTask, with_default=True)
    how = parser.add_argument_group("how it writes", "what is not said is as the run's settings generate.* say")
    add_flags(how, OverlapFlags, with_default=False)


def run(arguments: argparse.Namespace) -> int:
    asked = check(arguments)
    from lilliput.evaluation.evaluate import evaluate

    with progress(chatter()) as report, naming():
        found = evaluate(arguments.run, report=report, **asked)
    if arguments.json:
        print_json(found)
    else:
        from lilliput.cli.evaluation_tables import show

        show(found, arguments.by)
    return 0


def check(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `evaluate` is asked for; all mistakes at once."""
    from lilliput.evaluation.evaluate import check_arguments, settings_of

    mistakes: list[UserError] = []
    task = gather(mistakes, lambda: values(OverlapTask, said(arguments, OverlapTask)))
    gather(mistakes, lambda: values(OverlapFlags, said(arguments, OverlapFlags)))
    own = gather(mistakes, lambda: values(EvaluateFlags, said(arguments, EvaluateFlags))) or EvaluateFlags()
    for flag in ("csv", "overlap_csv"):
        gather(mistakes, lambda flag=flag: check_place(flag, getattr(arguments, flag)))  # type: ignore[misc]
    gather(mistakes, lambda: check_apart(arguments.csv, arguments.overlap_csv))
    given = {**said(arguments, OverlapTask), **with_overlap(arguments)}
    if own.stories is None:
        given |= said(arguments, OverlapFlags)
    if given and not arguments.overlap:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        mistakes.append(UserError(f"{names} {'are' if len(given) > 1 else 'is'} for --overlap", None, "--overlap, too"))
    found = gather(mistakes, lambda: settings_of(arguments.run))
    how = None
    if found is not None:
        _, config = found
        overlap, stories = arguments.overlap, own.stories is not None
        gather(
            mistakes,
            lambda: check_arguments(config, arguments.on, own.stride, arguments.overlapping, overlap, stories),
        )
        if (overlap or stories) and not mistakes:
            how = gather(mistakes, lambda: way_of(config.generate, said(arguments, OverlapFlags)))
    if mistakes:
        raise UserErrors(mistakes)
    return {
        "on": arguments.on,
        "stride": own.stride,
        "stories": own.stories,
        "overlapping": arguments.overlapping,
        "overlap": task if arguments.overlap else None,
        "settings": how,
        "baselines": arguments.baselines,
        "csv": arguments.csv,
        "overlap_csv": arguments.overlap_csv,
        "labelled": "label" in arguments.by,
        "device": arguments.device,
    }


def way_of(run: GenerateSettings, given: dict[str, Any]) -> GenerateSettings:
    how, left_out = changed(run, given)
    for sentence in left_out:
        say(sentence)
    return how


def with_overlap(arguments: argparse.Namespace) -> dict[str, Any]:
    return {} if arguments.overlap_csv is None else {"overlap_csv": arguments.overlap_csv}


def check_apart(csv: str | None, overlap_csv: str | None) -> None:
    if csv is not None and overlap_csv is not None and Path(csv).resolve() == Path(overlap_csv).resolve():
        raise UserError("--csv and --overlap-csv are one file, and each would replace the other", csv, "another name")


def check_place(flag: str, path: str | None) -> None:
    """Before minutes of measuring, not after."""
    if path is not None and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
        why = "is a folder" if Path(path).is_dir() else "is in a folder that does not exist"
        raise UserError(f"--{flag.replace('_', '-')} {path} {why}", None, "the path of a file")
