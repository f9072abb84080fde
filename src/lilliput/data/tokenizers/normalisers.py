"""Normalisation of text before it is split into tokens: letter case, typographic punctuation, white space.

Owns: the steps of normalisation, as parts of the tokenizers library, so that tokenizer.json contains them. Does not own:
tokens (`tokenizers`, `word_level`) or the rules of the settings (`tokenizer_choices`, `settings.rules`).

Every step is local: a text that is cut before white space is normalised piece by piece to the same text. So white space
at the ends of a text becomes one space and is not removed; documents of a corpus have none there.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import tokenizers as library
from tokenizers import Regex, models, normalizers

from lilliput.settings.tree import TokenizerSettings

# Non-ASCII marks by the ASCII text that replaces them. A dash between words is `--`, because `a-b` is one word.
ASCII_MARKS = {
    "'": "‘’‚‛‹›′´ʼ",
    '"': "“”„‟«»″",
    "-": "\u2010\u2011\u2012\u2013\u2212",  # hyphen, non-breaking hyphen, figure dash, en dash, minus sign
    "--": "\u2014\u2015",  # em dash, horizontal bar
    "...": "…",
}
# Not every run of white space: a replaced single space costs time and changes nothing.
_WIDE_SPACE = r"\s{2,}|[^\S ]"
_MARKS = {f"[{marks}]": ascii_text for ascii_text, marks in ASCII_MARKS.items()}

OWN_PATTERNS = frozenset({_WIDE_SPACE, *_MARKS})


def build_normaliser(settings: TokenizerSettings) -> normalizers.Normalizer | None:
    """Return the normaliser of the settings; None if the text stays unchanged."""
    steps: list[normalizers.Normalizer] = []
    if settings.ascii_punctuation:
        steps += [normalizers.Replace(Regex(pattern), ascii_text) for pattern, ascii_text in _MARKS.items()]
    if settings.single_spaces:
        steps.append(normalizers.Replace(Regex(_WIDE_SPACE), " "))
    if settings.lowercase:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps) if len(steps) > 1 else next(iter(steps), None)


def is_own(part: Any) -> bool:
    """Return whether the normaliser of a tokenizer.json is one that this module builds."""
    return part in _OWN_PARTS


def _part(settings: TokenizerSettings) -> Any:
    inner = library.Tokenizer(models.BPE())
    inner.normalizer = build_normaliser(settings)
    return json.loads(inner.to_str())["normalizer"]


_OWN_PARTS = [
    _part(TokenizerSettings(lowercase=lower, ascii_punctuation=plain, single_spaces=single))
    for lower, plain, single in itertools.product((False, True), repeat=3)
]
