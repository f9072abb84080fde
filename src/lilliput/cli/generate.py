"""`lilliput generate`: a run writes, and its user reads along."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from lilliput.cli.output import chatter, print_json
from lilliput.errors import UserError

if TYPE_CHECKING:
    from lilliput.decoding.writer import Piece

TOGETHER = 32  # texts that are written at once: their caches are in memory together

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput generate demo
    lilliput generate demo --prompt "Once upon a time" --samples 3 --seed 1
    lilliput generate runs/demo/checkpoints/step-000500 --temperature 0 --tokens 50
    lilliput generate demo --top-k 10 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run (its folder or its name in runs/) or a checkpoint's folder")
    parser.add_argument("--prompt", help='text to go on from; "" begins a new document [the run\'s generate.prompt]')
    parser.add_argument("--samples", type=int, default=1, help="how many texts to write [1]")
    parser.add_argument("--tokens", type=int, help="most tokens to write [the run's generate.tokens]")
    parser.add_argument("--temperature", type=float, help="0 is greedy [the run's generate.temperature]")
    parser.add_argument("--top-k", type=int, help="choose among the k likeliest tokens only")
    parser.add_argument("--seed", type=int, default=0, help="text i is drawn from seed + i, alone or in company [0]")
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help="where to compute [auto]"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, when all is written")


def run(arguments: argparse.Namespace) -> int:
    for name, least in (("samples", 1), ("tokens", 1), ("top_k", 1), ("temperature", 0), ("seed", 0)):
        value = getattr(arguments, name)
        if value is not None and not least <= value < 2**31:
            raise UserError(
                f"--{name.replace('_', '-')} is {value}: it should be {least} or more", None, "lilliput generate --help"
            )
    from lilliput.runs import resolve_checkpoint

    resolve_checkpoint(arguments.run)  # a wrong name is told before torch is imported
    from lilliput.decoding.writer import collect, load

    writer = load(arguments.run, arguments.device)
    prompt = writer.config.generate.prompt if arguments.prompt is None else arguments.prompt
    prompt = prompt.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # a terminal's bytes may be no text
    length, context = len(writer.encode_prompt(prompt)), writer.config.model.context
    if length > context:
        chatter().print(
            f"the prompt has {length:,} tokens and the model sees {context:,}: it goes on from the last {context // 2:,}"
        )
    began = time.monotonic()
    prompts = [prompt] * arguments.samples
    pieces: list[Piece] = []
    show = None if arguments.json else Show(prompt, arguments.samples)
    for start in range(0, arguments.samples, TOGETHER):
        for piece in writer.write(
            prompts[start : start + TOGETHER],
            arguments.tokens,
            arguments.temperature,
            arguments.top_k,
            arguments.seed + start,
        ):
            placed = replace(piece, row=start + piece.row)
            show(placed) if show else pieces.append(placed)
    if arguments.json:
        samples = collect(prompts, iter(pieces))
        speed = len(pieces) / (time.monotonic() - began)
        print_json({"samples": [vars(sample) for sample in samples], "tokens_per_second": speed})
    return 0


class Show:
    """Prints the first unfinished text as it is written, and the others when their turn comes."""

    def __init__(self, prompt: str, rows: int) -> None:
        self.prompt, self.rows = prompt, rows
        self.waiting = [""] * rows
        self.ended = [False] * rows
        self.row = 0
        self.begin()

    def __call__(self, piece: Piece) -> None:
        self.waiting[piece.row] += piece.text
        self.ended[piece.row] |= piece.finish is not None
        while self.row < self.rows:
            sys.stdout.write(self.waiting[self.row])
            self.waiting[self.row] = ""
            if not self.ended[self.row]:
                break
            sys.stdout.write("\n")
            self.row += 1
            if self.row < self.rows:
                sys.stdout.write("\n")
                self.begin()
        sys.stdout.flush()

    def begin(self) -> None:
        if self.rows > 1:
            sys.stdout.write(f"--- {self.row + 1} of {self.rows}\n")
        sys.stdout.write(self.prompt)
