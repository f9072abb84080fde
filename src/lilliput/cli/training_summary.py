"""The summary after training: metrics, three samples, the run folder and the next commands."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from lilliput.cli.output import noted
from lilliput.data.corpora import STORYBOOK
from lilliput.evaluation.metric_format import format_figures, format_limit, format_perplexity
from lilliput.storage.run_folders import best_validation, figures_of_tests, summarise_run

if TYPE_CHECKING:
    from lilliput.data.prepare.token_files import Prepared
    from lilliput.settings.tree import Config
    from lilliput.storage.run_folders import RunFolder
    from lilliput.training.session import Session

RUNS = Path("runs")  # where a run is found by its name
PROMPT_TOKENS, PROMPT_WORDS = 60, 4  # of the suggested prompt
STORIES = 100  # checked for validity: enough for two digits, generated in seconds


def summarise(session: Session, console: Console, notes: Console) -> None:
    run, config = session.run, session.trainer.config
    console.rule(f"[bold]{escape(run.name)}[/]", align="left")
    print_validation(run, console)
    print_tests(run, console)
    print_warnings(run, console)
    print_limit(run, console)
    generates = config.model.task != "classifier"
    if generates:
        show_samples(run, config, console, notes)
    folder = shlex.quote(str(run.folder))
    name = shlex.quote(run.name) if run.folder.parent == RUNS else folder
    console.print(f"run folder: {folder}; next commands:", markup=False)
    prompt = config.generate.prompt or first_words(session.prepared) or "Once"
    commands = {
        f"lilliput generate {name} {'--prompt=' * prompt.startswith('-')}{shlex.quote(prompt)}": "generate text",
        f"lilliput evaluate {name} --baselines": "compare with baselines",
        f"lilliput report {name}": "write an HTML report",
        f"lilliput train TEXT --from {name} --name NEW": "fine-tune on another text",
    }
    for command, purpose in commands.items():
        if generates or purpose != "generate text":
            console.print(f"  {command}  # {purpose}", markup=False)


def first_words(prepared: Prepared) -> str:
    """Return the first words of the first validation document, as a prompt of the kind that the run has learnt."""
    file = prepared.split("validation")
    start, end = int(file.offsets[0]), int(file.offsets[1]) - 1
    text = prepared.tokenizer.decode(file.tokens[start : min(end, start + PROMPT_TOKENS)]).strip()
    words = text.splitlines()[0].split() if text else []
    return "".join(one for one in " ".join(words[:PROMPT_WORDS]) if one.isprintable() and one != "\ufffd")


def print_validation(run: RunFolder, console: Console) -> None:
    found = best_validation(run.metrics())
    assert found is not None
    console.print(f"results of the best checkpoint, step {found['weights']:,}:")
    console.print(f"validation loss   {found['loss']:.4f} {format_unit(found)} ({format_size(found)}, whole split)")
    if found["accuracy"] is not None:
        console.print(f"accuracy          {found['accuracy']:.1%}")
    if found["perplexity"] is None:
        return
    console.print(f"perplexity        {format_perplexity(found['perplexity'])}")
    console.print(f"bits per byte     {found['bits_per_byte']:.4f}")
    if found["floor"]:
        over = found["bits_per_byte"] / found["floor"] - 1
        console.print(
            f"floor             {found['floor']:.4f} bits per byte (a perfect model); this model is {over:.1%} above"
        )


def print_tests(run: RunFolder, console: Console) -> None:
    tests = figures_of_tests(run.metrics())
    for name, found in tests.items():
        figures = "  ".join(format_figures(found))
        console.print(f"{f'test set {name}':<17} {figures}  ({format_size(found)})", markup=False)


def print_warnings(run: RunFolder, console: Console) -> None:
    """Print the warnings again, because early ones have scrolled away."""
    for event in run.metrics():
        if event["event"] == "warning":
            console.print(Text(f"warning           step {event['step']:,}: {event['text']}", style="yellow"))


def print_limit(run: RunFolder, console: Console) -> None:
    if (share := summarise_run(run)["limited_at"]) is not None:
        advice = "resume it with a larger train.max_minutes to continue"
        console.print(Text(f"time limit        {format_limit(share)}; {advice}", style="yellow"))


def format_unit(found: dict[str, Any]) -> str:
    """Return the unit of a loss."""
    if found["documents"] is None:
        return "nats/token"
    return "nats/document" if found["perplexity"] is None else "= weighted sum of nats/token and nats/document"


def format_size(found: dict[str, Any]) -> str:
    """Return the number of evaluated tokens (language models) and documents (classifiers)."""
    tokens, documents = f"{found['tokens']:,} tokens", f"{found['documents'] or 0:,} documents"
    if found["documents"] is None:
        return tokens
    return documents if found["perplexity"] is None else f"{tokens}, {documents}"


def show_samples(run: RunFolder, config: Config, console: Console, notes: Console) -> None:
    """Print three samples of the model alone; for the storybook, also the share of valid stories."""
    from lilliput.decoding.writer import load
    from lilliput.evaluation.generated_stories import story_validity
    from lilliput.evaluation.intervals import proportion_interval

    writer = load(run.folder)
    if config.generate.mix_ngram is not None:
        notes.print(noted("the samples are generated without n-grams; lilliput generate mixes them with the model"))
        writer = replace(writer, config=replace(config, generate=replace(config.generate, mix_ngram=None)))
    if config.data.source == STORYBOOK:
        with notes.status(f"generating {STORIES} stories to check them"):
            validity = story_validity(writer, STORIES, seed=1)
        temperature = config.generate.temperature
        low, high = proportion_interval(validity.valid, validity.count)
        console.print(
            f"valid stories     {validity.share:.0%} of {validity.count} (95% confidence interval {low:.0%} to {high:.0%}); "
            f"generated at temperature {temperature}; valid: a story that the storybook can produce"
        )
    with notes.status("generating"):
        samples = writer.samples([config.generate.prompt] * 3, seed=1001)
    for number, sample in enumerate(samples, start=1):
        console.rule(f"[dim]sample {number} of {len(samples)}[/]", align="left", style="dim")
        console.print(Text((sample.prompt + sample.text).strip()))
    console.rule(style="dim")
