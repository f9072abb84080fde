"""What the machine does well, and what it is asked for and does not have."""

from __future__ import annotations

import pytest
import torch

from lilliput.devices import choose_device, choose_precision, keep_freed_memory, measure_flops, prepare_machine
from lilliput.errors import UserError


def test_auto_is_what_there_is() -> None:
    expected = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert choose_device("auto").type == expected
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there(name: str) -> None:
    if {"cuda": torch.cuda, "mps": torch.backends.mps}[name].is_available():
        pytest.skip(f"this machine has {name}")
    with pytest.raises(UserError) as told:
        choose_device(name)
    assert str(told.value) == f"there is no {name} device that torch can use here\n  try the device cpu, or auto"


def test_a_device_that_is_none() -> None:
    with pytest.raises(UserError, match="there is no kind of device 'gpu'"):
        choose_device("gpu")


def test_precision() -> None:
    cpu = torch.device("cpu")
    assert choose_precision("auto", cpu) is choose_precision("float32", cpu) is torch.float32
    assert choose_precision("float64", cpu) is torch.float64
    with pytest.raises(UserError, match="mps knows no float64"):
        choose_precision("float64", torch.device("mps"))


def test_threads_are_set_where_asked_for() -> None:
    before = torch.get_num_threads()
    prepare_machine(None)
    assert torch.get_num_threads() == before
    prepare_machine(2)
    assert torch.get_num_threads() == 2
    prepare_machine(before)


def test_keeping_memory_is_harmless_twice() -> None:
    assert keep_freed_memory() == keep_freed_memory()


def test_the_measured_speed_is_a_speed() -> None:
    assert 1e8 < measure_flops(size=128, seconds=0.01) < 1e15
