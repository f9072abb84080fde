"""Path of the shared data. Tests that need it are skipped if it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("LILLIPUT_DATA") or Path(__file__).parents[2] / "shared" / "data")
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared data: set LILLIPUT_DATA to its folder")
