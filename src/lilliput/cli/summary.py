"""The closing summary of a training: figures, three texts, where it all is, and what to try next."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from lilliput.runs import best_validation

if TYPE_CHECKING:
    from lilliput.training.session import Session

STORIES = 100  # judged for validity: enough for two digits, written in seconds


def summarise(session: Session, console: Console, chatter: Console) -> None:
    from lilliput.decoding.writer import load
    from lilliput.evaluation.stories import judge_stories

    run, config = session.run, session.trainer.config
    found = best_validation(run.metrics())
    assert found is not None
    writer = load(run.folder)
    console.rule(f"[bold]{escape(run.name)}[/]", align="left")
    console.print(f"validation loss   {found['loss']:.4f} nats a token ({found['tokens']:,} tokens, the whole split)")
    console.print(f"perplexity        {found['perplexity']:,.2f}")
    console.print(f"bits per byte     {found['bits_per_byte']:.4f}")
    if found.get("floor"):
        over = found["bits_per_byte"] / found["floor"] - 1
        console.print(
            f"the floor         {found['floor']:.4f} bits per byte, a perfect model's; this is {over:.1%} above"
        )
        with chatter.status(f"writing {STORIES} stories to judge them"):
            judged = judge_stories(writer, STORIES, seed=1)
        temperature = config.generate.temperature
        console.print(f"valid stories     {judged.share:.0%} of {judged.count} written at temperature {temperature}")
    with chatter.status("writing"):
        samples = writer.samples([config.generate.prompt] * 3, seed=1001)
    for number, sample in enumerate(samples, start=1):
        console.rule(f"[dim]{number}[/]", align="left", style="dim")
        console.print(Text((sample.prompt + sample.text).strip()))
    console.rule(style="dim")
    folder = shlex.quote(str(run.folder))
    console.print(f"the run is in {folder}; next:", markup=False)
    for command in (
        f"lilliput generate {folder} --prompt {shlex.quote(config.generate.prompt or 'Once')} --samples 3",
        f"lilliput info {folder}",
        f"lilliput train mytext.txt --from {folder}",
        "lilliput train mytext.txt",
    ):
        console.print(f"  {command}", markup=False)
