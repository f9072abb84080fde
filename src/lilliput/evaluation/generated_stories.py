"""Whole texts that a model writes from nothing: right or wrong where that can be known, and how they read beside
people's.


Owns: the floor of a run's validation split and the validity of stories, which only the built-in corpus can
tell, and the comparison of written texts with documents of any corpus. Does not own: the book
(`data.storybook`), or what is measured of a text (`text_statistics`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lilliput.data.corpora import open_corpus
from lilliput.data.prepare.token_files import TokenFile
from lilliput.data.storybook import Validity, floor_bits_per_byte, validity
from lilliput.decoding.writer import Writer
from lilliput.evaluation.prompt_selection import choose_documents, first_tokens
from lilliput.evaluation.text_statistics import TextStatistics, measure_texts
from lilliput.settings.tree import Config, GenerateSettings


@dataclass(frozen=True)
class Stories:
    """Texts that a model wrote beside as many documents; `validity` where the model learned from the book."""

    written: TextStatistics
    reference: TextStatistics
    validity: Validity | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON: `valid` is a share, and `breaks` are the scenes in which the other stories leave the book."""
        found = self.validity
        return {
            "written": asdict(self.written),
            "reference": asdict(self.reference),
            "valid": None if found is None else found.share,
            "breaks": None if found is None else {place.scene: place.count for place in found.breaks},
        }


def storybook_floor(config: Config) -> float | None:
    """Bits per byte that a perfect model would need for the validation split; None for texts of any other origin."""
    if config.data.source != "storybook" or config.data.validation_source is not None:
        return None
    return floor_bits_per_byte(document.text for document in open_corpus(config.data).documents("validation"))


def story_validity(writer: Writer, count: int, seed: int, batch: int = 50) -> Validity:
    """Write stories from nothing and see how many are stories of the book. One cut off by the length is not."""
    return validity(write_texts(writer, writer.config.generate, count, seed, batch))


def measure_stories(
    writer: Writer, file: TokenFile, settings: GenerateSettings, count: int = 50, seed: int = 0, batch: int = 32
) -> Stories:
    """Documents are evenly spread over the file. Both kinds of text have at most `how.tokens` tokens, and documents are read back
    from their ids: what a tokenizer loses is lost in both."""
    texts = write_texts(writer, settings, count, seed, batch)
    documents = choose_documents(file, count, tokens=0).tolist()
    references = [writer.tokenizer.decode(first_tokens(file, document, settings.tokens)) for document in documents]
    found = validity(texts) if writer.config.data.source == "storybook" else None
    return Stories(measure_texts(texts), measure_texts(references), found)


def write_texts(writer: Writer, settings: GenerateSettings, count: int, seed: int, batch: int) -> list[str]:
    return [sample.text for sample in writer.samples([""] * count, seed, settings, batch)]
