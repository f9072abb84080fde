"""What a user reads when something is wrong: a sentence of at most three lines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lilliput.errors import UserError


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as found:
        call()
    told = str(found.value)
    assert len(told.splitlines()) <= 3, told
    return told
