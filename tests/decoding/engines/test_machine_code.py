"""Machine code that is kept: found again, never trusted blindly, and free of what made it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lilliput.decoding.engines.compiled import compilation, machine_code
from lilliput.decoding.engines.compiled.machine_code import find_place, get_machine_code, keep, make, read

WRITE = """
import sys
from lilliput.decoding.engines.choice import choose_engine
from lilliput.model.transformer import build_model
from lilliput.settings import GenerateSettings, ModelSettings

model = build_model(ModelSettings(vocab_size=50, dim=16, layers=1, heads=2, kv_heads=2, hidden=32, context=8), seed=1)
engine, _ = choose_engine(model, GenerateSettings(engine="numba"), print)
print(engine.prefill([[1, 2, 3]])[0].double().sum().item(), "numba" in sys.modules)
"""


@pytest.fixture
def place() -> Path:
    """Where the code of this machine is, which it is after this."""
    get_machine_code()
    found = find_place()
    assert found is not None and found.exists()
    return found


def test_a_process_that_finds_the_code_does_without_numba(place: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WRITE], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False", done.stdout


def test_what_is_kept_is_what_is_read(tmp_path: Path) -> None:
    place = tmp_path / "pass.o"
    assert keep(place, "name", b"code \n of any kind")
    assert read(place) == ("name", b"code \n of any kind")
    assert os.listdir(tmp_path) == ["pass.o"]


@pytest.mark.parametrize("damage", [b"", b"no head", b"one two three\ncode", b"name 00\ncode"])
def test_damaged_code_is_not_loaded(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "pass.o").write_bytes(damage)
    assert read(tmp_path / "pass.o") is None


def test_one_changed_bit_is_seen(place: Path, tmp_path: Path) -> None:
    code = bytearray(place.read_bytes())
    code[-100] ^= 1
    (tmp_path / "pass.o").write_bytes(code)
    assert read(place) is not None and read(tmp_path / "pass.o") is None


def test_without_a_place_it_is_made_and_not_kept(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = read(place)
    monkeypatch.setattr(compilation, "compile_pass", lambda: code)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert machine_code.find_place() is None
    told: list[str] = []
    assert make(None, told.append) == code
    assert make(tmp_path / "nowhere" / "pass.o", told.append) == code
    assert len(told) == 4 and not any("kept" in sentence for sentence in told)
    assert make(tmp_path / "pass.o", told.append) == code and "kept" in told[-1]
    assert read(tmp_path / "pass.o") == code


def test_the_key_is_of_the_sources_the_libraries_and_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = find_place()
    monkeypatch.setattr(machine_code, "version", lambda name: f"another {name}")
    assert before is not None and find_place() != before and find_place() == find_place()
