"""The keywords of `Run.generate` and of other methods that generate text, for type checkers and editors.

Owns: their static types. Does not own: their meaning, bounds and defaults (`settings.tree.GenerateSettings`); a test compares
both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict


class GenerateKeywords(TypedDict, total=False):
    """The `generate` settings except the prompt; one that is absent has the value of the run."""

    tokens: int
    min_tokens: int
    temperature: float
    final_temperature: float | None
    entropy_temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical: float | None
    mix_ngram: float | Literal["auto"] | None
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalise_prompt: bool
    repetition_window: int | None
    no_repeat_ngram: int | None
    bad_words: str | Sequence[str]
    forced_words: str | Sequence[str]
    stop: str | Sequence[str]
    processors: str | Sequence[str]
    beams: int | None
    length_penalty: float
    early_stop: Literal["bound", "first", "never"]
    beam_groups: int
    diversity: float
    sample_beams: bool
    engine: Literal["auto", "torch", "numba", "uncached"]
    quantise: Literal["int8"] | None
