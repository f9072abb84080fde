"""Whether a model, or the settings of a run that is about to be trained, can be exported.

Owns: choosing the class or architecture of a model, and the same check of settings before training. Does not own: the rows of
the tables (`stock_classes`, `gguf_architectures`), or their comparison with a model (`requirements`).
"""

from __future__ import annotations

from lilliput.exporting.gguf_architectures import ARCHITECTURES, Architecture
from lilliput.exporting.gguf_tokenizer import check_settings
from lilliput.exporting.requirements import choose_format
from lilliput.exporting.stock_classes import STOCK_CLASSES, StockClass
from lilliput.model.transformer import Transformer, build_model
from lilliput.settings.loading import replace
from lilliput.settings.tree import Config

ANY_VOCABULARY, ANY_CLASSES = 1024, 2  # no requirement depends on them


def choose_class(model: Transformer) -> StockClass:
    return choose_format(model, STOCK_CLASSES, "a Hugging Face folder")


def choose_architecture(model: Transformer) -> Architecture:
    return choose_format(model, ARCHITECTURES, "a GGUF file")


def check_portable(config: Config, to: str) -> None:
    """Raise unless a run with these settings can be exported. The model is built without memory."""
    unknown: dict[str, object] = {}
    if config.model.vocab_size is None:
        unknown["model.vocab_size"] = ANY_VOCABULARY
    if config.model.task != "language" and config.model.classes is None:
        unknown["model.classes"] = ANY_CLASSES
    if config.vectors.source is not None and config.vectors.width is None:
        unknown["vectors.width"] = config.model.dim
    resolved = replace(config, unknown)
    model = build_model(resolved.model, resolved.vectors, device="meta")
    if to == "huggingface":
        choose_class(model)
    else:
        choose_architecture(model)
        check_settings(config.tokenizer)
