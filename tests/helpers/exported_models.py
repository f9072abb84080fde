"""Models that exporters support, by class and architecture, and small tokenizers of every kind."""

from __future__ import annotations

from typing import Any

import torch

from helpers.small_runs import TEXT
from helpers.tiny_models import tiny_model
from lilliput.data.tokenizers import Tokenizer, make_tokenizer
from lilliput.model.transformer import Transformer
from lilliput.settings.tree import TokenizerSettings

Case = dict[str, Any]
RMS: Case = {"norm": "rms", "positions": "rotary"}
LAYER: Case = {"norm": "layer"}
ATTENTION = {"bias_attention_input": True, "bias_attention_output": True}
FEED_FORWARD = {"bias_feed_forward": True}

# Class of transformers -> models that it holds: every part and shape of its row in the table.
BY_CLASS: dict[str, list[Case]] = {
    "Apertus": [
        RMS | {"qk_norm": True, "feed_forward": "relu2"},
        RMS
        | {"qk_norm": True, "feed_forward": "relu2", "tied": True, "kv_heads": 2, "head_dim": 6, "rotary_base": 500.0},
        RMS | {"qk_norm": True, "feed_forward": "gelu", "bias_attention_output": True, "kv_heads": 1},
        RMS | {"qk_norm": True, "feed_forward": "relu", "window": 24, "bias_attention_input": True},
    ],
    "Qwen3": [
        RMS | {"qk_norm": True, "feed_forward": "relu2", "window": (3, None), "tied": True},
        RMS | {"qk_norm": True, "feed_forward": "relu2", "window": 4, "kv_heads": 2, "head_dim": 2} | ATTENTION,
        RMS | {"qk_norm": True, "feed_forward": "swiglu", "head_dim": 6},
        RMS | {"qk_norm": True, "feed_forward": "swiglu", "window": (None, None, 5)},
    ],
    "Llama": [
        RMS | {"feed_forward": "swiglu", "tied": True, "kv_heads": 2},
        RMS | {"feed_forward": "swiglu", "head_dim": 6} | ATTENTION | FEED_FORWARD,
    ],
    "Arcee": [
        RMS | {"feed_forward": "relu2", "kv_heads": 2, "head_dim": 6},
        RMS | {"feed_forward": "relu", "tied": True, "bias_attention_output": True} | FEED_FORWARD,
        RMS | {"feed_forward": "gelu"},
    ],
    "Mistral": [
        RMS | {"feed_forward": "swiglu", "window": 4, "kv_heads": 1},
        RMS | {"feed_forward": "swiglu", "window": 7, "tied": True, "head_dim": 6},
    ],
    "SmolLM3": [
        RMS | {"feed_forward": "swiglu", "window": (3, None)},
        RMS | {"feed_forward": "relu2", "window": 4, "kv_heads": 2},
        RMS | {"feed_forward": "gelu", "positions": None, "head_dim": 6, "tied": True},
        RMS | {"feed_forward": "relu", "window": (4, 4, None)} | ATTENTION | FEED_FORWARD,
        RMS | {"feed_forward": "relu2", "positions": None} | FEED_FORWARD,
    ],
    "GPT-2": [
        LAYER | {"positions": "learned", "feed_forward": "gelu", "tied": True} | ATTENTION | FEED_FORWARD,
        LAYER | {"positions": "sinusoidal", "feed_forward": "relu", "kv_heads": 2},
        LAYER | {"positions": "sinusoidal", "feed_forward": "relu", "tied": True},
        LAYER | {"positions": None, "feed_forward": "relu2", "kv_heads": 1} | ATTENTION,
    ],
    "GPT-NeoX": [
        LAYER | {"positions": "rotary", "feed_forward": "gelu", "tied": True} | ATTENTION | FEED_FORWARD,
        LAYER | {"positions": "rotary", "feed_forward": "relu2", "kv_heads": 2},
        LAYER | {"positions": "rotary", "feed_forward": "relu", "kv_heads": 2, "bias_attention_input": True},
    ],
    "Starcoder2": [
        LAYER | {"positions": "rotary", "feed_forward": "gelu", "window": 4, "kv_heads": 2},
        LAYER | {"positions": "rotary", "feed_forward": "relu", "head_dim": 6, "tied": True} | FEED_FORWARD,
        LAYER | {"positions": "rotary", "feed_forward": "relu2", "window": 24, "head_dim": 2, "kv_heads": 1},
    ],
    "OPT": [
        LAYER | {"positions": "learned", "feed_forward": "relu", "norm_placement": "post", "final_norm": False},
        LAYER
        | {"positions": "sinusoidal", "feed_forward": "gelu", "norm_placement": "post", "final_norm": False}
        | {"kv_heads": 2, "bias_attention_output": True}
        | FEED_FORWARD,
        LAYER | {"positions": "learned", "feed_forward": "relu2", "final_norm": False, "tied": True},
        LAYER | {"positions": None, "feed_forward": "relu", "norm_placement": "post", "final_norm": False},
    ],
}
BY_ARCHITECTURE: dict[str, list[Case]] = {
    "apertus": [
        RMS | {"qk_norm": True, "feed_forward": "relu2"},
        RMS | {"qk_norm": True, "feed_forward": "relu2", "tied": True, "kv_heads": 2, "head_dim": 6},
    ],
    "qwen3": [RMS | {"qk_norm": True, "feed_forward": "swiglu", "tied": True, "kv_heads": 2}],
    "llama": [
        RMS | {"feed_forward": "swiglu", "kv_heads": 2, "head_dim": 6},
        RMS | {"feed_forward": "swiglu", "tied": True} | ATTENTION | FEED_FORWARD,
    ],
    "arcee": [RMS | {"feed_forward": "relu2", "kv_heads": 2, "rotary_base": 500.0}],
    "gpt2": [
        LAYER | {"positions": "learned", "feed_forward": "gelu", "tied": True} | ATTENTION | FEED_FORWARD,
        LAYER | {"positions": "sinusoidal", "feed_forward": "gelu", "kv_heads": 2},
        LAYER | {"positions": None, "feed_forward": "gelu"},
    ],
    "gptneox": [LAYER | {"positions": "rotary", "feed_forward": "gelu", "kv_heads": 2, "tied": True}],
}


def cases(table: dict[str, list[Case]]) -> list[tuple[str, Case]]:
    return [(name, case) for name, found in table.items() for case in found]


def case_name(value: object) -> str:
    return value if isinstance(value, str) else "-".join(f"{k}={v}".replace(" ", "") for k, v in value.items())  # type: ignore[attr-defined]


def exact_model(case: Case, **changes: Any) -> Transformer:
    """Return a float32 model with random weights."""
    return tiny_model(3, **case | changes).float()


TOKENIZERS: dict[str, TokenizerSettings] = {
    "bpe": TokenizerSettings(kind="bpe", vocab_size=300),
    "bpe-lowercase": TokenizerSettings(kind="bpe", vocab_size=300, lowercase=True, single_spaces=True),
    "byte": TokenizerSettings(kind="byte"),
    "character": TokenizerSettings(kind="character"),
    "word": TokenizerSettings(kind="word"),
    "word-spaces": TokenizerSettings(kind="word", split="spaces", lowercase=True, ascii_punctuation=True),
    "word-strip": TokenizerSettings(kind="word", punctuation="strip", sos_id=None, pad_id=None, eos_id=0, unk_id=1),
}


def small_tokenizer(kind: str) -> Tokenizer:
    return make_tokenizer(TOKENIZERS[kind], TEXT.split("\n<|endoftext|>\n"))


def random_ids(model: Transformer, rows: int = 20) -> list[torch.Tensor]:
    """Return 20 rows of ids, (1, T), of every length up to the context."""
    context, vocab_size = model.settings.context, model.settings.vocab_size
    assert vocab_size is not None
    draw = torch.Generator().manual_seed(5)
    lengths = [1 + number * (context - 1) // (rows - 1) for number in range(rows)]
    return [torch.randint(vocab_size, (1, length), generator=draw) for length in lengths]
