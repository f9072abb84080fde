"""Which engine computes, and what its user is told about it.

Owns: the rule of `auto`, and refusals. Does not own: the engines.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from lilliput.decoding.engines import Engine
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.decoding.engines.uncached_engine import UncachedEngine
from lilliput.errors import UserError
from lilliput.kernels.logit_statistics import load_statistics
from lilliput.model.transformer import Transformer
from lilliput.settings.tree import GenerateSettings


def choose_engine(
    model: Transformer, settings: GenerateSettings, tell: Callable[[str], None] | None = None
) -> tuple[Engine, str | None]:
    """The engine, and a sentence if there is something to say about it.

    `auto` is numba wherever it holds the net, torch elsewhere. `tell` hears of a compilation when it begins and ends.
    """
    engine, sentence = find_engine(model, settings, tell)
    if next(model.parameters()).dtype is torch.float32:
        load_statistics(tell)
    return engine, sentence


def find_engine(
    model: Transformer, settings: GenerateSettings, tell: Callable[[str], None] | None
) -> tuple[Engine, str | None]:
    if settings.engine in ("torch", "uncached"):
        if settings.quantise is not None:
            what = f"the {settings.engine} engine has no weights of one byte"
            raise UserError(what, "generate.quantise", "the numba engine has them")
        return (TorchEngine(model) if settings.engine == "torch" else UncachedEngine(model)), None
    from lilliput.decoding.engines.compiled_weights import refusal

    reason = refusal(model)
    if reason is None:
        from lilliput.decoding.engines.compiled_engine import NumbaEngine
        from lilliput.kernels.decoding_pass.function import get_machine_code

        get_machine_code(tell)
        return NumbaEngine(model, quantise=settings.quantise), None
    if settings.engine == "numba" or settings.quantise is not None:
        raise UserError(
            f"the numba engine does not hold this model: {reason}", None, "the torch engine holds every model"
        )
    return TorchEngine(model), f"torch engine: {reason}"
