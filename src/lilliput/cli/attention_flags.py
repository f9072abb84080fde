"""Flags of `lilliput attention` and their checks.

Owns: parsing and checking the flags before torch is imported. Does not own: the command (`attention`).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic.dataclasses import dataclass

from lilliput.cli.error_flags import gather
from lilliput.cli.generation_flags import check_flags, given_flags
from lilliput.errors import UserError, UserErrors, nearest
from lilliput.settings.tree import STRICT, Count, NotNegative, Seed, describe

if TYPE_CHECKING:
    from lilliput.settings.tree import Config


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AttentionFlags:
    """Flags of the command."""

    generate: Count | None = describe("number of tokens to generate after the text", None)
    seed: Seed = describe("random seed of --generate and of the documents of --on and --conllu", 0)
    temperature: NotNegative | None = describe("temperature of --generate (none: the run's generate.temperature)", None)
    documents: Count = describe("number of documents to sample with --on and --conllu", 100)


class AttentionRequest(NamedTuple):
    """The checked flags."""

    task: AttentionFlags
    layers: list[int] | None
    heads: list[int] | None


def check(arguments: argparse.Namespace) -> AttentionRequest:
    """Return the checked flags, or raise all errors at once. Does not import torch."""
    from lilliput.settings.loading import config_from_dict
    from lilliput.storage.checkpoints import CONFIG
    from lilliput.storage.run_folders import resolve_checkpoint

    errors: list[UserError] = []
    task = (
        gather(errors, lambda: check_flags(AttentionFlags, given_flags(arguments, AttentionFlags))) or AttentionFlags()
    )
    found = gather(errors, lambda: resolve_checkpoint(arguments.run))
    config = gather(errors, lambda: config_from_dict(found.config(), str(found.folder / CONFIG))) if found else None
    there = (config.model.layers, config.model.heads) if config else (None, None)
    layers = gather(errors, lambda: parse_numbers("--layers", arguments.layers, there[0]))
    heads = gather(errors, lambda: parse_numbers("--heads", arguments.heads, there[1]))
    errors += find_conflicts(arguments, task, config)
    if errors:
        raise UserErrors(errors)
    return AttentionRequest(task, layers, heads)


def find_conflicts(arguments: argparse.Namespace, task: AttentionFlags, config: Config | None) -> list[UserError]:
    from lilliput.interpret.head_score_definitions import SCORES

    found = unused_flags(arguments)
    if arguments.text is None and arguments.on is None and arguments.conllu is None:
        fix = 'add a text, as in lilliput attention RUN "Once", or --on SET, or --conllu FILE'
        found.append(UserError("a text, --on or --conllu is required", fix=fix, code="flag.missing"))
    if arguments.text is None and task.generate is not None:
        fix = 'run lilliput attention RUN "Once" --generate 40'
        found.append(UserError("--generate requires a text", fix=fix, code="flag.conflict"))
    if arguments.sort not in (*SCORES, "layer"):
        close = nearest(arguments.sort, [*SCORES, "layer"])
        fix = f"use --sort {close}" if close else f"use one of {', '.join(SCORES)}, layer"
        found.append(UserError(f"unknown score {arguments.sort!r}", "--sort", fix=fix, code="flag.value"))
    if arguments.pad and task.generate is not None:
        fix = "remove --pad or --generate"
        found.append(UserError("--pad and --generate cannot be combined", fix=fix, code="flag.conflict"))
    if config is not None and config.model.task == "classifier" and task.generate is not None:
        what = "--generate requires a language model (got a classifier)"
        found.append(UserError(what, fix="remove --generate", code="model.task", setting="model.task"))
    if arguments.out is not None and Path(arguments.out).is_file():
        what, fix = "--out must be a folder (got a file)", "choose a folder"
        found.append(UserError(what, arguments.out, fix=fix, code="file.not-written"))
    if config is not None and arguments.on is not None:
        from lilliput.evaluation.evaluation_sets import check_name

        gather(found, lambda: check_name(config.data, arguments.on))
    return found


def unused_flags(arguments: argparse.Namespace) -> list[UserError]:
    """Return an error for each given flag that would have no effect."""
    given, text = given_flags(arguments, AttentionFlags), arguments.text is not None
    on = arguments.on is not None or arguments.conllu is not None
    generates = "generate" in given
    needs = [
        ("--temperature", "temperature" in given and not generates, "--generate"),
        ("--documents", "documents" in given and not on, "--on or --conllu"),
        ("--seed", "seed" in given and not (generates or on), "--generate, --on or --conllu"),
        ("--pad", arguments.pad and not text, "a text"),
        (
            "--svg",
            arguments.svg and not (text and arguments.pictures != "none"),
            "a text and --pictures layers or heads",
        ),
    ]
    return [
        UserError(f"{name} requires {what}", fix=f"add {what} or remove {name}", code="flag.conflict")
        for name, lacks, what in needs
        if lacks
    ]


def parse_numbers(name: str, text: str | None, there: int | None) -> list[int] | None:
    """Parse `0,2-4` to [0, 2, 3, 4]; None means all. `there` is the number that exists, if known."""
    if text is None:
        return None
    chosen: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part)
        if not found:
            what, fix = f"{name} must be numbers such as 0,2 or 0-3 (got {text!r})", f"use {name} 0,2 or {name} 0-3"
            raise UserError(what, fix=fix, code="flag.value")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            what = f"{name} must have ascending ranges (got {text!r})"
            raise UserError(what, fix=f"use {name} {last}-{first}", code="flag.value")
        if there is not None and last >= there:
            things = name.removeprefix("--")
            what = f"the model has {there} {things}, numbered from 0 (got {name} {text})"
            raise UserError(what, fix=f"use numbers up to {there - 1}", code="attention.selection")
        chosen |= set(range(first, last + 1))
    return sorted(chosen)
