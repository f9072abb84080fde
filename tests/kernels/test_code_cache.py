"""The cache of compiled code: reading, verification, keys, and use without numba."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from lilliput.kernels import code_cache
from lilliput.kernels.code_cache import Kernel, read_code, write_code
from lilliput.kernels.decoding_pass.compiled_function import PASS
from lilliput.kernels.decoding_pass.layout import Arrays, Plan, ScratchLayout, addresses, array_type
from lilliput.kernels.logit_statistics import STATISTICS
from lilliput.kernels.openmp_waiting import find_openmp_parallel
from lilliput.kernels.training_attention import ATTENTION

WRITE = """
import sys
from lilliput.decoding.engines.selection import choose_engine
from lilliput.model.transformer import build_model
from lilliput.settings.tree import GenerateSettings, ModelSettings

model = build_model(ModelSettings(vocab_size=50, dim=16, layers=1, heads=2, kv_heads=2, hidden=32, context=8), seed=1)
engine, _ = choose_engine(model, GenerateSettings(engine="numba"), print)
print(engine.prefill([[1, 2, 3]])[0].double().sum().item(), "numba" in sys.modules)
"""


LEARN = """
import sys
import torch
from lilliput.kernels.training_attention import attend_compiled
x = torch.ones(1, 2, 20, 16, requires_grad=True)
attend_compiled(x, x, x, torch.zeros(1, 20, dtype=torch.long)).sum().backward()
print(x.grad.isfinite().all().item(), "numba" in sys.modules)
"""
KERNELS = [PASS, *([ATTENTION] if find_openmp_parallel() is not None else [])]


def place_of(kernel: Kernel) -> Path:
    """Return the cache file of a kernel, compiled if needed."""
    kernel.load()
    path = kernel.cache_path()
    assert path is not None and path.exists()
    return path


@pytest.fixture
def place() -> Path:
    return place_of(PASS)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_cached_code_runs_without_importing_numba(kernel: Kernel) -> None:
    for needed in (PASS, STATISTICS) if kernel is PASS else (kernel,):  # choosing an engine loads the statistics, too
        place_of(needed)
    code = WRITE if kernel is PASS else LEARN
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False", done.stdout


def test_code_is_read_as_written(tmp_path: Path) -> None:
    place = tmp_path / "pass.o"
    assert write_code(place, "name", b"code \n of any kind")
    assert read_code(place) == ("name", b"code \n of any kind")
    assert os.listdir(tmp_path) == ["pass.o"]


@pytest.mark.parametrize("damage", [b"", b"no head", b"one line\ncode", b"00\nname\ncode", b"\xff\n\xff\n"])
def test_damaged_code_is_not_loaded(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "pass.o").write_bytes(damage)
    assert read_code(tmp_path / "pass.o") is None


@pytest.mark.parametrize("at", [0, 70, -100])
def test_one_changed_bit_is_detected(place: Path, tmp_path: Path, at: int) -> None:
    """Change a bit of the digest, of the function's name, or of the code."""
    code = bytearray(place.read_bytes())
    code[at] ^= 1
    (tmp_path / "pass.o").write_bytes(code)
    assert read_code(place) is not None and read_code(tmp_path / "pass.o") is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners on this system")
def test_code_of_another_user_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert write_code(tmp_path / "pass.o", "name", b"code") and read_code(tmp_path / "pass.o") is not None
    monkeypatch.setattr(os, "getuid", lambda: (tmp_path / "pass.o").stat().st_uid + 1)
    assert read_code(tmp_path / "pass.o") is None


def test_concurrent_loads_link_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links: list[str] = []

    def link_slowly(name: str, code: bytes) -> int:
        links.append(name)
        time.sleep(0.05)
        return 1234

    monkeypatch.setattr(code_cache, "link", link_slowly)
    kernel = Kernel("pass", PASS.description, PASS.sources[len(code_cache.SOURCES) :], PASS.compile)
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(kernel.load) for _ in range(4)]
    assert len(links) == 1 and {one.result() for one in found} == {1234}


def test_arrays_of_wrong_type_or_shape_are_an_error() -> None:
    names = Arrays._fields
    arrays = Arrays(*(np.zeros((3,) * dims, dtype) for dtype, dims in map(array_type, names)))
    plan, layout = Plan(*range(len(Plan._fields))), ScratchLayout(*range(len(ScratchLayout._fields)))
    numbers = addresses(plan, layout, arrays)
    assert len(numbers) == len(plan) + len(layout) + sum(1 + array.ndim for array in arrays)
    for name, array in zip(names, arrays, strict=True):
        for other in (array.astype(np.float64), array[..., ::2], array[None]):
            with pytest.raises(AssertionError, match=name):
                addresses(plan, layout, arrays._replace(**{name: other}))


def test_compilation_without_a_writable_cache(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = read_code(place)
    assert code is not None
    kernel = Kernel("pass", "something", [], lambda: code)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kernel.cache_path() is None
    messages: list[str] = []
    assert kernel.compile_and_store(None, messages.append) == code
    assert kernel.compile_and_store(tmp_path / "missing" / "pass.o", messages.append) == code
    assert len(messages) == 4 and not any("cached" in message for message in messages)
    assert kernel.compile_and_store(tmp_path / "pass.o", messages.append) == code and "cached" in messages[-1]
    assert read_code(tmp_path / "pass.o") == code


def test_cache_key_depends_on_sources_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    before = PASS.cache_path()
    assert before is not None and before != Kernel("pass", PASS.description, [], PASS.compile).cache_path()
    monkeypatch.setattr(code_cache, "version", lambda name: f"another {name}")
    assert PASS.cache_path() != before and PASS.cache_path() == PASS.cache_path()
