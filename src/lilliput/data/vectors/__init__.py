"""Word vectors of a vocabulary, cached with the prepared data.

Owns: the cache folder of the vectors (key, files, manifest), its validity, the report, and the settings that follow
from the vectors. Does not own: vector files (`vector_files`, `fasttext_format`), training (`fasttext_training`),
finding a vector for each token (`lookup`), or the embedding (`model.layers`).

A folder contains table.npy, float32 (V, width), zero for tokens without a vector; covered.npy, bool (V,); and
manifest.json with the report, the SHA-256 of both files and its own. It is written under a temporary name and renamed.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from numpy.typing import NDArray

from lilliput.data.prepare.token_files import Prepared, canonical, digest, seal, stamp, unseal
from lilliput.data.progress import Report, silent
from lilliput.data.vectors.fasttext_training import WIDTH, train_vectors
from lilliput.data.vectors.lookup import (
    Lookup,
    count_tokens,
    coverage,
    look_up,
    most_frequent_uncovered,
    neighbours,
    words_of,
)
from lilliput.data.vectors.vector_files import VectorFile, open_vectors
from lilliput.errors import UserError
from lilliput.settings.loading import replace
from lilliput.settings.tree import Config
from lilliput.storage.atomic_files import (
    cannot_write,
    clean_leftovers,
    put_folder,
    sync_folder,
    temporary_path,
    write_flushed,
)

FORMAT = 1
TRAIN = "train"  # the value of vectors.source that is not a file


@dataclass(frozen=True)
class Vectors:
    """One row for each token of the tokenizer; rows of tokens that are not covered are zero."""

    table: NDArray[np.float32]  # (V, width), memory-mapped
    covered: NDArray[np.bool_]  # (V,)
    report: dict[str, Any]


def prepare_vectors(config: Config, prepared: Prepared, report: Report = silent, rebuild: bool = False) -> Vectors:
    """Return the vectors of the settings from the cache, or read or train them if it has none or `rebuild` is set."""
    source = config.vectors.source
    assert source is not None, "vectors.source is not set"
    if prepared.tokenizer.kind == "byte":
        what, fix = "word vectors require a tokenizer of words (got byte)", "set tokenizer.kind to word"
        raise UserError(what, fix=fix, code="setting.conflict", setting="tokenizer.kind")
    file = None if source == TRAIN else open_vectors(Path(source))
    if file is not None and config.vectors.width not in (None, file.width):
        what = f"vectors.width must be {file.width:,}, the width of the file (got {config.vectors.width:,})"
        fix = "set vectors.width to none, which uses the width of the file"
        raise UserError(what, source, fix=fix, code="setting.conflict", setting="vectors.width")
    recipe = _recipe(config, prepared)
    cache = Path(config.data.cache)
    # Without the stamp: vectors of a changed file replace the vectors of its earlier version.
    key = {name: value for name, value in recipe.items() if name != "stamp"}
    folder = cache / f"vectors-{sha256(canonical(key)).hexdigest()[:16]}"
    if not rebuild and (found := _read(folder, recipe)):
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(cache / f"{folder.name}.lock"):
            found = None if rebuild else _read(folder, recipe)
            return found or _make(config, prepared, recipe, file, folder, report)
    except OSError as error:  # errors in the source are UserErrors already
        raise cannot_write(error, folder) from error


def expected_width(source: str) -> int:
    """Return the width of the vectors of a source, from its first bytes."""
    return WIDTH if source == "train" else open_vectors(Path(source)).width


def fit_vectors(config: Config, vectors: Vectors) -> Config:
    """Return the settings with vectors.width and vectors.rows set.

    If the table is frozen, the rows without a vector are learned in a second table; `rows` is its size. The model's
    vocabulary may be larger than the tokenizer's; the additional tokens have no vector.
    """
    assert config.model.vocab_size is not None, "the vocabulary is fitted first"
    learned = config.vectors.frozen and config.vectors.uncovered == "learned"
    rows = config.model.vocab_size - int(vectors.covered.sum()) if learned else 0
    if config.vectors.rows not in (None, rows):
        what = f"vectors.rows must be {rows:,}, the number of tokens without a vector (got {config.vectors.rows:,})"
        fix = "set vectors.rows to none, which uses this number"
        raise UserError(what, fix=fix, code="setting.conflict", setting="vectors.rows")
    return replace(config, {"vectors.width": vectors.table.shape[1], "vectors.rows": rows})


def _recipe(config: Config, prepared: Prepared) -> dict[str, Any]:
    """Return everything that determines the table and the report. vectors.uncovered concerns only the model."""
    settings, source = config.vectors, config.vectors.source
    recipe: dict[str, Any] = {"format": FORMAT, "case": settings.case, "apostrophes": settings.apostrophes}
    recipe |= {"tokenizer": prepared.tokenizer.sha256, "data": prepared.fingerprint}
    if source == TRAIN:
        return {**recipe, "epochs": settings.epochs, "width": settings.width, "gensim": _gensim_version()}
    assert source is not None
    path = Path(source).absolute()
    return {**recipe, "source": str(path), "stamp": stamp(path)}


def _gensim_version() -> str | None:
    try:
        return metadata.version("gensim")
    except metadata.PackageNotFoundError:
        return None


def _make(
    config: Config, prepared: Prepared, recipe: dict[str, Any], file: VectorFile | None, folder: Path, report: Report
) -> Vectors:
    """Compute and write the vectors. The caller holds the lock of the folder."""
    words, train = words_of(prepared.tokenizer), prepared.split("train")
    if file is None:
        file = train_vectors(train, words, config.vectors.width, config.vectors.epochs, report)
    lookup = look_up(file, words, config.vectors, report)
    if not lookup.covered.any():
        few = ", ".join([word for word in words if word is not None][:5])
        what = f"no word of the vocabulary has a vector in the source (such as {few})"
        fix = "use vectors of the text's language, and set vectors.case to true"
        raise UserError(what, config.vectors.source, fix=fix, code="vectors.coverage", setting="vectors.source")
    counts = count_tokens(train.tokens, len(words))
    about: dict[str, Any] = {"source": config.vectors.source, "kind": file.kind, "rows": file.rows, "width": file.width}
    about |= coverage(lookup, words, counts, prepared.tokenizer.unknown)
    about |= {
        "uncovered": len(words) - int(lookup.covered.sum()),
        "most_frequent_uncovered": most_frequent_uncovered(lookup, words, counts),
        "neighbours": neighbours(lookup, words, counts),
        "notes": file.notes,
    }
    if "stamp" in recipe and recipe["stamp"] != stamp(Path(about["source"])):
        what, fix = "the file changed while it was read", "wait until the file is complete, then run it again"
        raise UserError(what, about["source"], fix=fix, code="data.changed", setting="vectors.source")
    _write(folder, recipe, lookup, about)
    found = _read(folder, recipe)
    assert found is not None, "the folder was just written"
    return found


def _write(folder: Path, recipe: dict[str, Any], lookup: Lookup, about: dict[str, Any]) -> None:
    clean_leftovers(folder.parent, folder.name)
    work = temporary_path(folder)
    work.mkdir()
    try:
        for name, values in (("table.npy", lookup.table), ("covered.npy", lookup.covered)):
            with open(work / name, "wb") as file:
                np.save(file, values)
                file.flush()
                os.fsync(file.fileno())
        files = {path.name: digest(path) for path in sorted(work.iterdir())}
        write_flushed(work / "manifest.json", seal({"recipe": recipe, "files": files, "report": about}))
        sync_folder(work)
        put_folder(work, folder)
        clean_leftovers(folder.parent, folder.name)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _read(folder: Path, recipe: dict[str, Any]) -> Vectors | None:
    """Return the vectors in the folder if it is complete and has this recipe, else None."""
    try:
        manifest = unseal((folder / "manifest.json").read_bytes())
        if manifest["recipe"] != recipe:
            return None
        if any(digest(folder / name) != expected for name, expected in manifest["files"].items()):
            return None
        table, covered = np.load(folder / "table.npy", mmap_mode="r"), np.load(folder / "covered.npy")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Vectors(table, covered, manifest["report"])
