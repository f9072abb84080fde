"""The word vectors of a vocabulary: made once, kept beside the prepared data, reported.

Owns: the folder of such vectors (its key, files, manifest), when it is still good, the report, and the
settings that follow from the vectors. Does not own: files of vectors (`storage.atomic_files`, `fasttext`),
training some (`training`), finding a vector for each token (`lookup`), or the embedding (`model.layers`).

A folder holds table.npy, float32 (V, width), zero where a token has no vector; covered.npy, bool (V,); and
manifest.json with the report, the SHA-256 of both, and its own. It is written beside its place and renamed
into it.
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
TRAIN = "train"  # the source that is no file


@dataclass(frozen=True)
class Vectors:
    """One row for each token of the tokenizer; the rows of tokens that are not covered are zero."""

    table: NDArray[np.float32]  # (V, width), mapped from disk
    covered: NDArray[np.bool_]  # (V,)
    report: dict[str, Any]


def prepare_vectors(config: Config, prepared: Prepared, report: Report = silent, rebuild: bool = False) -> Vectors:
    """The vectors that the settings ask for: from the cache if they are still good, else found or trained now, also with
    `rebuild`."""
    source = config.vectors.source
    assert source is not None, "the settings ask for no vectors"
    if prepared.tokenizer.kind == "byte":
        what, fix = "word vectors need a tokenizer of words, got tokenizer.kind byte", "set tokenizer.kind to word"
        raise UserError(what, fix=fix, code="setting.conflict", setting="tokenizer.kind")
    file = None if source == TRAIN else open_vectors(Path(source))
    if file is not None and config.vectors.width not in (None, file.width):
        what = f"vectors.width is {config.vectors.width:,}, but the vectors of the file have {file.width:,} numbers"
        fix = "set vectors.width to none, which takes the width of the file"
        raise UserError(what, source, fix=fix, code="setting.conflict", setting="vectors.width")
    recipe = _recipe(config, prepared)
    cache = Path(config.data.cache)
    # A file that changed takes the place of what was made from it before.
    key = {name: value for name, value in recipe.items() if name != "stamp"}
    folder = cache / f"vectors-{sha256(canonical(key)).hexdigest()[:16]}"
    if not rebuild and (found := _read(folder, recipe)):
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(cache / f"{folder.name}.lock"):
            found = None if rebuild else _read(folder, recipe)
            return found or _make(config, prepared, recipe, file, folder, report)
    except OSError as error:  # mistakes of the source are UserErrors by now
        raise cannot_write(error, folder) from error


def expected_width(source: str) -> int:
    """The width of the vectors of a source, from its first bytes."""
    return WIDTH if source == "train" else open_vectors(Path(source)).width


def fit_vectors(config: Config, vectors: Vectors) -> Config:
    """The settings with what only the vectors tell: their width, and how many rows are to be learned beside them.

    Rows of a table that is frozen are learned in a table of their own; a table that is tuned needs none. The model's
    vocabulary may be larger than the tokenizer's; its further tokens have no vector.
    """
    assert config.model.vocab_size is not None, "the vocabulary is fitted first"
    learned = config.vectors.frozen and config.vectors.uncovered == "learned"
    rows = config.model.vocab_size - int(vectors.covered.sum()) if learned else 0
    if config.vectors.rows not in (None, rows):
        what = f"vectors.rows is {config.vectors.rows:,}, but {rows:,} rows have no vector and must be learned"
        fix = "set vectors.rows to none, which takes the number of such rows"
        raise UserError(what, fix=fix, code="setting.conflict", setting="vectors.rows")
    return replace(config, {"vectors.width": vectors.table.shape[1], "vectors.rows": rows})


def _recipe(config: Config, prepared: Prepared) -> dict[str, Any]:
    """Everything that decides table and report. What becomes of uncovered rows is the model's, and not in here."""
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
    """The caller holds the lock of this key, so leftovers of a killed process can go."""
    words, train = words_of(prepared.tokenizer), prepared.split("train")
    if file is None:
        file = train_vectors(train, words, config.vectors.width, config.vectors.epochs, report)
    lookup = look_up(file, words, config.vectors, report)
    if not lookup.covered.any():
        few = ", ".join([word for word in words if word is not None][:5])
        what = f"no word of the vocabulary has a vector ({few} ...)"
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
        what, fix = "the file changed while it was read", "run it again when the file is complete"
        raise UserError(what, about["source"], fix=fix, code="data.changed", setting="vectors.source")
    _write(folder, recipe, lookup, about)
    found = _read(folder, recipe)
    assert found is not None, "what was just written can be read"
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
    """The folder if it is whole and was made from just this, else None."""
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
