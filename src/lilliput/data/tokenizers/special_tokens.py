"""Which tokens of a vocabulary begin and end a document, pad it, and stand for what is unknown.

Owns: the usual names of such tokens, and finding them. Does not own: the vocabulary, or what is done with the
ids. Names and not settings decide: a tokenizer.json from anywhere then needs no word of explanation.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from lilliput.data.corpora import END_OF_TEXT
from lilliput.errors import UserError

SOS, EOS, PAD, UNK = "<sos>", "<eos>", "<pad>", "<unk>"

# Of several the first is taken. [CLS] and [SEP] are BERT's, <s> and </s> those of SentencePiece.
STARTS = (SOS, "<s>", "<bos>", "[BOS]", "<|startoftext|>", "<|begin_of_text|>", "[CLS]")
ENDS = (END_OF_TEXT, EOS, "</s>", "[EOS]", "<|end_of_text|>", "[SEP]")
PADS = (PAD, "[PAD]", "<|pad|>")
UNKNOWNS = (UNK, "[UNK]")


class Specials(NamedTuple):
    """Names of the tokens that are no text. `ends` is False where `end` is a padding that only separates documents."""

    start: str
    end: str
    ends: bool
    pad: str | None


def find_specials(vocabulary: Container[str], where: str) -> Specials:
    """The special tokens of a vocabulary; one without any that could stand between two documents is refused."""
    start, end, pad = (next((name for name in names if name in vocabulary), None) for names in (STARTS, ENDS, PADS))
    last = end or pad
    if last is None:
        what = f"the tokenizer has no {END_OF_TEXT} token, nor {EOS}, </s>, [SEP] or {PAD}"
        raise UserError(what, where, fix="add one of them, or train a tokenizer", code="tokenizer.invalid")
    return Specials(start or last, last, end is not None, pad)


def find_unknown(model: Mapping[str, Any], vocabulary: Mapping[str, int], where: str) -> int | None:
    """The id that a model of a tokenizer.json gives to what it does not know; only BPE may do without."""
    if model["type"] == "Unigram":
        found: int | None = model["unk_id"]
    else:
        name: str | None = model.get("unk_token")
        if name is None and model["type"] == "BPE":
            return None
        found = None if name is None else vocabulary.get(name)
    if found is None:
        what = f"the {model['type']} tokenizer has no token for unknown words"
        fix = f"set its unk_token to a token that it has, such as {UNK}"
        raise UserError(what, where, fix=fix, code="tokenizer.invalid")
    return found
