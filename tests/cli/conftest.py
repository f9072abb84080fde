"""Runs in memory where there is such a place: they are saved often, and flushing is proved elsewhere."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.small_runs import MEMORY


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)
