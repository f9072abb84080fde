"""Tests of exported tokenizers: AutoTokenizer and Lilliput give the same ids, start token included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.exported_models import TOKENIZERS, small_tokenizer
from helpers.shared_data import DATA, needs_data
from lilliput.data.tokenizers import Tokenizer
from lilliput.exporting.comparison import encode_document
from lilliput.exporting.comparison_texts import BUILT_IN, COUNT, EDGE_CASES
from lilliput.exporting.huggingface import special_ids
from lilliput.exporting.tokenizer_files import tokenizer_config, tokenizer_json

TEXTS = (*BUILT_IN, *EDGE_CASES, "A bee saw <eos> the sea <pad> <sos> and <unk> now", "<EOS> The moon")


def load(folder: Path, tokenizer: Tokenizer, model_type: str = "qwen3") -> Any:
    from transformers import AutoTokenizer

    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokenizer)))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(tokenizer, 64)))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return AutoTokenizer.from_pretrained(folder)


def assert_same(tokenizer: Tokenizer, other: Any) -> None:
    for text in TEXTS:
        assert other(text)["input_ids"] == encode_document(tokenizer, text), text
    assert [other.bos_token_id, other.eos_token_id, other.pad_token_id] == [*special_ids(tokenizer).values()]
    assert other.model_max_length == 64
    assert sorted(other("one")) == ["attention_mask", "input_ids"]
    ids = encode_document(tokenizer, TEXTS[3])
    assert other.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)


def test_there_are_twenty_texts() -> None:
    assert len({*BUILT_IN, *EDGE_CASES}) == COUNT


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_ids_of_every_kind_of_tokenizer(kind: str, tmp_path: Path) -> None:
    tokenizer = small_tokenizer(kind)
    assert_same(tokenizer, load(tmp_path, tokenizer))


@needs_data
def test_ids_of_gpt2s_tokenizer(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(DATA / "gpt2-bpe")
    assert_same(tokenizer, load(tmp_path, tokenizer))


@pytest.mark.parametrize(
    "model_type", ["apertus", "llama", "arcee", "mistral", "smollm3", "gpt2", "gpt_neox", "starcoder2", "opt"]
)
def test_no_class_of_models_replaces_the_tokenizer(model_type: str, tmp_path: Path) -> None:
    tokenizer = small_tokenizer("bpe")
    assert_same(tokenizer, load(tmp_path, tokenizer, model_type))
