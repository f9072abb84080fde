"""Labels as classes: their order, and labels that are not in the training split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.user_errors import refused
from lilliput.data.prepare import label_classes as classes
from lilliput.data.prepare.label_classes import order_labels, write_classes


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["b", "a", "b"], ["a", "b"]),
        (["10", "9", "-1"], ["-1", "9", "10"]),
        (["10", "9", "x"], ["10", "9", "x"]),
        (["2", "02", "1"], ["1", "02", "2"]),
        (["-", "1"], ["-", "1"]),
        (["²", "1"], ["1", "²"]),
    ],
)
def test_order(labels: list[str], expected: list[str]) -> None:
    assert order_labels(labels) == expected


def files(folder: Path, **numbers: list[int]) -> tuple[dict[str, Path], dict[str, Path]]:
    sources = {split: folder / f"{split}.seen" for split in numbers}
    for split, values in numbers.items():
        sources[split].write_bytes(np.array(values, "<i4").tobytes())
    return sources, {split: folder / f"{split}.labels" for split in numbers}


def test_classes_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "PIECE", 2)
    sources, targets = files(tmp_path, train=[0, 1, 0, 2, 2], validation=[2, 2, 0])
    names, counts = write_classes(["sad", "angry", "glad"], sources, targets)
    assert names == ["angry", "glad", "sad"]
    assert counts == {"train": [1, 2, 2], "validation": [0, 2, 1]}
    assert np.fromfile(targets["train"], "<i4").tolist() == [2, 0, 2, 1, 1]
    assert np.fromfile(targets["validation"], "<i4").tolist() == [1, 1, 2]


def test_labels_outside_the_training_split_raise(tmp_path: Path) -> None:
    sources, targets = files(tmp_path, train=[0, 1], validation=[1], odd=[0, 2])
    error = refused(lambda: write_classes(["sad", "glad", "gald"], sources, targets))
    assert (error.code, error.setting) == ("data.label", "data.label_field")
    for fact in ("odd", "'gald'", "glad, sad"):
        assert fact in error.what
    assert "glad" in (error.fix or "").split()  # the nearest name
    many = [f"label {number}" for number in range(30)]
    sources, targets = files(tmp_path, train=list(range(29)), validation=[29])
    assert "and 19 more" in refused(lambda: write_classes(many, sources, targets)).what
