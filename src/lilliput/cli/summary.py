"""The closing summary of a training: figures, three texts, where it all is, and what to try next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from lilliput.runs import best_validation

if TYPE_CHECKING:
    from lilliput.training.session import Session

STORIES = 100  # judged for validity: enough for two digits, written in seconds


def summarise(session: Session, console: Console) -> None:
    from lilliput.decoding.writer import load
    from lilliput.evaluation.stories import judge_stories

    run, config = session.run, session.trainer.config
    found = best_validation(run.metrics())
    assert found is not None
    writer = load(run.folder)
    console.rule(f"[bold]{run.name}[/]", align="left")
    console.print(
        f"validation loss   {found['loss']:.4f} nats/token on the whole split, {found['tokens']:,} tokens, each once"
    )
    console.print(f"perplexity        {found['perplexity']:.2f}")
    console.print(f"bits per byte     {found['bits_per_byte']:.4f}")
    if found.get("floor"):
        over = found["bits_per_byte"] / found["floor"] - 1
        console.print(
            f"the floor         {found['floor']:.4f} bits per byte: what a perfect model would need; {over:.1%} above it"
        )
        judged = judge_stories(writer, STORIES, seed=1)
        console.print(
            f"valid stories     {judged.share:.0%} of {judged.count} written at temperature {config.generate.temperature}"
        )
    for number, sample in enumerate(writer.samples([config.generate.prompt] * 3, seed=1001), start=1):
        console.rule(f"[dim]{number}[/]", align="left", style="dim")
        console.print(Text(sample.prompt + sample.text.strip()))
    console.rule(style="dim")
    console.print(f"the run is in {run.folder}; next:")
    for command in (
        f'lilliput generate {run.folder} --prompt "{config.generate.prompt or "Once"}" --samples 3',
        f"lilliput info {run.folder}",
        f"lilliput train mytext.txt --from {run.folder}",
        "lilliput train mytext.txt",
    ):
        console.print(f"  {command}", markup=False)
