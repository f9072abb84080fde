"""Where the real texts are. A test that needs them is skipped, with its reason, where they are absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("LILLIPUT_DATA") or Path(__file__).parents[2] / "shared" / "data")
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared data: set LILLIPUT_DATA to its folder")
