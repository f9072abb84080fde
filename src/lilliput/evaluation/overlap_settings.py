"""Settings of the overlap task. Separate from `overlap`, so that help texts import neither NumPy nor torch.

Owns: the settings with bounds and descriptions, which are flags of `lilliput evaluate`. Does not own: running the task
(`overlap`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from lilliput.settings.tree import STRICT, Count, Seed, describe

PromptChoice = Literal["spread", "random", "middle"]  # the names of `prompt_selection.PROMPT_CHOICES`


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OverlapTask:
    """The prompts and lengths of the task.

    Results can be compared pairwise if their prompts are the same: those of `spread` do not depend on the seed.
    """

    prompts: Count = describe("number of prompts, each from another place in documents that are long enough", 50)
    prompt_choice: PromptChoice = describe(
        "spread: first tokens of documents at equal intervals; random: first tokens of random documents; "
        "middle: tokens at random positions of documents",
        "spread",
    )
    prompt_tokens: Annotated[int, Field(ge=0)] = describe("tokens per prompt", 5)
    tokens: Count = describe("maximum number of tokens of a generated text and of its reference", 40)
    full_reference: bool = describe("use the whole rest of the document as the reference", False)
    seed: Seed = describe("seed of random prompts and of sampling; different seeds give independent samples", 0)
    batch: Count = describe("maximum number of texts generated at once; each beam counts as one", 32)
