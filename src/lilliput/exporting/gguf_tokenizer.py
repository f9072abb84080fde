"""The tokenizer of a GGUF file: which tokenizers llama.cpp computes exactly, and their tokens, types and merges.

Owns: the allow-list of tokenizers, by the parts of tokenizer.json and by settings, and the arrays of the file. Does not own:
the file (`gguf_file`), or the tokenizer of a Hugging Face folder (`tokenizer_files`).

llama.cpp's type "gpt2" is byte-level BPE, and its pre-tokenizer "gpt-2" is the pattern of GPT-2, with which Lilliput trains. A
byte tokenizer is the same without merges. No type holds character or word tokenizers: llama.cpp has no character that it maps to
an unknown token one by one, and does not split text at words.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from lilliput.data.tokenizers import Tokenizer, make_tokenizer
from lilliput.data.tokenizers.gpt2 import BYTE_CHARACTERS
from lilliput.errors import UserError
from lilliput.settings.tree import NORMALISATION, TokenizerSettings

NORMAL, CONTROL, UNUSED = 1, 3, 5  # token types of llama.cpp
# llama.cpp requires at least one merge. Symbols are characters or merges of them, so this one is never applied.
NO_MERGE = "<no <merge"
HELD = ("bpe", "byte", "gpt2")


@dataclass(frozen=True)
class TokenArrays:
    """The tokens by id, the type of each, and the merges in order."""

    tokens: list[str]
    types: list[int]
    merges: list[str]


def unsupported(found: str, setting: str, change: str) -> UserError:
    what = f"no tokenizer of llama.cpp encodes text as this one does: {found}"
    fix = f"set {change} and train again, or use --to huggingface"
    return UserError(what, fix=fix, code="export.tokenizer", setting=setting)


def check_settings(settings: TokenizerSettings) -> None:
    """Raise unless the settings give a tokenizer that a GGUF file holds."""
    if settings.path is not None:
        check_tokenizer(make_tokenizer(settings, []))
        return
    if settings.kind not in HELD:
        raise unsupported(f"tokenizer.kind {settings.kind}", "tokenizer.kind", "tokenizer.kind to bpe or byte")
    for name in NORMALISATION:
        if getattr(settings, name):
            raise unsupported(f"tokenizer.{name} true", f"tokenizer.{name}", f"tokenizer.{name} to false")


def check_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the parts of the tokenizer; raise unless they are those of GPT-2's BPE, or of bytes."""
    parts: dict[str, Any] = json.loads(tokenizer.to_json())
    model, before = parts["model"], parts["pre_tokenizer"] or {}
    if not tokenizer.byte_level:
        raise unsupported(f"tokenizer.kind {tokenizer.kind}", "tokenizer.kind", "tokenizer.kind to bpe or byte")
    if parts["normalizer"] is not None:
        changes = ", ".join(f"tokenizer.{name} to false" for name in NORMALISATION)
        raise unsupported("it changes the text before it is split", "tokenizer.lowercase", changes)
    plain = {
        "ignore_merges",
        "byte_fallback",
        "fuse_unk",
        "continuing_subword_prefix",
        "end_of_word_suffix",
        "unk_token",
    }
    odd = sorted(name for name in plain if model.get(name))
    if odd or (not before.get("use_regex") and model["merges"]):
        found = f"its model sets {', '.join(odd)}" if odd else "it splits text by another pattern than GPT-2's"
        raise unsupported(found, "tokenizer.path", "tokenizer.kind to bpe")
    if any(not token["special"] for token in parts["added_tokens"]):
        raise unsupported("it has added tokens that are not special", "tokenizer.path", "tokenizer.kind to bpe")
    return parts


def token_arrays(tokenizer: Tokenizer, vocab_size: int) -> TokenArrays:
    """Return the arrays of the file; ids of the model without a token are marked as unused."""
    parts = check_tokenizer(tokenizer)
    ids: dict[str, int] = dict(parts["model"]["vocab"])
    special = {token["content"]: int(token["id"]) for token in parts["added_tokens"]}
    ids |= special
    by_id = {number: token for token, number in ids.items()}
    control = {*special.values()}
    tokens = [by_id.get(number, f"<unused {number}>") for number in range(vocab_size)]
    types = [CONTROL if n in control else NORMAL if n in by_id else UNUSED for n in range(vocab_size)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in parts["model"]["merges"]]
    assert {*BYTE_CHARACTERS} <= {*tokens}, "every byte has a token"
    return TokenArrays(tokens, types, merges or [NO_MERGE])
