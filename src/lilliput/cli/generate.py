"""`lilliput generate`: a run writes, and its user reads along.

Owns: the flags, what is told of each text, and how it is shown. Does not own: flags from settings
(`generation_flags`), reading prompts (`prompt_input`), nor the writing (`decoding`).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic.dataclasses import dataclass

from lilliput.cli.generation_flags import add_writing, changed, check_writing, gather, naming, said, without_beams
from lilliput.cli.output import print_json, say
from lilliput.cli.prompt_input import STDIN, as_text, read_prompts
from lilliput.errors import UserError, UserErrors
from lilliput.settings.tree import STRICT, Count, GenerateSettings, Seed, describe

if TYPE_CHECKING:
    from lilliput.decoding.writer import Piece, Sample, Writer

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput generate demo
    lilliput generate demo --prompt "Once upon a time" --samples 3 --seed 1
    lilliput generate demo --top-p 0.9 --repetition-penalty 1.2 --stop "The end"
    lilliput generate demo --beams 5 --n-best 3 --json
    lilliput generate demo --prompts prompts.txt --batch 32     one prompt on each line; - reads them from a pipe
    lilliput generate demo --tokens 5 --alternatives 3          what else it might have written, and how sure it was
    lilliput generate runs/demo/checkpoints/step-000500 --temperature 0 --tokens 50
"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GenerateFlags:
    """What is written, and what is told of it; how it is written are the run's own settings."""

    samples: Count = describe("how many texts to write for each prompt", 1)
    n_best: Count = describe("how many of a beam search's texts to tell", 1)
    batch: Count = describe("most texts that are written at a time; beams count", 32)
    alternatives: Count | None = describe("tell so many of the likeliest tokens at each place, and the entropy", None)
    seed: Seed = describe("text i is drawn from seed + i, alone or in company", 0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_writing(parser, GenerateFlags)
    parser.add_argument("--prompts", metavar="FILE", help="a prompt on each line of this file; - is stdin")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, when all is written")


def run(arguments: argparse.Namespace) -> int:
    task, prompts = asked(arguments)
    from lilliput.decoding.writer import load

    writer = load(arguments.run, arguments.device)
    how = fitting(task, writer, said(arguments, GenerateSettings))
    prompts = [prompt for prompt in prompts or [as_text(how.prompt)] for _ in range(task.samples)]
    tell_long(writer, prompts)
    with naming():
        engine = writer.engine_for(how, say)
        began = time.monotonic()
        told = (write_beams if how.beams else write_texts)(writer, prompts, how, task, show=not arguments.json)
    if arguments.json:
        speed = count_written(told) / (time.monotonic() - began)
        print_json({"samples": told, "tokens_per_second": speed, "engine": engine.name})
    return 0


def count_written(told: Iterable[dict[str, Any]]) -> int:
    """The tokens of all texts; of a beam search those of its best, however many are told."""
    return sum(text["tokens"] for text in told if text["rank"] in (None, 1))


def asked(arguments: argparse.Namespace) -> tuple[GenerateFlags, list[str] | None]:
    """What can be checked before torch is imported, with all mistakes at once; the prompts of a file, if one is named."""
    mistakes: list[UserError] = []
    task, prompts = check_writing(arguments, GenerateFlags, mistakes), None
    if arguments.prompts is not None and arguments.prompt is not None:
        mistakes.append(UserError("--prompt is one prompt, and --prompts a file of them", fix="one of the two"))
    elif arguments.prompts is not None and not (mistakes and arguments.prompts == STDIN):  # nobody types in vain
        prompts = gather(mistakes, lambda: read_prompts(arguments.prompts, say))
    if mistakes or task is None:
        raise UserErrors(mistakes)
    return task, prompts


def fitting(task: GenerateFlags, writer: Writer, given: dict[str, Any]) -> GenerateSettings:
    """The run's settings with what was said in their place, if all of it fits together."""
    mistakes: list[UserError] = []
    run, unfit = writer.config.generate, misfits_of_beams(task)
    if unfit and run.beams is not None and "beams" not in given:
        found = gather(mistakes, lambda: without_beams(run, given, unfit[0].what))
    else:
        found = gather(mistakes, lambda: changed(run, given))
    how, left_out = found or (run, [])
    if found and how.beams is not None:
        mistakes += unfit
    if found and how.beams is None and task.n_best > 1:
        mistakes.append(UserError("--n-best tells the texts of a beam search", fix=f"--beams {task.n_best}"))
    if mistakes:
        raise UserErrors(mistakes)
    for sentence in left_out:
        say(sentence)
    if task.samples > 1 and how.temperature == 0.0:
        say(f"at temperature 0 nothing is drawn: the {task.samples} texts are the same")
    return how


def misfits_of_beams(task: GenerateFlags) -> list[UserError]:
    """What is asked for and a beam search does not give."""
    found = []
    if task.samples > 1:
        what = "--samples draws texts that do not know of each other, and --beams searches for the best ones"
        found.append(UserError(what, fix=f"--n-best {task.samples} in place of --samples, or --beams none"))
    if task.alternatives is not None:
        what = "--alternatives are told of texts that are written token by token, not of --beams"
        found.append(UserError(what, fix="--beams none"))
    return found


def tell_long(writer: Writer, prompts: Sequence[str]) -> None:
    context = writer.config.model.context
    lengths = {prompt: len(writer.encode_prompt(prompt)) for prompt in prompts}  # samples share theirs
    long = sorted(length for length in lengths.values() if length > context)
    if long:
        which = "the prompt has" if len(lengths) == 1 else f"{len(long)} of {len(lengths)} prompts have up to"
        say(f"{which} {long[-1]:,} tokens and the model sees {context:,}: it goes on from the last {context // 2:,}")


def write_texts(
    writer: Writer, prompts: Sequence[str], how: GenerateSettings, task: GenerateFlags, show: bool
) -> list[dict[str, Any]]:
    from lilliput.decoding.writer import collect

    pieces = writer.write(prompts, seed=task.seed, settings=how, batch=task.batch, alternatives=task.alternatives)
    if not show:
        return [as_object(sample, task) for sample in collect(prompts, pieces)]
    shown = Show(prompts)
    for piece in pieces:
        shown(piece)
    return []


def write_beams(
    writer: Writer, prompts: Sequence[str], how: GenerateSettings, task: GenerateFlags, show: bool
) -> list[dict[str, Any]]:
    """The best texts of each prompt, when they are found."""
    told: list[dict[str, Any]] = []
    found = writer.beams(prompts, task.seed, how, task.batch, task.n_best)
    for number, best in enumerate(found, start=1):
        for rank, sample in enumerate(best, start=1):
            told.append(as_object(sample, task, rank))
            if show:
                numbers = [f"{number} of {len(prompts)}"] if len(prompts) > 1 else []
                numbers += [f"best {rank} of {len(best)}"] if task.n_best > 1 else []
                numbers += [f"score {sample.score:.4f}"] if numbers else []
                sys.stdout.write(heading(", ".join(numbers), first=len(told) == 1) + f"{sample.prompt}{sample.text}\n")
        sys.stdout.flush()
    return told


def as_object(sample: Sample, task: GenerateFlags, rank: int | None = None) -> dict[str, Any]:
    told = {name: getattr(sample, name) for name in ("prompt", "text", "tokens", "logprob", "finish", "score")}
    told["rank"] = rank
    if task.alternatives is not None:
        wanted = ("id", "token", "text", "logprob", "entropy", "alternatives")
        told["pieces"] = [{name: asdict(piece)[name] for name in wanted} for piece in sample.pieces]
    return told


def heading(numbers: str, first: bool) -> str:
    """What stands above a text that is one of several; nothing above one alone."""
    return f"{'' if first else chr(10)}--- {numbers}\n" if numbers else ""


class Show:
    """Prints the first unfinished text as it is written, and the others when their turn comes."""

    def __init__(self, prompts: Sequence[str]) -> None:
        self.prompts = prompts
        self.waiting: dict[int, list[Piece]] = {}
        self.row = -1
        self.shown: list[Piece] = []  # of the text whose turn it is
        self.next()

    def __call__(self, piece: Piece) -> None:
        self.waiting.setdefault(piece.row, []).append(piece)
        while self.row < len(self.prompts):
            news = self.waiting.pop(self.row, [])
            self.shown += news
            sys.stdout.write("".join(piece.text for piece in news))
            if not news or news[-1].finish is None:
                break
            sys.stdout.write("\n")
            if self.shown[0].entropy is not None:
                tell_alternatives(self.shown)
            self.next()
        sys.stdout.flush()

    def next(self) -> None:
        self.row, self.shown = self.row + 1, []
        if self.row < len(self.prompts):
            numbers = f"{self.row + 1} of {len(self.prompts)}" if len(self.prompts) > 1 else ""
            sys.stdout.write(heading(numbers, first=self.row == 0) + self.prompts[self.row])


def tell_alternatives(pieces: Sequence[Piece]) -> None:
    """Each token with its probability, the entropy of its place in bits, and what else might have come there.

    Aligned and never folded: a line that is too long for a terminal is still a line in a file.
    """
    from rich.cells import cell_len

    rows = [["token", "probability", "entropy, bits", "likeliest"]]
    for piece in pieces:
        assert piece.entropy is not None
        others = (f"{quoted(other.token)} {math.exp(other.logprob):.1%}" for other in piece.alternatives)
        rows.append(
            [quoted(piece.token), f"{math.exp(piece.logprob):.1%}", f"{piece.entropy / math.log(2):.2f}", *others]
        )
    widths = [max(cell_len(row[at]) for row in rows if at < len(row)) for at in range(max(map(len, rows)))]
    for row in rows:
        cells = (
            " " * (width - cell_len(cell)) + cell if at in (1, 2) else cell + " " * (width - cell_len(cell))
            for at, (cell, width) in enumerate(zip(row, widths, strict=False))
        )
        print("  ".join(cells).rstrip())


def quoted(token: str) -> str:
    """With its spaces and line ends to be seen."""
    return json.dumps(token, ensure_ascii=False)
