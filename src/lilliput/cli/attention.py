"""`lilliput attention`: head scores, heat maps and a web page of attention weights.

Owns: the flags and the printed table. Does not own: capture, scores, heat maps and page (`interpret`), or the documents of
a run (`evaluation.evaluate`).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic.dataclasses import dataclass

from lilliput.cli.error_flags import flag, flags_in_errors, gather
from lilliput.cli.generation_flags import (
    add_flags,
    apply_given,
    check_flags,
    given_flags,
)
from lilliput.cli.output import print_json, print_note, progress, readable, stderr_console, stdout_console
from lilliput.errors import UserError, UserErrors, nearest
from lilliput.settings.tree import STRICT, Count, GenerateSettings, NotNegative, Seed, describe

if TYPE_CHECKING:
    from lilliput.data.progress import Report
    from lilliput.decoding.writer import Writer
    from lilliput.interpret import AttentionMaps
    from lilliput.interpret.head_scores import HeadSummary, Tally
    from lilliput.settings.tree import Config

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput attention demo "Once upon a time there was a fox. The fox"
    lilliput attention demo "Once upon a time" --generate 40 --seed 1
    lilliput attention demo "The fox saw the owl." --layers 0,2 --heads 0-1 --pictures heads --svg
    lilliput attention demo --on validation --documents 50 --sort induction
    lilliput attention demo "The fox saw the owl." --on validation --out mine --json
"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AttentionFlags:
    """Flags of the command."""

    generate: Count | None = describe("number of tokens to generate after the text", None)
    seed: Seed = describe("random seed of --generate and of the documents of --on", 0)
    temperature: NotNegative | None = describe("temperature of --generate (none: the run's generate.temperature)", None)
    documents: Count = describe("number of documents to sample with --on", 100)


class AttentionRequest(NamedTuple):
    """The checked flags."""

    task: AttentionFlags
    layers: list[int] | None
    heads: list[int] | None


class AttentionResult(NamedTuple):
    """`attention` of the text, if one was given; `tally` of the scores over the text or the documents."""

    name: str
    attention: AttentionMaps | None
    tally: Tally
    folder: Path
    written: dict[str, int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run (folder, or name in runs/) or checkpoint folder")
    parser.add_argument("text", metavar="TEXT", nargs="?", help="input text")
    parser.add_argument("--layers", metavar="A,B-C", help="layers, numbered from 0, such as 0,2 or 0-3 [all]")
    parser.add_argument("--heads", metavar="A,B-C", help="heads of each layer, numbered from 0 [all]")
    add_flags(parser, AttentionFlags, with_default=True)
    parser.add_argument(
        "--on", metavar="SET", help="score heads over documents: train, validation, a test set, or a text file"
    )
    parser.add_argument(
        "--sort",
        metavar="SCORE",
        default="entropy",
        help="sort the table by this column (layer or a score of the table) [entropy]",
    )
    parser.add_argument("--pad", action="store_true", help="pad the text to the context length, as in a batch")
    parser.add_argument("--out", metavar="FOLDER", help="output folder [attention/RUN]")
    parser.add_argument(
        "--pictures",
        default="layers",
        choices=("layers", "heads", "none"),
        help="heat maps to write: one per layer, also one per head, or none [layers]",
    )
    parser.add_argument("--svg", action="store_true", help="write SVG instead of PNG")
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help="device to compute on [auto]"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    with flags_in_errors(flag_of):
        request = check(arguments)
        with progress(stderr_console()) as report:
            result = compute(arguments, request, report)
    if arguments.json:
        print_json(as_object(arguments, result))
    else:
        print_scores(arguments, result)
    return 0


def compute(arguments: argparse.Namespace, request: AttentionRequest, report: Report) -> AttentionResult:
    from lilliput.decoding.writer import load
    from lilliput.evaluation.evaluate import open_evaluation
    from lilliput.interpret import summarise_documents
    from lilliput.interpret.attention_folder import open_folder, write_folder, write_scores
    from lilliput.interpret.head_scores import Tally

    evaluation = (
        None if arguments.on is None else open_evaluation(arguments.run, arguments.on, arguments.device, report)
    )
    writer = load(arguments.run, arguments.device) if evaluation is None else evaluation.writer
    name = name_of(writer)
    attention = None if arguments.text is None else capture(arguments.text, request, writer, arguments.pad, name)
    surveyed = None
    if evaluation is not None:
        task = request.task
        surveyed = summarise_documents(
            writer, evaluation.file, task.documents, task.seed, request.layers, request.heads, report
        )
    folder = Path(arguments.out or Path("attention") / name)
    open_folder(folder, another_text=attention is not None)
    written: dict[str, int] = {}
    if attention is not None:
        written = write_folder(attention, folder, surveyed, arguments.pictures, arguments.svg, report)
    tally = Tally() if surveyed is None else surveyed
    if surveyed is None and attention is not None:
        tally.add(attention)
    written |= write_scores(tally, folder, arguments.sort, of_text=attention is not None)
    return AttentionResult(name, attention, tally, folder, written)


def name_of(writer: Writer) -> str:
    """Return the name of the run, also for one of its checkpoints."""
    assert writer.checkpoint is not None
    folder = writer.checkpoint.folder.absolute()
    return folder.parents[1].name if folder.parent.name == "checkpoints" else folder.name


# Flags ------------------------------------------------------------------------------------------------------------------


def check(arguments: argparse.Namespace) -> AttentionRequest:
    """Return the checked flags, or raise all errors at once. Does not import torch."""
    from lilliput.settings.loading import config_from_dict
    from lilliput.storage.checkpoints import CONFIG
    from lilliput.storage.run_folders import resolve_checkpoint

    errors: list[UserError] = []
    task = (
        gather(errors, lambda: check_flags(AttentionFlags, given_flags(arguments, AttentionFlags))) or AttentionFlags()
    )
    found = gather(errors, lambda: resolve_checkpoint(arguments.run))
    config = gather(errors, lambda: config_from_dict(found.config(), str(found.folder / CONFIG))) if found else None
    there = (config.model.layers, config.model.heads) if config else (None, None)
    layers = gather(errors, lambda: parse_numbers("--layers", arguments.layers, there[0]))
    heads = gather(errors, lambda: parse_numbers("--heads", arguments.heads, there[1]))
    errors += find_conflicts(arguments, task, config)
    if errors:
        raise UserErrors(errors)
    return AttentionRequest(task, layers, heads)


def find_conflicts(arguments: argparse.Namespace, task: AttentionFlags, config: Config | None) -> list[UserError]:
    from lilliput.interpret.head_score_definitions import SCORES

    found = unused_flags(arguments)
    if arguments.text is None and arguments.on is None:
        fix = 'add a text, as in lilliput attention RUN "Once", or --on SET'
        found.append(UserError("a text or --on is required", fix=fix, code="flag.missing"))
    if arguments.text is None and task.generate is not None:
        fix = 'run lilliput attention RUN "Once" --generate 40'
        found.append(UserError("--generate requires a text", fix=fix, code="flag.conflict"))
    if arguments.sort not in (*SCORES, "layer"):
        close = nearest(arguments.sort, [*SCORES, "layer"])
        fix = f"use --sort {close}" if close else f"use one of {', '.join(SCORES)}, layer"
        found.append(UserError(f"unknown score {arguments.sort!r}", "--sort", fix=fix, code="flag.value"))
    if arguments.pad and task.generate is not None:
        fix = "remove --pad or --generate"
        found.append(UserError("--pad and --generate cannot be combined", fix=fix, code="flag.conflict"))
    if config is not None and config.model.task == "classifier" and task.generate is not None:
        what = "--generate requires a language model (got a classifier)"
        found.append(UserError(what, fix="remove --generate", code="model.task", setting="model.task"))
    if arguments.out is not None and Path(arguments.out).is_file():
        what, fix = "--out must be a folder (got a file)", "choose a folder"
        found.append(UserError(what, arguments.out, fix=fix, code="file.not-written"))
    if config is not None and arguments.on is not None:
        from lilliput.evaluation.evaluation_sets import check_name

        gather(found, lambda: check_name(config.data, arguments.on))
    return found


def unused_flags(arguments: argparse.Namespace) -> list[UserError]:
    """Return an error for each given flag that would have no effect."""
    given, text, on = given_flags(arguments, AttentionFlags), arguments.text is not None, arguments.on is not None
    generates = "generate" in given
    needs = [
        ("--temperature", "temperature" in given and not generates, "--generate"),
        ("--documents", "documents" in given and not on, "--on"),
        ("--seed", "seed" in given and not (generates or on), "--generate or --on"),
        ("--pad", arguments.pad and not text, "a text"),
        ("--svg", arguments.svg and not (text and arguments.pictures != "none"), "a text and --pictures"),
    ]
    return [
        UserError(f"{name} requires {what}", fix=f"add {what} or remove {name}", code="flag.conflict")
        for name, lacks, what in needs
        if lacks
    ]


def parse_numbers(name: str, text: str | None, there: int | None) -> list[int] | None:
    """Parse `0,2-4` to [0, 2, 3, 4]; None means all. `there` is the number that exists, if known."""
    if text is None:
        return None
    chosen: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part)
        if not found:
            what, fix = f"{name} must be numbers such as 0,2 or 0-3 (got {text!r})", f"use {name} 0,2 or {name} 0-3"
            raise UserError(what, fix=fix, code="flag.value")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            what = f"{name} must have ascending ranges (got {text!r})"
            raise UserError(what, fix=f"use {name} {last}-{first}", code="flag.value")
        if there is not None and last >= there:
            things = name.removeprefix("--")
            what = f"the model has {there} {things}, numbered from 0 (got {name} {text})"
            raise UserError(what, fix=f"use numbers up to {there - 1}", code="attention.selection")
        chosen |= set(range(first, last + 1))
    return sorted(chosen)


# Capture ------------------------------------------------------------------------------------------------------------------


def capture(text: str, request: AttentionRequest, writer: Writer, pad: bool, name: str) -> AttentionMaps:
    from lilliput.interpret import capture_text

    task, words = request.task, " ".join(text.split())
    title = f"{name}: {words if len(words) <= 80 else words[:79] + '…'}" if words else name
    settings = None if task.generate is None else generate_settings(writer.config.generate, task)
    found = capture_text(writer, text, request.layers, request.heads, task.generate, task.seed, settings, pad, title)
    context = writer.config.model.context
    for unseen, where in ((found.before, "before"), (found.after, "after")):
        if unseen:
            print_note(
                f"the text is longer than the context of {context:,} tokens: {len(unseen):,} tokens {where} it are not shown"
            )
    return found


def generate_settings(run: GenerateSettings, task: AttentionFlags) -> GenerateSettings:
    """Return the run's settings without beams, with the number of tokens and the temperature of the flags."""
    given: dict[str, Any] = {"tokens": str(task.generate), "beams": "none"}
    if task.temperature is not None:
        given["temperature"] = str(task.temperature)
    settings, notes = apply_given(run, given, flag_of)
    for note in notes:
        print_note(note)
    return settings


def flag_of(setting: str) -> str:
    """Return the flag of a `generate` setting."""
    return "--generate" if setting == "tokens" else flag(setting)


# Printing ---------------------------------------------------------------------------------------------------------------


def as_object(arguments: argparse.Namespace, result: AttentionResult) -> dict[str, Any]:
    from lilliput.interpret.head_scores import sort_heads

    attention, tally, text = result.attention, result.tally, None
    if attention is not None:
        text = {
            "tokens": list(attention.tokens),
            "prompt": attention.prompt,
            "written": attention.written,
            "padding": 0 if attention.padding is None else int(attention.padding.sum()),
            "unseen": {"before": len(attention.before), "after": len(attention.after)},
        }
    return {
        "run": result.name,
        "text": text,
        "on": arguments.on,
        "texts": tally.texts,
        "tokens": tally.tokens,
        "heads": [one.as_dict() for one in sort_heads(tally.heads(), arguments.sort)],
        "even": [one.as_dict() for one in tally.even()],
        "folder": str(result.folder),
        "files": result.written,
    }


def print_scores(arguments: argparse.Namespace, result: AttentionResult) -> None:
    from lilliput.interpret.head_scores import sort_heads

    attention, tally, console = result.attention, result.tally, stdout_console()
    if attention is not None and attention.wrote is not None:
        console.print(f"generated text: {attention.wrote}", markup=False)
    documents = "document" if tally.texts == 1 else "documents"
    over = f"{tally.texts:,} {documents} of {arguments.on}" if arguments.on else "this text"
    console.print(f"head scores over {over} ({tally.tokens:,} tokens), sorted by {arguments.sort}", markup=False)
    print_table(sort_heads(tally.heads(), arguments.sort), tally.even())
    size = result.written.get("attention.html")
    if size is None:
        print_note(f"table: {result.folder / next(iter(result.written))} (give a text to also write a web page)")
    else:
        others = len(result.written) - 1
        print_note(
            f"page: {result.folder / 'attention.html'} ({readable(size)}B), and {others} other files in the same folder"
        )


def print_table(heads: Sequence[HeadSummary], even: Sequence[HeadSummary]) -> None:
    """Print the sorted heads, then the scores of uniform attention, once for layers with the same mask."""
    from rich.table import Table

    from lilliput.interpret.head_score_definitions import SCORES
    from lilliput.interpret.head_scores import merge_even

    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for title in ("layer", "head", *SCORES):
        table.add_column(title, justify="right")
    rows = [(str(one.layer), str(one.head), one) for one in heads]
    rows += [
        ("all" if layers is None else " ".join(map(str, layers)), "uniform", one) for layers, one in merge_even(even)
    ]
    for layer, head, one in rows:
        table.add_row(layer, head, *("-" if score is None else f"{score:.3f}" for score in one.scores.values()))
    stdout_console().print(table)
    stdout_console().print(
        "entropy in bits, distance in tokens; the others are mean attention weights: previous, first, punctuation: on such "
        "tokens; same: on earlier copies of the token; induction: on the token after an earlier copy; -: no such token in the "
        "text; last row: a head with equal weights on all visible tokens, for comparison",
        style="dim",
    )
