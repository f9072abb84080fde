"""The tokenizer of a Hugging Face folder: tokenizer.json and tokenizer_config.json.

Owns: changes of the run's tokenizer.json, so that a consumer gets the ids that the model was trained on: the start token, and
the names of special tokens in a text, which Lilliput encodes as text. Does not own: the tokenizer (`data.tokenizers`), or the
tokenizer of a GGUF file (`gguf_tokenizer`).
"""

from __future__ import annotations

import json
import re
from typing import Any

from lilliput.data.tokenizers import Tokenizer


def special_names(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the special tokens by the names of transformers. Without a padding token, the end token is used.

    The unknown token is not listed: transformers would omit it from decoded text, which would then look complete.
    """
    names = {"bos_token": tokenizer.start, "eos_token": tokenizer.end}
    names["pad_token"] = tokenizer.end if tokenizer.pad is None else tokenizer.pad
    vocabulary = {number: token for token, number in vocabulary_of(tokenizer).items()}
    return {name: vocabulary[number] for name, number in names.items()}


def vocabulary_of(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of all tokens, special ones included."""
    parts = json.loads(tokenizer.to_json())
    found = parts["model"]["vocab"]
    pieces = {piece: number for number, (piece, _) in enumerate(found)} if isinstance(found, list) else dict(found)
    return pieces | {token["content"]: token["id"] for token in parts["added_tokens"]}


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a tokenizer.json that puts the start token before every text, as in training."""
    parts: dict[str, Any] = json.loads(tokenizer.to_json())
    start = special_names(tokenizer)["bos_token"]
    first = {"SpecialToken": {"id": start, "type_id": 0}}
    text, second = ({"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B"))
    parts["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, second],
        "special_tokens": {start: {"id": start, "ids": [tokenizer.start], "tokens": [start]}},
    }
    if forged := forged_words(tokenizer, parts):
        parts["normalizer"] = forged
    return parts


def forged_words(tokenizer: Tokenizer, parts: dict[str, Any]) -> dict[str, Any] | None:
    """Return a normaliser that also replaces words that look like special tokens by the unknown token; None if not needed.

    A word tokenizer that splits at spaces would find "<eos>" in its vocabulary. Lilliput encodes such a word as unknown.
    """
    if parts["model"]["type"] != "WordLevel" or tokenizer.unknown is None:
        return None
    unknown = str(parts["model"]["unk_token"])
    forged = {*special_names(tokenizer).values()} - {unknown}
    pattern = rf"(?<!\S)(?:{'|'.join(re.escape(name) for name in sorted(forged))})(?!\S)"
    step = {"type": "Replace", "pattern": {"Regex": pattern}, "content": unknown}
    before = parts["normalizer"]
    return step if before is None else {"type": "Sequence", "normalizers": [before, step]}


def tokenizer_config(tokenizer: Tokenizer, context: int) -> dict[str, Any]:
    """Return tokenizer_config.json.

    PreTrainedTokenizerFast reads tokenizer.json as it is. `split_special_tokens`: their names in a text are text.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special_names(tokenizer),
        "model_max_length": context,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
        "padding_side": "left",
    }
