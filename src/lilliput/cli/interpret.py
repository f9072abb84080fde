"""`lilliput interpret`: the predictions of each layer, and the cost of removing attention heads.

Owns: the flags and the printed tables. Does not own: lens and ablation (`interpret`), or the documents of a run
(`evaluation.evaluate`).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic.dataclasses import dataclass

from lilliput.cli.error_flags import flags_in_errors, gather
from lilliput.cli.generation_flags import add_flags, apply_given, check_flags, given_flags
from lilliput.cli.output import print_json, print_note, progress, stderr_console, stdout_console
from lilliput.errors import UserError, UserErrors
from lilliput.settings.tree import STRICT, Count, GenerateSettings, NotNegative, Seed, describe

if TYPE_CHECKING:
    from lilliput.data.progress import Report
    from lilliput.evaluation.generated_stories import StoryCheck
    from lilliput.interpret.head_ablation import AblationCost, DocumentAblation, TextAblation
    from lilliput.interpret.head_names import Head
    from lilliput.interpret.logit_lens import Lens
    from lilliput.settings.tree import Config

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput interpret demo "Once upon a time there was a fox. The fox"       predictions of each layer
    lilliput interpret demo "The fox saw the owl. The fox" --ablate 0.1 --ablate 1.0 --generate 20
    lilliput interpret demo "The fox saw the owl. The fox" --ablate all --ablation mean
    lilliput interpret demo --on validation --documents 50
    lilliput interpret demo "The fox" --lens --top 5 --json
"""
ALL = "all"
ENDED = "(empty: the model ended the text at once)"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class InterpretFlags:
    """Flags of the command."""

    top: Count = describe("number of predictions per layer and token with --lens", 3)
    generate: Count = describe("with --ablate LAYER.HEAD: number of tokens to generate after the text", 40)
    temperature: NotNegative | None = describe("temperature of --generate (none: the run's generate.temperature)", None)
    documents: Count = describe("number of documents to sample with --on", 100)
    seed: Seed = describe(
        "random seed of generated text, of the documents of --on and of the resampling for confidence intervals", 0
    )


class InterpretRequest(NamedTuple):
    """The checked flags. `heads` None: each head alone."""

    flags: InterpretFlags
    lens: bool
    heads: list[Head] | None


class InterpretResult(NamedTuple):
    run: str | None
    lens: Lens | None
    ablation: TextAblation | None
    costs: DocumentAblation | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run (folder, or name in runs/) or checkpoint folder")
    parser.add_argument("text", metavar="TEXT", nargs="?", help="input text")
    parser.add_argument(
        "--lens", action="store_true", help="show what each layer predicts [on unless --ablate or --on is given]"
    )
    parser.add_argument(
        "--ablate",
        metavar="LAYER.HEAD",
        action="append",
        default=[],
        help="remove one head, such as 0.1 (repeatable: all named heads are removed together); all: remove each head alone, one "
        "after the other; with --on, the default is all",
    )
    parser.add_argument(
        "--ablation",
        default="zero",
        choices=("zero", "mean"),
        help="replace the output of a head by zero, or by its mean over the text or the documents [zero]",
    )
    parser.add_argument(
        "--on", metavar="SET", help="ablate over documents: train, validation, a test set, or a text file"
    )
    add_flags(parser, InterpretFlags, with_default=True)
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help="device to compute on [auto]"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    with flags_in_errors():
        request = check(arguments)
        with progress(stderr_console()) as report:
            result = compute(arguments, request, report)
    if arguments.json:
        print_json(as_object(arguments, result))
    else:
        show(arguments, result)
    return 0


def compute(arguments: argparse.Namespace, request: InterpretRequest, report: Report) -> InterpretResult:
    from lilliput.decoding.writer import load
    from lilliput.evaluation.evaluate import open_evaluation, run_name
    from lilliput.interpret import ablate, ablate_documents, ablate_each, lens

    text, flags, heads, kind = arguments.text, request.flags, request.heads, arguments.ablation
    evaluation = (
        None if arguments.on is None else open_evaluation(arguments.run, arguments.on, arguments.device, report)
    )
    writer = load(arguments.run, arguments.device) if evaluation is None else evaluation.writer
    found = lens(writer, text, flags.top) if request.lens else None
    ablation, costs = None, None
    if text is not None and heads is not None:
        settings = generate_settings(writer.config.generate, arguments)
        ablation = ablate(writer, text, heads, kind, flags.generate, flags.seed, settings)
    if evaluation is not None:
        groups = None if heads is None else [heads]
        costs = ablate_documents(writer, evaluation.file, groups, kind, flags.documents, flags.seed, report)
    elif ALL in arguments.ablate:
        costs = ablate_each(writer, text, kind)
    unread = max(found.unread if found else 0, ablation.unread if ablation else 0)
    if unread:
        context = writer.config.model.context
        print_note(f"the text is longer than the context of {context:,} tokens: {unread:,} tokens are not read")
    assert writer.checkpoint is not None
    return InterpretResult(run_name(writer.checkpoint), found, ablation, costs)


def generate_settings(run: GenerateSettings, arguments: argparse.Namespace) -> GenerateSettings:
    given: dict[str, Any] = {} if arguments.temperature is None else {"temperature": arguments.temperature}
    settings, notes = apply_given(run, given)
    for note in notes:
        print_note(note)
    return settings


# Flags ----------------------------------------------------------------------------------------------------------------


def check(arguments: argparse.Namespace) -> InterpretRequest:
    """Return the checked flags, or raise all errors at once. Does not import torch."""
    from lilliput.evaluation.evaluate import settings_of
    from lilliput.evaluation.evaluation_sets import check_name

    errors: list[UserError] = []
    given = given_flags(arguments, InterpretFlags)
    flags = gather(errors, lambda: check_flags(InterpretFlags, given)) or InterpretFlags()
    found = gather(errors, lambda: settings_of(arguments.run))
    config = found[1] if found else None
    heads = gather(errors, lambda: parse_heads(arguments.ablate, config))
    errors += find_conflicts(arguments, given)
    if config is not None and config.model.task == "classifier":
        what = "interpret requires a language model (got a classifier)"
        fix = 'use a run whose model.task is "language" or "both"'
        errors.append(UserError(what, fix=fix, code="model.task", setting="model.task"))
    if config is not None and arguments.on is not None:
        gather(errors, lambda: check_name(config.data, arguments.on))
    if errors:
        raise UserErrors(errors)
    return InterpretRequest(flags, wants_lens(arguments), heads)


def wants_lens(arguments: argparse.Namespace) -> bool:
    return arguments.lens or (arguments.text is not None and not arguments.ablate and arguments.on is None)


def parse_heads(words: list[str], config: Config | None) -> list[Head] | None:
    """Return the heads of --ablate; None for none, or for all."""
    if ALL in words and len(words) > 1:
        what = "--ablate all cannot be combined with other heads"
        raise UserError(what, fix="remove all or the other heads", code="flag.conflict")
    if not words or words == [ALL]:
        return None
    found = []
    for word in words:
        parts = re.fullmatch(r"(\d{1,6})\.(\d{1,6})", word)
        if not parts:
            what = f"--ablate must be LAYER.HEAD, such as 0.1, or all (got {word!r})"
            raise UserError(what, fix="use --ablate 0.1", code="flag.value")
        found.append((int(parts[1]), int(parts[2])))
    from lilliput.interpret.head_names import Head, check_heads

    return [Head(*head) for head in found] if config is None else list(check_heads(config.model, found))


def find_conflicts(arguments: argparse.Namespace, given: dict[str, Any]) -> list[UserError]:
    text, on = arguments.text is not None, arguments.on is not None
    found = []
    if not text and not on:
        fix = 'add a text, as in lilliput interpret RUN "Once", or --on SET'
        found.append(UserError("a text or --on is required", fix=fix, code="flag.missing"))
    generates = text and bool(arguments.ablate) and ALL not in arguments.ablate
    needs = [
        ("--lens", arguments.lens and not text, "a text"),
        ("--top", "top" in given and not wants_lens(arguments), "--lens"),
        ("--generate", "generate" in given and not generates, "a text and --ablate LAYER.HEAD"),
        ("--temperature", "temperature" in given and not generates, "a text and --ablate LAYER.HEAD"),
        ("--documents", "documents" in given and not on, "--on"),
        ("--seed", "seed" in given and not (generates or on), "--ablate LAYER.HEAD or --on"),
        ("--ablation", arguments.ablation != "zero" and not (arguments.ablate or on), "--ablate or --on"),
    ]
    found += [
        UserError(f"{name} requires {what}", fix=f"add {what} or remove {name}", code="flag.conflict")
        for name, lacks, what in needs
        if lacks
    ]
    return found


# Printing -------------------------------------------------------------------------------------------------------------


def as_object(arguments: argparse.Namespace, result: InterpretResult) -> dict[str, Any]:
    return {
        "run": result.run,
        "text": arguments.text,
        "on": arguments.on,
        "ablation": arguments.ablation,
        "lens": None if result.lens is None else result.lens.as_dict(),
        "ablated_text": None if result.ablation is None else result.ablation.as_dict(),
        "costs": None if result.costs is None else result.costs.as_dict(),
    }


def show(arguments: argparse.Namespace, result: InterpretResult) -> None:
    console = stdout_console()
    if result.lens is not None:
        print_lens(result.lens)
    if result.ablation is not None:
        one = result.ablation
        without = "without this head" if len(one.heads) == 1 else "without these heads"
        console.print(
            f"{describe_ablation(one.heads, one.kind)}, in this text ({len(one.tokens):,} tokens)", markup=False
        )
        difference = one.ablated_loss - one.loss
        console.print(f"loss {one.loss:.4f}, {without} {one.ablated_loss:.4f} ({difference:+.4f})")
        for title, text, story in (
            ("generated text", one.generated, one.story),
            (f"generated {without}", one.ablated_generated, one.ablated_story),
        ):
            console.print(f"{title}: {text or ENDED}", markup=False)
            if story is not None:
                console.print(f"  {describe_story(story)}", markup=False)
    if result.costs is not None:
        documents = "document" if result.costs.documents == 1 else "documents"
        over = f"over {result.costs.documents:,} {documents} of {arguments.on}" if arguments.on else "in this text"
        costs = result.costs.costs
        what = describe_ablation(costs[0].heads if len(costs) == 1 else None, result.costs.kind)
        console.print(
            f"{what}, {over} ({result.costs.tokens:,} predicted tokens); loss of the whole model {result.costs.loss:.4f}",
            markup=False,
        )
        print_costs(result.costs.costs)


def describe_ablation(heads: Sequence[Head] | None, kind: str) -> str:
    """Return which heads are replaced by what; None: each head alone."""
    value = "zero" if kind == "zero" else "its mean"
    if heads is None:
        return f"output of one head at a time replaced by {value}"
    names = "; ".join(f"layer {one.layer}, head {one.head}" for one in heads)
    return f"{names}: output {'of each ' if len(heads) > 1 else ''}replaced by {value}"


def describe_story(story: StoryCheck) -> str:
    if story.valid or story.unfinished:
        return (
            "a valid story: the storybook can produce it"
            if story.valid
            else "no error, but unfinished: a story of the storybook can begin so"
        )
    expected = ", ".join(repr(one.strip()) if one else "the end" for one in story.expected[:3])
    more = ", ..." if len(story.expected) > 3 else ""
    got = repr(story.got) if story.got else "the end"
    return f"invalid from character {story.position:,} (scene {story.scene}): got {got}, expected {expected}{more}"


def print_lens(lens: Lens) -> None:
    from rich.table import Table
    from rich.text import Text

    from lilliput.interpret.attention_maps import label

    console = stdout_console()
    table = Table("stage", "loss", "true next token ranked first", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, loss, ranks in zip(lens.stages, lens.loss, lens.rank, strict=True):
        table.add_row(name, f"{loss:.4f}", f"{(ranks == 1).mean():.1%}")
    console.print(table)
    console.print()
    table = Table("token", "next", "stage", "p(next)", "rank", "likeliest next tokens", box=None, pad_edge=False)
    for column in table.columns[3:5]:
        column.justify = "right"
    for at, token in enumerate(lens.tokens):
        last = at == len(lens.tokens) - 1
        for number, stage in enumerate(lens.stages):
            pair = [label(token), "" if last else label(lens.tokens[at + 1])] if number == 0 else ["", ""]
            next_token = ["", ""] if last else [f"{lens.probability[number, at]:.3f}", str(lens.rank[number, at])]
            shares = lens.top_probability[number, at]
            likeliest = [f"{label(one)} {share:.2f}" for one, share in zip(lens.top[number][at], shares, strict=True)]
            table.add_row(*(Text(word) for word in [*pair, stage, *next_token, "  ".join(likeliest)]))
    console.print(table)
    console.print("in a token, · is a space and ↵ a line end; rank 1: the most likely token", style="dim")


def print_costs(costs: list[AblationCost]) -> None:
    from rich.table import Table

    table = Table("without", "loss", "difference", "95% interval", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for cost in costs:
        interval = "-" if cost.interval is None else f"{cost.interval.low:+.4f} to {cost.interval.high:+.4f}"
        table.add_row(", ".join(map(str, cost.heads)), f"{cost.loss:.4f}", f"{cost.difference:+.4f}", interval)
    stdout_console().print(table)
    stdout_console().print(
        "without: LAYER.HEAD; difference: loss without the head minus loss of the whole model, in nats per token; interval: "
        "bootstrap over documents",
        style="dim",
    )
