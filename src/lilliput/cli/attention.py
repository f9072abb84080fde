"""`lilliput attention`: head scores, heat maps and a web page of attention weights.

Owns: the command and its printed tables. Does not own: checks of the flags (`attention_flags`), capture, scores, heat maps
and page (`interpret`), or the documents of a run (`evaluation.evaluate`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lilliput.cli.attention_flags import AttentionFlags, AttentionRequest, check
from lilliput.cli.error_flags import flag, flags_in_errors
from lilliput.cli.generation_flags import add_flags, apply_given
from lilliput.cli.output import print_json, print_note, print_status, progress, readable, stderr_console, stdout_console
from lilliput.settings.tree import GenerateSettings

if TYPE_CHECKING:
    from lilliput.data.progress import Report
    from lilliput.decoding.writer import Writer
    from lilliput.interpret import AttentionMaps
    from lilliput.interpret.head_functions import HeadFunctions
    from lilliput.interpret.head_scores import HeadSummary, Tally

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput attention demo "Once upon a time there was a fox. The fox"
    lilliput attention demo "Once upon a time" --generate 40 --seed 1
    lilliput attention demo "The fox saw the owl." --layers 0,2 --heads 0-1 --pictures heads --svg
    lilliput attention demo --on validation --documents 50 --sort induction
    lilliput attention demo "The fox saw the owl." --on validation --out mine --json
    lilliput attention demo --conllu storybook --documents 20       functions of heads: subject and verb, ...
"""


HEADS_OF_A_TABLE = 6  # fit into 80 columns


class AttentionResult(NamedTuple):
    """`attention` of the text, if one was given; `tally` of the scores over the text or the documents; `functions` of
    --conllu."""

    name: str
    attention: AttentionMaps | None
    tally: Tally
    functions: list[HeadFunctions] | None
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
        "--conllu",
        metavar="FILE",
        help="measure functions of heads on annotated text: a CoNLL-U file, or storybook (built-in stories)",
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
    from lilliput.interpret.attention_folder import open_folder, write_folder, write_functions, write_scores
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
    functions = None if arguments.conllu is None else measure(arguments.conllu, request, writer, report)
    folder = Path(arguments.out or Path("attention") / name)
    open_folder(folder, another_text=attention is not None)
    written: dict[str, int] = {}
    if attention is not None:
        written = write_folder(attention, folder, surveyed, arguments.pictures, arguments.svg, report)
    tally = Tally() if surveyed is None else surveyed
    if surveyed is None and attention is not None:
        tally.add(attention)
    if tally.texts:
        written |= write_scores(tally, folder, arguments.sort, of_text=attention is not None)
    if functions is not None:
        written["functions.csv"] = write_functions(functions, folder)
    return AttentionResult(name, attention, tally, functions, folder, written)


def measure(source: str, request: AttentionRequest, writer: Writer, report: Report) -> list[HeadFunctions]:
    from lilliput.data.corpora.conllu import read_conllu
    from lilliput.data.storybook.annotations import annotated_stories
    from lilliput.interpret import measure_functions

    task = request.task
    documents = annotated_stories(task.documents) if source == "storybook" else read_conllu(source)
    return measure_functions(writer, documents, task.documents, task.seed, request.layers, request.heads, report)


def name_of(writer: Writer) -> str:
    """Return the name of the run, also for one of its checkpoints."""
    assert writer.checkpoint is not None
    folder = writer.checkpoint.folder.absolute()
    return folder.parents[1].name if folder.parent.name == "checkpoints" else folder.name


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
        "functions": None if result.functions is None else [one.as_dict() for one in result.functions],
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
    if tally.texts:
        console.print(
            f"head scores over {over} ({tally.tokens:,} tokens with start tokens), sorted by {arguments.sort}",
            markup=False,
        )
        print_table(sort_heads(tally.heads(), arguments.sort), tally.even())
    if result.functions is not None:
        print_functions(result.functions, arguments.conllu)
    size = result.written.get("attention.html")
    if size is None:
        names = [str(result.folder / name) for name in result.written]
        print_status(f"table: {', '.join(names)} (give a text to also write a web page)")
    else:
        others = len(result.written) - 1
        print_status(
            f"page: {result.folder / 'attention.html'} ({readable(size)}B), and {others} other files in the same folder"
        )


def print_functions(found: Sequence[HeadFunctions], source: str) -> None:
    from rich.table import Table

    from lilliput.interpret.head_score_definitions import FUNCTIONS

    console = stdout_console()
    console.print(f"functions of heads over annotated documents of {source}", markup=False)
    for start in range(0, len(found), HEADS_OF_A_TABLE):
        heads = found[start : start + HEADS_OF_A_TABLE]
        table = Table("head", *(str(one.head) for one in heads), box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for name in FUNCTIONS:
            scores = [one.scores[name] for one in heads]
            table.add_row(name, *("-" if one is None else f"{one.score:.3f}{'*' * one.significant}" for one in scores))
        console.print(table)
    patterns = ", ".join(f"{one.head} {one.pattern}" for one in found)
    console.print(f"patterns: {patterns}", markup=False)
    console.print(
        "head: LAYER.HEAD; *: significantly above two baselines, which are equal weights on all visible tokens and the "
        "head's mean weight by distance; pattern: the highest score with *; -: no example; functions.csv has the "
        "baselines and intervals",
        style="dim",
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
        "entropy in bits, distance in tokens; mean attention weights: previous: on the preceding token; first: on the first "
        "token; punctuation: on tokens of punctuation; same: on other copies of the token; induction: on the tokens after other "
        "copies; -: no such token in the text; uniform: the scores of equal weights on all visible tokens, for comparison",
        style="dim",
    )
