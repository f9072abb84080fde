"""`lilliput generate`: text from a trained model, printed while it is generated.

Owns: the flags and the output. Does not own: flags from settings (`generation_flags`), reading prompts (`prompt_input`), or
generation (`decoding`).
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

from lilliput.cli.error_flags import flags_in_errors, gather
from lilliput.cli.generation_flags import (
    add_generation_flags,
    apply_given,
    check_generation_flags,
    given_flags,
)
from lilliput.cli.mixture_output import open_mixture
from lilliput.cli.output import print_json, print_note
from lilliput.cli.prompt_input import STDIN, as_text, read_prompts
from lilliput.errors import UserError, UserErrors
from lilliput.settings.choice_tables import Conflict
from lilliput.settings.tree import STRICT, Count, GenerateSettings, Seed, describe

if TYPE_CHECKING:
    from lilliput.decoding.writer import Piece, Sample, Writer

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput generate demo
    lilliput generate demo "Once upon a time" --samples 3 --seed 1
    lilliput generate demo --top-p 0.9 --repetition-penalty 1.2 --stop "The end"
    lilliput generate demo --beams 5 --n-best 3 --json
    lilliput generate demo --mix-ngram 0.3                      mix the model with n-grams of its training text
    lilliput generate demo --prompts prompts.txt --batch 32     one prompt per line (- for stdin)
    lilliput generate demo --tokens 5 --alternatives 3          probabilities of the most likely tokens
    lilliput generate runs/demo/checkpoints/step-003000 --temperature 0 --tokens 50
"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GenerateFlags:
    """Flags of the command, in addition to the `generate` settings of the run."""

    samples: Count = describe("number of samples per prompt", 1)
    n_best: Count = describe("number of texts to print per beam search", 1)
    batch: Count = describe("number of texts generated in parallel; each beam counts as one", 32)
    alternatives: Count | None = describe(
        "number of most likely tokens to print at each position, with the entropy", None
    )
    seed: Seed = describe("random seed; sample i uses seed + i", 0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_generation_flags(parser, GenerateFlags, repeatable=("prompt",))
    parser.add_argument("text", metavar="TEXT", nargs="?", help="text to continue, as --prompt TEXT")
    parser.add_argument("--prompts", metavar="FILE", help="file with one prompt per line (- for stdin)")
    parser.add_argument("--json", action="store_true", help="print one JSON object when all texts are generated")


def run(arguments: argparse.Namespace) -> int:
    task, prompts = check(arguments)
    from lilliput.data.corpora import END_OF_TEXT
    from lilliput.decoding.writer import load

    with flags_in_errors():
        writer = load(arguments.run, arguments.device)
    settings = resolve_settings(task, writer.config.generate, given_flags(arguments, GenerateSettings))
    prompts = [prompt for prompt in prompts or [as_text(settings.prompt)] for _ in range(task.samples)]
    note_long_prompts(writer, prompts)
    if any(END_OF_TEXT in prompt for prompt in prompts):
        print_note(
            f"{END_OF_TEXT} in a prompt is plain text, not the end of a document; an empty prompt starts a document"
        )
    write = write_beams if settings.beams else write_texts
    with flags_in_errors():
        mixture = open_mixture(writer, settings)
        engine = writer.engine_for(settings, print_note)
        began = time.monotonic()
        samples = write(writer, prompts, settings, task, show=not arguments.json)
    if arguments.json:
        speed = count_written(samples) / (time.monotonic() - began)
        mixed = None if mixture is None else mixture.as_dict()
        print_json({"samples": samples, "tokens_per_second": speed, "engine": engine.name, "mixture": mixed})
    return 0


def count_written(samples: Iterable[dict[str, Any]]) -> int:
    """Return the number of generated tokens; in a beam search, those of the best text."""
    return sum(text["tokens"] for text in samples if text["rank"] in (None, 1))


def check(arguments: argparse.Namespace) -> tuple[GenerateFlags, list[str] | None]:
    """Check the flags without torch and raise all errors at once; return the flags, and the prompts if there are several."""
    errors: list[UserError] = []
    given: list[str] = arguments.prompt or []
    if arguments.text is not None and (given or arguments.prompts is not None):
        flags = "--prompt" if given else "--prompts"
        what = f"the prompt {arguments.text!r} and {flags} cannot be combined"
        errors.append(
            UserError(what, fix="remove one of the two, or quote a prompt that has spaces", code="flag.conflict")
        )
    elif arguments.text is not None:
        given = [arguments.text]
    arguments.prompt = given[-1] if given else None
    task, prompts = check_generation_flags(arguments, GenerateFlags, errors), None
    if len(given) > 1:
        prompts = [as_text(prompt) for prompt in given]
    if arguments.prompts is not None and arguments.prompt is not None:
        errors.append(
            UserError("--prompt and --prompts cannot be combined", fix="remove one of the two", code="flag.conflict")
        )
    elif arguments.prompts is not None and not (
        errors and arguments.prompts == STDIN
    ):  # do not wait for input after an error
        prompts = gather(errors, lambda: read_prompts(arguments.prompts, print_note))
    if errors or task is None:
        raise UserErrors(errors)
    return task, prompts


def resolve_settings(task: GenerateFlags, run: GenerateSettings, given: dict[str, Any]) -> GenerateSettings:
    """Return the run's settings with the given ones; raise if they conflict with each other or with the flags."""
    errors: list[UserError] = []
    conflicts = conflicts_with_beams(task)
    drop_beams = conflicts and run.beams is not None and "beams" not in given
    dropped = [Conflict("generate.beams", conflicts[0].what, conflicts[0].fix)] if drop_beams else []
    found = gather(errors, lambda: apply_given(run, given, dropped=dropped))
    if found is not None and found[0].beams is not None:
        errors += conflicts
    if found is not None and found[0].beams is None and task.n_best > 1:
        fix = f"add --beams {task.n_best}"
        errors.append(UserError("--n-best requires a beam search", fix=fix, code="flag.conflict"))
    if errors or found is None:
        raise UserErrors(errors)
    settings, notes = found
    for note in notes:
        print_note(note)
    if task.samples > 1 and settings.temperature == 0.0:
        print_note(f"the {task.samples} texts are the same, because temperature 0 is greedy")
    return settings


def conflicts_with_beams(task: GenerateFlags) -> list[UserError]:
    """Return errors about the flags that a beam search does not support."""
    found = []
    if task.samples > 1:
        what = f"--samples {task.samples} is not supported by a beam search"
        fix = f"use --n-best {task.samples}, or add --beams none"
        found.append(UserError(what, fix=fix, code="flag.conflict"))
    if task.alternatives is not None:
        what = "--alternatives is not supported by a beam search"
        found.append(UserError(what, fix="add --beams none", code="flag.conflict"))
    return found


def note_long_prompts(writer: Writer, prompts: Sequence[str]) -> None:
    context = writer.config.model.context
    lengths = {prompt: len(writer.encode_prompt(prompt)) for prompt in prompts}  # samples share prompts
    long = sorted(length for length in lengths.values() if length > context)
    if long:
        which = "the prompt has" if len(lengths) == 1 else f"{len(long)} of {len(lengths)} prompts have up to"
        print_note(
            f"{which} {long[-1]:,} tokens, more than the context of {context:,}: the model sees the last {context // 2:,}"
        )


def write_texts(
    writer: Writer, prompts: Sequence[str], settings: GenerateSettings, task: GenerateFlags, show: bool
) -> list[dict[str, Any]]:
    from lilliput.decoding.writer import collect

    pieces = writer.write(prompts, seed=task.seed, settings=settings, batch=task.batch, alternatives=task.alternatives)
    if not show:
        return [as_object(sample, task) for sample in collect(prompts, pieces)]
    shown = Show(prompts)
    for piece in pieces:
        shown(piece)
    return []


def write_beams(
    writer: Writer, prompts: Sequence[str], settings: GenerateSettings, task: GenerateFlags, show: bool
) -> list[dict[str, Any]]:
    """Return the best texts of each prompt, and print them when the search of the prompt ends."""
    samples: list[dict[str, Any]] = []
    found = writer.beams(prompts, task.seed, settings, task.batch, task.n_best)
    for number, best in enumerate(found, start=1):
        scores = format_scores([sample.score or 0.0 for sample in best])
        for rank, sample in enumerate(best, start=1):
            samples.append(as_object(sample, task, rank))
            if show:
                numbers = [f"{number} of {len(prompts)}"] if len(prompts) > 1 else []
                numbers += [f"best {rank} of {len(best)}"] if task.n_best > 1 else []
                numbers += [f"score {scores[rank - 1]}"] if numbers else []
                sys.stdout.write(
                    heading(", ".join(numbers), first=len(samples) == 1) + f"{sample.prompt}{sample.text}\n"
                )
        sys.stdout.flush()
    if missing := len(prompts) * task.n_best - len(samples):
        print_note(
            f"{missing} of the {len(prompts) * task.n_best} texts are missing: the search found fewer different texts"
        )
    return samples


def format_scores(scores: Sequence[float]) -> list[str]:
    """Return scores with 4 decimals, or up to 8 if different scores would look equal."""
    texts = list[str]()
    for decimals in range(4, 9):
        texts = [f"{score:.{decimals}f}" for score in scores]
        if len({*texts}) == len({*scores}):
            break
    return texts


def as_object(sample: Sample, task: GenerateFlags, rank: int | None = None) -> dict[str, Any]:
    fields = {name: getattr(sample, name) for name in ("prompt", "text", "tokens", "logprob", "finish", "score")}
    fields["rank"] = rank
    if task.alternatives is not None:
        wanted = ("id", "token", "text", "logprob", "entropy", "alternatives")
        fields["pieces"] = [{name: asdict(piece)[name] for name in wanted} for piece in sample.pieces]
    return fields


def heading(numbers: str, first: bool) -> str:
    """Return the line above one of several texts."""
    return f"{'' if first else chr(10)}--- {numbers}\n" if numbers else ""


class Show:
    """Print the first unfinished text while it is generated, then the next one."""

    def __init__(self, prompts: Sequence[str]) -> None:
        self.prompts = prompts
        self.waiting: dict[int, list[Piece]] = {}
        self.row = -1
        self.shown: list[Piece] = []  # pieces of the current text
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
                print_alternatives(self.shown)
            self.next()
        sys.stdout.flush()

    def next(self) -> None:
        self.row, self.shown = self.row + 1, []
        if self.row < len(self.prompts):
            numbers = f"{self.row + 1} of {len(self.prompts)}" if len(self.prompts) > 1 else ""
            sys.stdout.write(heading(numbers, first=self.row == 0) + self.prompts[self.row])


def print_alternatives(pieces: Sequence[Piece]) -> None:
    """Print each token with its probability, the entropy at its position and the most likely tokens. Lines are not wrapped."""
    from rich.cells import cell_len

    rows = [["token", "probability", "entropy (bits)", "most likely"]]
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
    """Return the token in quotation marks, with escaped line ends."""
    return json.dumps(token, ensure_ascii=False)
