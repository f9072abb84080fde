"""Tests of devices, precision and measured speed."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from helpers.user_errors import refused
from lilliput import devices
from lilliput.devices import (
    choose_device,
    choose_precision,
    device_memory,
    format_ratio,
    keep_freed_memory,
    known_flops,
    measure_flops,
    peak_memory,
    prepare_machine,
    reset_peak_memory,
)

CPU = torch.device("cpu")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "lilliput" / "machine.json"


def know(cache: Path, **speeds: float) -> None:
    """Write speeds to the cache, as if measured on this machine."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps({devices.name_machine(CPU): speeds}))


def test_auto_is_an_available_device() -> None:
    expected = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert choose_device("auto").type == expected
    assert choose_device("cpu") == CPU


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_an_unavailable_device(name: str) -> None:
    if {"cuda": torch.cuda, "mps": torch.backends.mps}[name].is_available():
        pytest.skip(f"this machine has {name}")
    error = refused(lambda: choose_device(name))
    assert (error.code, error.setting) == ("device.missing", "train.device")


def test_an_unknown_device() -> None:
    error = refused(lambda: choose_device("gpu"))
    assert (error.code, error.setting) == ("device.missing", "train.device")


# ---- precision


def test_float32_and_float64_are_not_measured(cache: Path) -> None:
    assert choose_precision("float32", CPU) == (torch.float32, None)
    assert choose_precision("float64", CPU) == (torch.float64, None)
    error = refused(lambda: choose_precision("float64", torch.device("mps")))
    assert (error.code, error.setting) == ("device.precision", "train.precision")
    assert not cache.exists()


def test_auto_chooses_the_faster_type(cache: Path) -> None:
    know(cache, float32=1e11, bfloat16=2.5e11)
    assert choose_precision("auto", CPU) == (
        torch.bfloat16,
        "using bfloat16: bfloat16 is 2.5 times faster than float32 on this CPU",
    )
    know(cache, float32=1.2e11, bfloat16=1e9)
    assert choose_precision("auto", CPU) == (
        torch.float32,
        "using float32: bfloat16 is 120 times slower than float32 on this CPU",
    )
    know(cache, float32=1e11, bfloat16=1.05e11)  # too little faster
    assert choose_precision("auto", CPU).dtype is torch.float32


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_requested_slow_type_is_used_with_a_note(name: str, cache: Path) -> None:
    dtype = getattr(torch, name)
    know(cache, float32=1e11, **{name: 1e9})
    assert choose_precision(name, CPU) == (dtype, f"{name} is 100 times slower than float32 on this CPU")
    know(cache, float32=1e11, **{name: 2e11})
    assert choose_precision(name, CPU) == (dtype, None)


def test_a_type_that_the_device_does_not_support(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device, dtype: torch.dtype) -> float:
        if dtype is torch.bfloat16:
            raise TypeError("BFloat16 is not supported on MPS")  # as torch raises it
        return 1e11

    monkeypatch.setattr(devices, "measure_flops", refuse)
    assert choose_precision("auto", CPU) == (torch.float32, "using float32: this CPU does not support bfloat16")
    error = refused(lambda: choose_precision("bfloat16", CPU))
    assert (error.code, error.setting) == ("device.precision", "train.precision")


def test_the_real_choice_is_fast_and_cached(cache: Path) -> None:
    began = time.process_time()
    chosen = choose_precision("auto", CPU)
    assert time.process_time() - began < 2.0  # takes half a second on an idle machine
    assert chosen.note is not None and "bfloat16 is" in chosen.note
    (speeds,) = json.loads(cache.read_text()).values()
    assert speeds.keys() == {"bfloat16", "float32"}
    faster = speeds["bfloat16"] >= devices.WORTH * speeds["float32"]
    assert chosen.dtype is (torch.bfloat16 if faster else torch.float32)
    assert choose_precision("auto", CPU) == chosen


@pytest.mark.parametrize(
    ("ratio", "result"),
    [
        (1 / 120, "120 times slower"),
        (1 / 123.4, "120 times slower"),
        (0.5, "2.0 times slower"),
        (1.0, "1.0 times faster"),
        (2.34, "2.3 times faster"),
        (16.4, "16 times faster"),
    ],
)
def test_a_ratio_in_words(ratio: float, result: str) -> None:
    assert format_ratio(ratio) == result


# ---- speed


def test_the_measured_speed_is_plausible() -> None:
    before = torch.get_num_threads()
    assert 1e8 < measure_flops(CPU, torch.float32, seconds=0.01) < 1e15
    assert torch.get_num_threads() == before


def test_a_speed_is_measured_once_and_counts_threads(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[torch.dtype] = []
    monkeypatch.setattr(devices, "measure_flops", lambda _, dtype: measured.append(dtype) or 5e10)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert [known_flops(CPU, torch.float32) for _ in range(3)] == [2e11] * 3
    known_flops(CPU, torch.float64)
    assert measured == [torch.float32, torch.float64]
    (machine,) = json.loads(cache.read_text())
    assert machine.startswith("cpu ") and machine.endswith(f", torch {torch.__version__}")


def test_a_higher_speed_of_training_is_remembered(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "measure_flops", lambda *_: 5e10)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert known_flops(CPU, torch.float32) == 1e11
    for reached, expected in ((9e10, 1e11), (1.5e11, 1.5e11), (1.2e11, 1.5e11)):
        devices.remember_reached(CPU, torch.float32, reached)
        assert known_flops(CPU, torch.float32) == expected


def test_processors_of_the_same_name_differ_by_their_features() -> None:
    core = "processor\t: {}\nmodel name\t: AMD EPYC\ncpu MHz\t\t: {}\nflags\t\t: {}\n\n"
    old, new = (core.format(0, 2596, flags) for flags in ("fpu avx2", "fpu avx2 avx512_bf16"))
    assert devices.name_processor(old).startswith("AMD EPYC ")
    assert devices.name_processor(old) != devices.name_processor(new)
    assert devices.name_processor(old) == devices.name_processor(
        old.replace("2596", "3100") + core.format(1, 2596, "fpu avx2")
    )
    arm = "BogoMIPS\t: 50.00\nFeatures\t: fp asimd{}\n"
    assert devices.name_processor(arm.format("")) != devices.name_processor(arm.format(" bf16"))


@pytest.mark.parametrize("found", ["", "[1]", "nonsense", "null", '{"MACHINE": 3}', '{"MACHINE": {"float32": "fast"}}'])
def test_an_invalid_cache_is_replaced(found: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.mkdir()
    cache.write_text(found.replace("MACHINE", devices.name_machine(CPU)))
    monkeypatch.setattr(devices, "measure_flops", lambda *_: 5e10)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert known_flops(CPU, torch.float32) == 5e10
    assert json.loads(cache.read_text()) == {devices.name_machine(CPU): {"float32": 5e10}}


def test_other_machines_are_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.mkdir()
    cache.write_text('{"another": {"float32": 1.0}}')
    monkeypatch.setattr(devices, "measure_flops", lambda *_: 5e10)
    known_flops(CPU, torch.float32)
    assert json.loads(cache.read_text()).keys() == {"another", devices.name_machine(CPU)}


def test_a_read_only_cache_folder_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(devices, "measure_flops", lambda *_: 5e10)
    assert known_flops(CPU, torch.float32) > 0


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert devices.cache_folder() == tmp_path / ".cache" / "lilliput"


# ---- threads and memory


def test_the_number_of_threads_is_set() -> None:
    before = torch.get_num_threads()
    prepare_machine(None)
    assert torch.get_num_threads() == before
    prepare_machine(2)
    assert torch.get_num_threads() == 2
    prepare_machine(before)


def test_keep_freed_memory_can_be_called_twice() -> None:
    assert keep_freed_memory() == keep_freed_memory()


def test_memory_of_the_cpu_is_that_of_the_machine_and_the_process() -> None:
    assert device_memory(CPU) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    assert before <= (peak_memory(CPU) or 0) <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="Linux resets the peak")
def test_freed_memory_does_not_count_after_a_reset() -> None:
    """In a process of its own, because the peak of this one may be far above its memory."""
    program = (
        "import torch; from lilliput.devices import prepare_machine, reset_peak_memory\n"
        "from lilliput.studies.subprocesses import own_peak\n"
        "prepare_machine(None); held = [torch.ones(100_000) for _ in range(1000)]; high = own_peak(); del held\n"
        "reset_peak_memory(torch.device('cpu')); print(high - own_peak())"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert 300_000_000 < int(printed) < 500_000_000
    reset_peak_memory(CPU)  # here it only must not fail
