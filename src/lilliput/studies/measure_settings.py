"""The settings `measure.*` of a study.

Owns: their names, types, defaults and descriptions, and the errors of wrong ones. Does not own: what a measure does with
them (`measures`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from lilliput.errors import UserError, UserErrors, nearest
from lilliput.evaluation.overlap_settings import OverlapTask, PromptChoice
from lilliput.settings.requirements import allowed, requirement
from lilliput.settings.tree import STRICT, Count

# What each measure computes, for the plan of a study.
MEASURE_TEXTS = {
    "training": "loss, time, speed, compute and memory of the training",
    "likelihood": "loss and perplexity of the evaluated split",
    "accuracy": "accuracy and calibration of a classifier",
    "overlap": "BLEU, chrF and diversity of continuations, and their speed",
    "writing": "speed, time and memory of text generation",
    "example": "the text that continues one prompt",
    "stories": "share of generated stories that the storybook can produce",
}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MeasureSettings:
    """The `measure.*` settings of a study."""

    on: str = Field(default="validation", description="evaluated split: train, validation or the name of a test set")
    stride: Count | None = Field(default=None, description="tokens between windows (none: aligned, as in training)")
    prompts: Count = Field(default=50, description="number of documents that are continued")
    prompt_choice: PromptChoice = Field(
        default="spread", description="how prompts are chosen, as in evaluate (overlap)"
    )
    prompt_tokens: Count = Field(default=5, description="tokens of each document used as the prompt")
    tokens: Count = Field(default=40, description="tokens generated after each prompt")
    batch: Count = Field(default=1, description="texts generated at the same time")
    different_prompts: bool = Field(
        default=False, description="start each text of a batch with another held-out document (writing)"
    )
    example: str = Field(default="", description="prompt that every cell continues, for the report (example)")
    repeats: Annotated[int, Field(ge=1, le=99)] = Field(default=5, description="repeated measurements of a speed")
    stories: Count = Field(default=100, description="storybook stories that are generated and checked")

    def overlap_task(self, seed: int) -> OverlapTask:
        names = ("prompts", "prompt_choice", "prompt_tokens", "tokens", "batch")
        return OverlapTask(**{name: getattr(self, name) for name in names}, seed=seed)


def read_settings(settings: Mapping[str, Any]) -> MeasureSettings:
    """Return the `measure.*` settings of a cell; raise all errors at once."""
    known = [field.name for field in fields(MeasureSettings)]
    given = {name.removeprefix("measure."): value for name, value in settings.items() if name.startswith("measure.")}
    errors = []
    for name in [name for name in given if name not in known]:
        close = nearest(name, known)
        fix = f"use measure.{close}" if close else f"use one of {', '.join(f'measure.{one}' for one in known)}"
        what = f"unknown setting measure.{name}"
        errors.append(UserError(what, fix=fix, code="setting.unknown", setting=f"measure.{name}"))
    try:
        right = {name: None if value == "none" else value for name, value in given.items() if name in known}
        found = TypeAdapter(MeasureSettings).validate_python(right)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            name = str(detail["loc"][0])
            what = f"measure.{name} {requirement([detail])} (got {given[name]!r})"
            fix = f"set measure.{name} to {allowed([detail]) or 'a valid value'}"
            errors.append(UserError(what, fix=fix, code="setting.value", setting=f"measure.{name}"))
    if errors:
        raise UserErrors(errors)
    return found
