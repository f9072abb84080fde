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
    model: Transformer, settings: GenerateSettings, rows: int, tell: Callable[[str], None] | None = None
) -> tuple[Engine, str | None]:
    """The engine for so many rows at a time, and a sentence if the choice is not what one would expect.

    `auto` is numba wherever it holds the net; a GPU has its own ways. `tell` hears of a compilation as soon as it is noticed.
    """
    if settings.engine == "torch":
        if settings.quantise is not None:
            raise UserError(
                "the torch engine has no weights of one byte", "generate.quantise", "the numba engine has them"
            )
        return TorchEngine(model), None
    from lilliput.decoding.engines.compiled import NumbaEngine  # half a second, and not for training
    from lilliput.decoding.engines.compiled.packing import refusal

    reason = refusal(model)
    if reason is None:
        engine = NumbaEngine(model, quantise=settings.quantise)
        return engine, warm_up(engine, tell)
    if settings.engine == "numba" or settings.quantise is not None:
        raise UserError(
            f"the numba engine does not hold this model: {reason}", None, "the torch engine holds every model"
        )
    return TorchEngine(model), f"torch engine: {reason}"


def warm_up(engine: Engine, tell: Callable[[str], None] | None) -> str | None:
    """The first pass loads the compiled code, or makes it. A sentence if it had to be made."""
    from lilliput.decoding.engines.compiled import count_compilations

    begun, made = time.monotonic(), count_compilations()
    notice = threading.Timer(
        PATIENCE, tell or (lambda sentence: None), ["compiling the numba engine for this machine, once ..."]
    )
    notice.daemon = True
    notice.start()
    engine.prefill([[0]])
    notice.cancel()
    if count_compilations() == made:
        return None
    return f"compiled the numba engine in {time.monotonic() - begun:.1f} s; the machine code is kept for the next time"
