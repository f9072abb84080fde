"""What an evaluation is asked to write. Apart from the measuring, so that a help text costs neither NumPy nor torch.

Owns: the tasks, with bounds and meanings, which are the flags of `lilliput evaluate`. Does not own: doing
them (`overlap`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from lilliput.settings.tree import STRICT, Count, Seed, describe


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OverlapTask:
    """What is written after what. The prompts are the same whatever the seed, and so can be compared one by one."""

    prompts: Count = describe(
        "documents whose beginnings are prompts, evenly spread over those that are long enough", 50
    )
    prompt_tokens: Annotated[int, Field(ge=0)] = describe("tokens of a prompt", 5)
    tokens: Count = describe("most tokens that are written after it; the reference has as many", 40)
    seed: Seed = describe("seed of what is drawn; two seeds share no draw", 0)
    batch: Count = describe("most texts that are written at a time; beams count", 32)
