"""Runs in a memory file system, if there is one: they are saved often, and flushing is tested elsewhere."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.small_runs import MEMORY


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)
