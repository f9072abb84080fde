"""The closing summary of a training: figures, three texts of a model that writes, where it all is, what to try next."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from lilliput.data.corpora import STORYBOOK
from lilliput.evaluation.metric_format import format_figures, format_perplexity
from lilliput.storage.run_folders import best_validation, figures_of_tests

if TYPE_CHECKING:
    from lilliput.settings.tree import Config
    from lilliput.storage.run_folders import Run
    from lilliput.training.session import Session

STORIES = 100  # judged for validity: enough for two digits, written in seconds


def summarise(session: Session, console: Console, chatter: Console) -> None:
    run, config = session.run, session.trainer.config
    console.rule(f"[bold]{escape(run.name)}[/]", align="left")
    print_validation(run, console)
    print_tests(run, console)
    print_warnings(run, console)
    writes = config.model.task != "classifier"
    if writes:
        show_texts(run, config, console, chatter)
    folder = shlex.quote(str(run.folder))
    console.print(f"the run is in {folder}; next:", markup=False)
    generate = f"lilliput generate {folder} --prompt {shlex.quote(config.generate.prompt or 'Once')} --samples 3"
    commands = [
        *([generate] if writes else []),
        f"lilliput info {folder}",
        f"lilliput report {folder}",
        f"lilliput train {'mytext.txt' if config.model.task == 'language' else 'mylabels.tsv'} --from {folder}",
        *(["lilliput train mytext.txt"] if writes else []),
    ]
    for command in commands:
        console.print(f"  {command}", markup=False)


def print_validation(run: Run, console: Console) -> None:
    found = best_validation(run.metrics())
    assert found is not None
    console.print(f"validation loss   {found['loss']:.4f} {format_unit(found)} ({format_size(found)}, the whole split)")
    if found["accuracy"] is not None:
        console.print(f"accuracy          {found['accuracy']:.1%}")
    if found["perplexity"] is None:
        return
    console.print(f"perplexity        {format_perplexity(found['perplexity'])}")
    console.print(f"bits per byte     {found['bits_per_byte']:.4f}")
    if found["floor"]:
        over = found["bits_per_byte"] / found["floor"] - 1
        console.print(
            f"the floor         {found['floor']:.4f} bits per byte, a perfect model's; this is {over:.1%} above"
        )


def print_tests(run: Run, console: Console) -> None:
    tests = figures_of_tests(run.metrics())
    for name, found in tests.items():
        figures = "  ".join(format_figures(found))
        console.print(f"{f'test {name}':<17} {figures}  ({format_size(found)})", markup=False)


def print_warnings(run: Run, console: Console) -> None:
    """Print the warnings again: those of the first minutes have left the screen."""
    for event in run.metrics():
        if event["event"] == "warning":
            console.print(Text(f"warning           step {event['step']:,}: {event['text']}", style="yellow"))


def format_unit(found: dict[str, Any]) -> str:
    """Return the unit of a loss."""
    if found["documents"] is None:
        return "nats a token"
    return "nats a document" if found["perplexity"] is None else "nats a token and a document, as weighed"


def format_size(found: dict[str, Any]) -> str:
    """Return how much was evaluated: tokens where they are predicted, documents where their label is."""
    tokens, documents = f"{found['tokens']:,} tokens", f"{found['documents'] or 0:,} documents"
    if found["documents"] is None:
        return tokens
    return documents if found["perplexity"] is None else f"{tokens}, {documents}"


def show_texts(run: Run, config: Config, console: Console, chatter: Console) -> None:
    """Three, and of the storybook how many of a hundred are right."""
    from lilliput.decoding.writer import load
    from lilliput.evaluation.generated_stories import story_validity

    writer = load(run.folder)
    if config.data.source == STORYBOOK:
        with chatter.status(f"writing {STORIES} stories to judge them"):
            judged = story_validity(writer, STORIES, seed=1)
        temperature = config.generate.temperature
        console.print(f"valid stories     {judged.share:.0%} of {judged.count} written at temperature {temperature}")
    with chatter.status("writing"):
        samples = writer.samples([config.generate.prompt] * 3, seed=1001)
    for number, sample in enumerate(samples, start=1):
        console.rule(f"[dim]{number}[/]", align="left", style="dim")
        console.print(Text((sample.prompt + sample.text).strip()))
    console.rule(style="dim")
