"""Keep runs in memory where possible: they are saved often, and other tests check flushing."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.small_runs import MEMORY


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)
