"""Statistics of texts that a model generates from an empty prompt, compared with documents.

Owns: the floor of a run's validation split, the validity of stories and the place where a story breaks, only for the
built-in storybook, and the comparison of generated texts with documents of any corpus. Does not own: the storybook
(`data.storybook`), or the statistics of a text (`text_statistics`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lilliput.data.corpora import open_corpus
from lilliput.data.prepare.token_files import TokenFile
from lilliput.data.storybook import Validity, floor_bits_per_byte, score, validity
from lilliput.decoding.writer import Writer
from lilliput.evaluation.intervals import proportion_interval
from lilliput.evaluation.prompt_selection import choose_documents, first_tokens
from lilliput.evaluation.text_statistics import TextStatistics, measure_texts
from lilliput.settings.tree import Config, GenerateSettings


@dataclass(frozen=True)
class Stories:
    """Statistics of generated texts and of the same number of documents; `validity` for the storybook only."""

    written: TextStatistics
    reference: TextStatistics
    validity: Validity | None

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values: `valid` is a share, with its interval; `breaks` counts the scenes at which invalid stories stop
        being valid."""
        found = self.validity
        return {
            "written": asdict(self.written),
            "reference": asdict(self.reference),
            "valid": None if found is None else found.share,
            "valid_interval": list(proportion_interval(found.valid, found.count)) if found and found.count else None,
            "breaks": None if found is None else {place.scene: place.count for place in found.breaks},
        }


def storybook_floor(config: Config) -> float | None:
    """Return the bits per byte of a perfect model on the validation split; None for any other corpus."""
    if config.data.source != "storybook" or config.data.validation_source is not None:
        return None
    return floor_bits_per_byte(document.text for document in open_corpus(config.data).documents("validation"))


def story_validity(writer: Writer, count: int, seed: int, batch: int = 50) -> Validity:
    """Generate stories and return the share that the storybook can produce. A truncated story is invalid."""
    return validity(generate_texts(writer, writer.config.generate, count, seed, batch))


@dataclass(frozen=True)
class StoryCheck:
    """Whether a text is a story of the storybook, or the beginning of one (`unfinished`), or where it stops being one.

    `got` is what the text has at the character `position`, `expected` some valid continuations.
    """

    valid: bool
    unfinished: bool
    position: int | None = None
    scene: str | None = None
    got: str = ""
    expected: tuple[str, ...] = ()


def check_story(config: Config, text: str) -> StoryCheck | None:
    """Check a text of a run; None unless the run was trained on the storybook."""
    if config.data.source != "storybook":
        return None
    found = score(text)
    if found.position is None or found.position == len(text):
        return StoryCheck(found.valid, not found.valid)
    got = " ".join(text[found.position :].split()[:3])
    return StoryCheck(False, False, found.position, found.scene, got, found.expected)


def measure_stories(
    writer: Writer, file: TokenFile, settings: GenerateSettings, count: int = 50, seed: int = 0, batch: int = 32
) -> Stories:
    """Compare generated texts with documents that are evenly spread over the file.

    Both have at most `settings.tokens` tokens. Documents are decoded from their ids, so that what the tokenizer loses
    is lost in both.
    """
    texts = generate_texts(writer, settings, count, seed, batch)
    documents = choose_documents(file, count, tokens=0).tolist()
    references = [writer.tokenizer.decode(first_tokens(file, document, settings.tokens)) for document in documents]
    found = validity(texts) if writer.config.data.source == "storybook" else None
    return Stories(measure_texts(texts), measure_texts(references), found)


def generate_texts(writer: Writer, settings: GenerateSettings, count: int, seed: int, batch: int) -> list[str]:
    return [sample.text for sample in writer.samples([""] * count, seed, settings, batch)]
