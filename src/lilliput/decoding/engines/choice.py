"""Which engine computes, and what its user is told about it.

Owns: the rule of `auto`, refusals, the announcement of a compilation. Does not own: the engines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lilliput.decoding.engines import Engine
from lilliput.decoding.engines.eager import TorchEngine
from lilliput.errors import UserError
from lilliput.model.transformer import Transformer
from lilliput.settings import GenerateSettings

PATIENCE = 3.0  # seconds: to load code that was compiled before takes less


def choose_engine(
    model: Transformer, settings: GenerateSettings, tell: Callable[[str], None] | None = None
) -> tuple[Engine, str | None]:
    """The engine, and a sentence if there is something to say about it.

    `auto` is numba wherever it holds the net, torch elsewhere. `tell` hears of a compilation while it lasts.
    """
    if settings.engine == "torch":
        if settings.quantise is not None:
            raise UserError(
                "the torch engine has no weights of one byte", "generate.quantise", "the numba engine has them"
            )
        return TorchEngine(model), None
    from lilliput.decoding.engines.compiled.packing import (
        refusal,  # numba takes a third of a second, and not for training
    )

    reason = refusal(model)
    if reason is None:
        return build_compiled(model, settings, tell)
    if settings.engine == "numba" or settings.quantise is not None:
        raise UserError(
            f"the numba engine does not hold this model: {reason}", None, "the torch engine holds every model"
        )
    return TorchEngine(model), f"torch engine: {reason}"


def build_compiled(
    model: Transformer, settings: GenerateSettings, tell: Callable[[str], None] | None
) -> tuple[Engine, str | None]:
    """The numba engine; a sentence if its machine code had to be made, and was not found on disk."""
    from lilliput.decoding.engines.compiled import NumbaEngine, count_compilations
    from lilliput.decoding.engines.compiled.layout import CACHE

    begun, made = time.monotonic(), count_compilations()
    sentence = "compiling the numba engine for this machine ..."
    notice = threading.Timer(PATIENCE, tell or (lambda sentence: None), [sentence])
    notice.daemon = True
    notice.start()
    try:
        engine = NumbaEngine(model, quantise=settings.quantise)
    finally:
        notice.cancel()
    if count_compilations() == made:
        return engine, None
    kept = "" if CACHE is None else "; the machine code is kept for the next time"
    return engine, f"compiled the numba engine in {time.monotonic() - begun:.1f} s{kept}"
