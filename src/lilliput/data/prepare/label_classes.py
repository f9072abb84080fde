"""The labels of documents become the classes of a classifier.

Owns: the order of classes, and refusing a label that was never trained on. Does not own: where a label stands
in a source (`corpora`), or the files (`work_folder` wrote the labels by their first use, `prepare` says where
the classes go).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lilliput.data.prepare.token_files import LABELS
from lilliput.errors import UserError, nearest

PIECE = 1 << 20
MOST_TOLD = 10


def order_labels(labels: Iterable[str]) -> list[str]:
    """Class i is the i-th name: by the alphabet, or by number where all are whole numbers (2 before 10)."""
    names = sorted(set(labels))
    if all(name.removeprefix("-").isdecimal() for name in names):
        names.sort(key=lambda name: (int(name), name))
    return names


def write_classes(
    seen: list[str], sources: Mapping[str, Path], targets: Mapping[str, Path]
) -> tuple[list[str], dict[str, list[int]]]:
    """The names of the classes, and how many documents of each split have each of them.

    `sources` hold for each split the labels as numbers into `seen`; `targets` get the classes. Raises where a split
    other than the training split has a label that is no class.
    """
    counts = {split: _count(path, len(seen)) for split, path in sources.items()}
    names = order_labels(label for label, count in zip(seen, counts["train"], strict=True) if count)
    place = {name: index for index, name in enumerate(names)}
    for split, found in counts.items():
        for label, count in zip(seen, found, strict=True):
            if count and label not in place:
                raise _unknown_label(split, label, names)
    classes = np.array([place.get(label, -1) for label in seen], LABELS)
    for split, path in sources.items():
        numbers = np.memmap(path, LABELS, mode="r")
        with open(targets[split], "wb") as file:
            for start in range(0, len(numbers), PIECE):
                file.write(classes[numbers[start : start + PIECE]].tobytes())
            file.flush()
            os.fsync(file.fileno())
    ordered = {split: [int(found[seen.index(name)]) for name in names] for split, found in counts.items()}
    return names, ordered


def _count(path: Path, labels: int) -> NDArray[np.int64]:
    numbers = np.memmap(path, LABELS, mode="r")
    total = np.zeros(labels, np.int64)
    for start in range(0, len(numbers), PIECE):
        total += np.bincount(numbers[start : start + PIECE], minlength=labels)
    return total


def _unknown_label(split: str, label: str, names: list[str]) -> UserError:
    known = ", ".join(names[:MOST_TOLD]) + (f" and {len(names) - MOST_TOLD:,} more" if len(names) > MOST_TOLD else "")
    what = f"the {split} split has the label {label!r}, which the training split does not have; it has {known}"
    meant = nearest(label, names)
    fix = f"change the label to {meant}" if meant else "change the label, or add it to the training split"
    return UserError(what, None, fix=fix, code="data.label", setting="data.label_field")
