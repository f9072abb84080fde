"""Settings of the overlap task. Separate from `overlap`, so that help texts import neither NumPy nor torch.

Owns: the settings with bounds and descriptions, which are flags of `lilliput evaluate`. Does not own: running the task
(`overlap`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from lilliput.settings.tree import STRICT, Count, Seed, describe


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OverlapTask:
    """The prompts and lengths of the task. The prompts do not depend on the seed, so results can be compared pairwise."""

    prompts: Count = describe("number of prompts; each is the beginning of a document that is long enough", 50)
    prompt_tokens: Annotated[int, Field(ge=0)] = describe("tokens per prompt", 5)
    tokens: Count = describe("maximum number of generated tokens; the reference has the same length", 40)
    seed: Seed = describe("sampling seed; different seeds give independent samples", 0)
    batch: Count = describe("maximum number of texts generated at once; each beam counts as one", 32)
