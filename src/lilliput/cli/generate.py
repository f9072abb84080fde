"""`lilliput generate`: a run writes, and its user reads along."""

from __future__ import annotations

import argparse
import sys
import time

from lilliput.cli.output import chatter, print_json
from lilliput.errors import UserError

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput generate demo
    lilliput generate demo --prompt "Once upon a time" --samples 3 --seed 1
    lilliput generate runs/demo/checkpoints/step-000500 --temperature 0 --tokens 50
    lilliput generate demo --top-k 10 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run (its folder or its name in runs/) or a checkpoint's folder")
    parser.add_argument("--prompt", default="", help="text to go on from (none: a new document)")
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
    from lilliput.decoding.writer import Piece, collect, load

    writer = load(arguments.run, arguments.device)
    prompts = [arguments.prompt] * arguments.samples
    length = len(writer.encode_prompt(arguments.prompt))
    context = writer.config.model.context
    if length > context:
        chatter().print(
            f"the prompt has {length:,} tokens and the model sees {context:,}: it goes on from the last {context // 2:,}"
        )
    began = time.monotonic()
    pieces: list[Piece] = []
    show = Show(arguments.prompt, arguments.samples)
    for piece in writer.write(prompts, arguments.tokens, arguments.temperature, arguments.top_k, arguments.seed):
        pieces.append(piece)
        if not arguments.json:
            show(piece)
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

    def __call__(self, piece: object) -> None:
        from lilliput.decoding.writer import Piece

        assert isinstance(piece, Piece)
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
