"""Errors that a call raises, with a check of their format."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lilliput.errors import UserError


def refusal(call: Callable[[], object]) -> str:
    """Return the text of the error that the call raises."""
    return str(refused(call))


def refused(call: Callable[[], object]) -> UserError:
    """Return the error that the call raises."""
    with pytest.raises(UserError) as found:
        call()
    assert len(str(found.value).splitlines()) <= 3, found.value
    return found.value
