"""Writing a Hugging Face folder: config.json, generation_config.json, model.safetensors and the tokenizer.

Owns: the content of the folder, except its model card (`model_card`). Does not own: which class holds a model
(`stock_classes`), or the comparison with the run (`comparison`).
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from lilliput.data.tokenizers import Tokenizer
from lilliput.exporting.stock_classes import StockClass
from lilliput.exporting.tokenizer_files import tokenizer_config, tokenizer_json
from lilliput.model.transformer import Transformer
from lilliput.settings.tree import GenerateSettings
from lilliput.storage.atomic_files import json_bytes, write_flushed


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of special tokens by the names of transformers. A text begins with the start token, as in training."""
    pad = tokenizer.end if tokenizer.pad is None else tokenizer.pad
    return {"bos_token_id": tokenizer.start, "eos_token_id": tokenizer.end, "pad_token_id": pad}


def model_config(model: Transformer, tokenizer: Tokenizer, stock: StockClass) -> dict[str, Any]:
    return {
        "architectures": [stock.architecture],
        "model_type": stock.model_type,
        "dtype": "float32",
        "transformers_version": version("transformers"),
        **special_ids(tokenizer),
        **stock.config(model),
        "use_cache": True,
    }


def generation_config(tokenizer: Tokenizer, settings: GenerateSettings, context: int) -> dict[str, Any]:
    """Return generation_config.json: the run's sampling settings, and the context as the longest text."""
    drawn = settings.temperature > 0.0
    found: dict[str, Any] = {**special_ids(tokenizer), "max_length": context, "do_sample": drawn}
    if drawn:  # transformers filters the 50 likeliest tokens unless top_k is 0
        found |= {"temperature": settings.temperature, "top_k": settings.top_k or 0, "top_p": settings.top_p or 1.0}
        found |= {name: value for name in ("min_p",) if (value := getattr(settings, name)) is not None}
    if settings.repetition_penalty != 1.0:
        found["repetition_penalty"] = settings.repetition_penalty
    return found | {"transformers_version": version("transformers")}


def write_folder(
    folder: Path, model: Transformer, tokenizer: Tokenizer, stock: StockClass, settings: GenerateSettings
) -> None:
    """Write all files except the model card."""
    context = model.settings.context
    tensors = {name: dense(tensor) for name, tensor in stock.tensors(model).items()}
    write_flushed(folder / "config.json", json_bytes(model_config(model, tokenizer, stock)))
    write_flushed(folder / "generation_config.json", json_bytes(generation_config(tokenizer, settings, context)))
    write_flushed(folder / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    write_flushed(folder / "tokenizer.json", json_bytes(tokenizer_json(tokenizer)))
    write_flushed(folder / "tokenizer_config.json", json_bytes(tokenizer_config(tokenizer, context)))


def dense(tensor: Tensor) -> Tensor:
    """Return a float32 tensor with its own memory, as safetensors requires."""
    return tensor.float().contiguous().clone()
