"""N-gram counts of a training split, kept in a file next to the prepared data.

Owns: `count_training`, which reads the file or counts, the content of the file, and its validity. Does not own: the counts
(`kneser_ney`), or the token files (`data.prepare`).

`ngrams-<key>.npz` in the folder of prepared data contains NumPy arrays (no pickle), the order and vocabulary size, and a
recipe: everything that determines the counts. ZIP checks the CRC-32 of each array. A file that is missing, damaged or of
another recipe is replaced. Small texts are counted again each time, which takes less than a second or two.
"""

from __future__ import annotations

import json
import os
import zipfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lilliput.data.ngrams.kneser_ney import MOST_TOKENS, Level, NGrams, lay_out
from lilliput.data.packed_windows import Integers
from lilliput.data.prepare.token_files import Prepared, canonical
from lilliput.data.progress import Report, silent
from lilliput.storage.atomic_files import clean_leftovers, sync_folder, temporary_path

FORMAT = 1
WORTH_SAVING = 1_000_000  # tokens, which are counted in about 1.5 s


def count_training(prepared: Prepared, vocab_size: int, order: int, report: Report = silent) -> NGrams:
    """Return the n-gram counts of the training split, or of its first `MOST_TOKENS` tokens."""
    train, start = prepared.split("train"), prepared.tokenizer.start
    recipe = {"format": FORMAT, "data": prepared.fingerprint, "start": start, "most": MOST_TOKENS}
    recipe |= {"vocab_size": vocab_size, "order": order}
    place = prepared.folder.parent / f"ngrams-{sha256(canonical(recipe)).hexdigest()[:16]}.npz"
    if (found := read_counts(place, recipe)) is not None:
        return found
    report("counting n-grams", 0, None)
    counts = NGrams(lay_out(train, start, MOST_TOKENS), vocab_size, order)
    if train.predictions >= WORTH_SAVING:
        with suppress(OSError):  # a read-only or full disk: they are counted again
            write_counts(place, counts, recipe)
    return counts


def write_counts(place: Path, counts: NGrams, recipe: dict[str, Any]) -> None:
    """Write the file atomically."""
    arrays: dict[str, Any] = {f"before_{number}": pack(part) for number, part in enumerate(counts.before)}
    for number, level in enumerate(counts.levels):
        arrays |= {f"{name}_{number}": pack(part) for name, part in level._asdict().items()}
    arrays["recipe"] = np.array(json.dumps(recipe))
    clean_leftovers(place.parent, place.name)
    temporary = temporary_path(place)
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
        sync_folder(place.parent)
    finally:
        with suppress(OSError):
            temporary.unlink()


def read_counts(place: Path, recipe: dict[str, Any]) -> NGrams | None:
    """Return the counts in the file; None if it is missing, damaged or of another recipe."""
    try:
        with np.load(place) as saved:
            if json.loads(str(saved["recipe"])) != recipe:
                return None
            arrays = {name: saved[name].astype(np.int64) for name in saved.files if name != "recipe"}
        order = range(recipe["order"])
        levels = [Level(**{name: arrays[f"{name}_{number}"] for name in Level._fields}) for number in order]
        before = [arrays[f"before_{number}"] for number in order[:-1]]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return NGrams.from_levels(
        [level._replace(rests=int(level.rests)) for level in levels], before, recipe["vocab_size"]
    )


def pack(values: Integers | int) -> NDArray[Any]:
    """Return numbers, all 0 or more, in the smallest type that holds them: most counts need one byte instead of eight."""
    found = np.asarray(values)
    return found.astype(np.min_scalar_type(found.max(initial=0)))
