"""Selection of the engine.

Owns: the rule of `auto`, and the errors for models that an engine does not support. Does not own: the engines.
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
    model: Transformer, settings: GenerateSettings, notify: Callable[[str], None] | None = None
) -> tuple[Engine, str | None]:
    """Return the engine that the settings select, and a note on why it is not numba, if so.

    `auto` selects numba if it supports the model, otherwise torch. `notify` receives a message when a compilation begins and
    when it ends.
    """
    engine, note = find_engine(model, settings, notify)
    if next(model.parameters()).dtype is torch.float32:
        load_statistics(notify)
    return engine, note


def find_engine(
    model: Transformer, settings: GenerateSettings, notify: Callable[[str], None] | None
) -> tuple[Engine, str | None]:
    if settings.engine in ("torch", "uncached"):
        if settings.quantise is not None:
            raise UserError(
                f'int8 weights require engine "numba" (got "{settings.engine}")',
                fix='set generate.engine to "numba" or remove generate.quantise',
                code="setting.conflict",
                setting="generate.quantise",
            )
        return (TorchEngine(model) if settings.engine == "torch" else UncachedEngine(model)), None
    from lilliput.decoding.engines.compiled_weights import refusal

    reason = refusal(model)
    if reason is None:
        from lilliput.decoding.engines.compiled_engine import NumbaEngine
        from lilliput.kernels.decoding_pass.compiled_function import get_machine_code

        get_machine_code(notify)
        return NumbaEngine(model, quantise=settings.quantise), None
    if settings.engine == "numba" or settings.quantise is not None:
        raise UserError(
            f'engine "numba" does not support this model: {reason}',
            fix='set generate.engine to "torch"' + " and remove generate.quantise" * (settings.quantise is not None),
            code="model.unsupported",
            setting="generate.engine",
        )
    return TorchEngine(model), f"torch engine: {reason}"
