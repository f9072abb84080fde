"""Convert the labels of documents to the classes of a classifier.

Owns: the order of classes, and the error for a label that is not in the training split. Does not own: reading labels
(`corpora`) or the paths of files (`prepare`, `work_folder`).
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
MOST_LISTED = 10


def order_labels(labels: Iterable[str]) -> list[str]:
    """Return the names of the classes in alphabetical order, or in numerical order if all are integers."""
    names = sorted(set(labels))
    if all(name.removeprefix("-").isdecimal() for name in names):
        names.sort(key=lambda name: (int(name), name))
    return names


def write_classes(
    seen: list[str], sources: Mapping[str, Path], targets: Mapping[str, Path]
) -> tuple[list[str], dict[str, list[int]]]:
    """Write the classes of all documents; return the names of the classes and the documents of each class by split.

    `sources`: files by split with each document's label as an index into `seen`. `targets`: files to write. Raises
    UserError if another split has a label that the training split lacks.
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
    known = ", ".join(names[:MOST_LISTED]) + (
        f" and {len(names) - MOST_LISTED:,} more" if len(names) > MOST_LISTED else ""
    )
    what = f"labels of the {split} split must be in the training split (got {label!r}, expected one of {known})"
    meant = nearest(label, names)
    fix = f"replace the label by {meant}" if meant else "correct the label, or add it to the training split"
    return UserError(what, None, fix=fix, code="data.label", setting="data.label_field")
