"""Special tokens: start, end, padding and unknown.

Owns: the usual names of special tokens, and finding them in a vocabulary. Does not own: the vocabulary or the use of
the ids. Names decide, not settings, so that a tokenizer.json of another program works without configuration.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from lilliput.data.corpora import END_OF_TEXT
from lilliput.errors import UserError

SOS, EOS, PAD, UNK = "<sos>", "<eos>", "<pad>", "<unk>"

# The first name in the vocabulary is used. [CLS] and [SEP] are BERT's, <s> and </s> are SentencePiece's.
STARTS = (SOS, "<s>", "<bos>", "[BOS]", "<|startoftext|>", "<|begin_of_text|>", "[CLS]")
ENDS = (END_OF_TEXT, EOS, "</s>", "[EOS]", "<|end_of_text|>", "[SEP]")
PADS = (PAD, "[PAD]", "<|pad|>")
UNKNOWNS = (UNK, "[UNK]")


class Specials(NamedTuple):
    """Names of the special tokens. `ends` is False if `end` is the padding token, which only separates documents."""

    start: str
    end: str
    ends: bool
    pad: str | None


def find_specials(vocabulary: Container[str], where: str) -> Specials:
    """Return the special tokens of a vocabulary; raise if it has neither an end token nor a padding token."""
    start, end, pad = (next((name for name in names if name in vocabulary), None) for names in (STARTS, ENDS, PADS))
    last = end or pad
    if last is None:
        what = f"the vocabulary must contain {END_OF_TEXT}, {EOS}, </s>, [SEP] or {PAD} (got none of them)"
        raise UserError(what, where, fix="add one of them, or train a tokenizer", code="tokenizer.invalid")
    return Specials(start or last, last, end is not None, pad)


def find_unknown(model: Mapping[str, Any], vocabulary: Mapping[str, int], where: str) -> int | None:
    """Return the id of the unknown token in the model of a tokenizer.json. Only BPE may have none."""
    if model["type"] == "Unigram":
        found: int | None = model["unk_id"]
    else:
        name: str | None = model.get("unk_token")
        if name is None and model["type"] == "BPE":
            return None
        found = None if name is None else vocabulary.get(name)
    if found is None:
        what = f"a {model['type']} tokenizer requires a token for unknown words (got none)"
        fix = f"set its unk_token to a token of its vocabulary, such as {UNK}"
        raise UserError(what, where, fix=fix, code="tokenizer.invalid")
    return found
