"""What only the built-in corpus can tell: the floor under every loss, and the share of stories that are right.

Owns: the floor of a run's validation split, and judging stories that a model writes. Does not own: the book
(`data.storybook`).
"""

from __future__ import annotations

from lilliput.data.corpora import open_corpus
from lilliput.data.storybook import Validity, floor_bits_per_byte, validity
from lilliput.decoding.writer import Writer
from lilliput.settings import Config


def storybook_floor(config: Config) -> float | None:
    """Bits per byte that a perfect model would need for the validation split; None for texts of any other origin."""
    if config.data.source != "storybook" or config.data.validation_source is not None:
        return None
    return floor_bits_per_byte(document.text for document in open_corpus(config.data).documents("validation"))


def judge_stories(writer: Writer, count: int, seed: int, batch: int = 50) -> Validity:
    """Write stories from nothing and see how many are stories of the book. One cut off by the length is not."""
    samples = writer.samples([""] * count, seed=seed, batch=batch)
    return validity([sample.text for sample in samples])
