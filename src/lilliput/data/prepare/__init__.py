"""Prepare a corpus: write its documents as token files to a cache, and reuse them while nothing changes.

Owns: the cache key, its validity, and the order of the steps: hash the sources, fit the tokenizer, encode in one pass,
assign the classes, seal the folder. Does not own: the steps themselves (`corpus_pass`, `encoding`, `work_folder`,
`duplicates`), or the format of a finished folder (`token_files`).

The result is identical, byte for byte, for any number of workers and of interruptions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import tokenizers as library
from numpy.typing import NDArray

from lilliput.data.corpora import STORYBOOK, Corpus, open_corpus
from lilliput.data.duplicates import count_exact, find_dropped
from lilliput.data.prepare import corpus_pass
from lilliput.data.prepare.corpus_pass import CorpusPass, Mark, OtherDocuments, training_texts
from lilliput.data.prepare.encoding import Encoders, usable_cores
from lilliput.data.prepare.label_classes import write_classes
from lilliput.data.prepare.token_files import (
    FORMAT,
    HASHES,
    Prepared,
    canonical,
    digest,
    read_prepared,
    seal,
    stamp,
    token_type,
    unseal,
)
from lilliput.data.prepare.work_folder import WorkFolder
from lilliput.data.progress import Report, silent, with_progress
from lilliput.data.tokenizers import Tokenizer, learns, make_tokenizer
from lilliput.errors import UserError
from lilliput.settings.tree import NORMALISATION, Config, DataSettings
from lilliput.storage.atomic_files import clean_leftovers, free_bytes, put_folder, sync_folder, write_flushed

# Settings that do not change the tokens: the cache folder, the number of workers, the windows of batches.
IRRELEVANT = ("cache", "workers", "windows")


def prepare(
    config: Config,
    report: Report = silent,
    tokenizer: Tokenizer | None = None,
    rebuild: bool = False,
    build: bool = True,
) -> Prepared:
    """Return the prepared corpus of the settings from the cache; build it if it is missing, outdated or `rebuild` is set.

    Without `build`, a missing or outdated one raises an error. `tokenizer` is used unchanged (fine-tuning). By default the
    settings decide; it is fitted to the training split only.
    """
    corpus = open_corpus(config.data)
    if tokenizer is None and not learns(config.tokenizer):
        tokenizer = make_tokenizer(config.tokenizer, ())
    recipe = _recipe(config, tokenizer)
    cache = Path(config.data.cache)
    folder = cache / hashlib.sha256(canonical(recipe)).hexdigest()[:16]
    # Without the lock first, so that a read-only cache works.
    if not rebuild and (found := _reuse(folder, recipe, corpus.sources, report)):
        _tidy(folder)
        return found
    if not build:
        raise UserError("the data is not prepared", str(cache), fix="run lilliput prepare", code="data.not-prepared")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(_lock_place(folder), report):
            if not rebuild and (found := _reuse(folder, recipe, corpus.sources, report)):
                return found  # another process built it in the meantime
            return _build(Job(config, corpus, recipe, folder, tokenizer, report), anew=rebuild)
    except OSError as error:
        # Errors in sources are UserErrors already; the rest concerns the cache.
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed, free = 2 * corpus.size, free_bytes(cache)  # a token has at least one byte of text
            what = f"the disk is full: prepared data requires up to {needed:,} bytes (got {free:,} free)"
            fix = "free disk space, or set data.cache to another folder"
            raise UserError(what, str(cache), fix=fix, code="file.not-written", setting="data.cache") from error
        what = f"cannot write prepared data to {cache}: {error.strerror or error}"
        fix = "set data.cache to another folder"
        where = str(error.filename or cache)
        raise UserError(what, where, fix=fix, code="file.not-written", setting="data.cache") from error


# The key ---------------------------------------------------------------------------------------------------------------


def _recipe(config: Config, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return everything that determines the tokens, except the content of files: the cache key."""
    if tokenizer is not None:
        settings: dict[str, Any] = {"sha256": tokenizer.sha256}
    elif config.tokenizer.kind == "bpe":
        settings = {name: getattr(config.tokenizer, name) for name in ("kind", "vocab_size", *NORMALISATION)}
    else:
        settings = dataclasses.asdict(config.tokenizer)
        del settings["vocab_size"]
    data = _data_recipe(config.data)
    return {"data": data, "tokenizer": settings, "tokenizers": library.__version__, "format": FORMAT}


def _data_recipe(settings: DataSettings) -> dict[str, Any]:
    found = dataclasses.asdict(settings)
    for name in IRRELEVANT:
        del found[name]
    tests = [test.partition("=") for test in settings.tests]
    sources = [settings.source, settings.validation_source, *(source for _, _, source in tests)]
    found["source"], found["validation_source"] = _absolute(settings.source), _absolute(settings.validation_source)
    found["files"] = list(settings.files)
    found["tests"] = [[name, _absolute(source)] for name, _, source in tests]
    drawn = settings.validation_source is None
    if not drawn or settings.source == STORYBOOK:
        found["validation_share"] = None
    if not drawn and STORYBOOK not in sources:
        found["seed"] = None
    return found


def _absolute(source: str | None) -> str | None:
    """Return the absolute path of a source. Names of data sets and missing paths are unchanged."""
    if source is None or source == STORYBOOK:
        return source
    path, mark, function = source.rpartition(".py:")
    if mark:
        return f"{Path(f'{path}.py').absolute()}:{function}"
    return str(Path(source).absolute()) if Path(source).exists() else source


def _reuse(folder: Path, recipe: dict[str, Any], sources: list[Path], report: Report) -> Prepared | None:
    if (folder / "manifest.json").exists():
        report("checking prepared data", 0, None)
    return read_prepared(folder, recipe, sources)


def _locked(path: Path, report: Report) -> contextlib.AbstractContextManager[object]:
    """Lock the folder: one process prepares, the others wait and use the result."""
    lock = filelock.FileLock(path)
    try:
        return lock.acquire(timeout=0)
    except filelock.Timeout:
        report("waiting for another process to prepare the same data", 0, None)
        return lock.acquire()


def _tidy(folder: Path) -> None:
    """Remove the unfinished work of a killed process, if no other process holds the lock and permissions allow it."""
    work = _work_place(folder)
    if work.exists():
        with contextlib.suppress(filelock.Timeout, OSError), filelock.FileLock(_lock_place(folder), timeout=0):
            shutil.rmtree(work, ignore_errors=True)


def _work_place(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.partial")


def _lock_place(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


# The work ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One preparation: what is prepared, and the target folder."""

    config: Config
    corpus: Corpus
    recipe: dict[str, Any]
    folder: Path
    tokenizer: Tokenizer | None  # None: fit one
    report: Report


def _build(job: Job, anew: bool) -> Prepared:
    """Build the folder, or resume an interrupted preparation. The caller holds the lock of this key."""
    clean_leftovers(job.folder.parent, job.folder.name)
    place = _work_place(job.folder)
    work = None if anew else WorkFolder.resume(place, job.recipe, job.corpus.sources)
    if work is None:
        work = WorkFolder.begin(place, job.recipe, [_fingerprint(path, job.report) for path in job.corpus.sources])
    elif work.mark.documents:
        job.report(f"resuming after {work.mark.characters / 1e6:,.0f} MB", 0, 0)
    try:
        tokenizer, dropped = _choose_tokenizer(job, work)
        manifest = seal(_encode(job, work, tokenizer, dropped))
        write_flushed(work.files / "manifest.json", manifest)
        sync_folder(work.files)
        put_folder(work.files, job.folder)  # open memory maps of replaced files stay valid
    except OtherDocuments:
        work.abandon(enough=sys.maxsize)
        return _build(job, anew=True)
    except BaseException:
        if work.abandon(enough=corpus_pass.SHARD):
            job.report("stopped; the finished part is kept, run the same command again to resume", 0, 0)
        raise
    work.remove()
    clean_leftovers(job.folder.parent, job.folder.name)
    return Prepared(job.folder, unseal(manifest))


def _choose_tokenizer(job: Job, work: WorkFolder) -> tuple[Tokenizer, NDArray[np.int64]]:
    """Return the tokenizer and the positions of dropped documents. The tokenizer is not fitted to dropped documents."""
    kind = job.config.data.drop_duplicates
    dropped = work.dropped
    if dropped is None:
        dropped = np.zeros(0, np.int64) if kind is None else find_dropped(job.corpus, kind, job.report, work.folder)
        work.keep_dropped(dropped)
    tokenizer = work.tokenizer
    if tokenizer is not None:
        return tokenizer, dropped
    if job.tokenizer is not None:
        work.keep_tokenizer(job.tokenizer, read=0)
        return job.tokenizer, dropped
    characters = 0

    def count(phase: str, done: int, total: int | None) -> None:
        nonlocal characters
        characters = done
        job.report(phase, done, total)

    texts = with_progress(training_texts(job.corpus, dropped), "fitting the tokenizer", job.corpus.size or None, count)
    tokenizer = make_tokenizer(job.config.tokenizer, texts)
    work.keep_tokenizer(tokenizer, characters)
    return tokenizer, dropped


def _encode(job: Job, work: WorkFolder, tokenizer: Tokenizer, dropped: NDArray[np.int64]) -> dict[str, Any]:
    """Write all files except the manifest; return the manifest."""
    corpus, settings = job.corpus, job.config.data
    found = CorpusPass(corpus, dropped)
    work.open_splits(corpus.splits, tokenizer, settings.labelled)
    with Encoders(tokenizer, settings.workers or usable_cores()) as encoders:
        for task, batch in encoders.run(found.tasks(work.mark, job.report)):
            if isinstance(task, Mark):
                work.keep_splits(task)
            elif batch is not None:
                work.splits[task.split].append(batch, task)
                done = sum(split.figures.bytes for split in work.splits.values())
                job.report("tokenizing", done, _total(done, corpus))
    work.close_splits()
    for name, split in work.splits.items():
        if not split.figures.tokens:
            what = f"the {name} split contains no {'tokens' if split.figures.documents else 'documents'}"
            raise UserError(what, corpus.name, fix="add text to the source", code="data.empty", setting="data.source")
    done = sum(split.figures.bytes for split in work.splits.values())
    job.report("tokenizing", done, done)
    for path, entry in zip(corpus.sources, work.sources, strict=True):
        if stamp(path) != entry["stamp"]:
            what, fix = "the file changed while it was read", "wait until the file is complete, then run it again"
            raise UserError(what, str(path), fix=fix, code="data.changed", setting="data.source")
    return _describe(job, work, tokenizer, found)


def _total(done: int, corpus: Corpus) -> int | None:
    """Return the estimated total bytes of text; None if unknown."""
    return max(done, corpus.size) if corpus.size else None


def _describe(job: Job, work: WorkFolder, tokenizer: Tokenizer, found: CorpusPass) -> dict[str, Any]:
    """Return the manifest of the complete files."""
    names = job.corpus.splits
    splits = {name: work.splits[name].figures.summary(tokenizer.ends) for name in names}
    for name, figures in splits.items():
        figures |= {"empty": found.empty[name], "dropped": found.dropped[name]}
    labels = None
    if job.config.data.labelled:
        sources, targets = ({name: place / f"{name}.labels" for name in names} for place in (work.folder, work.files))
        labels, counts = write_classes(list(found.labels), sources, targets)
        for name in names:
            splits[name]["labels"] = counts[name]
    hashes = {name: np.memmap(work.files / f"{name}.hashes", HASHES, mode="r") for name in names}
    about = ("kind", "sha256", "vocab_size", "end", "ends", "lossy")
    return {
        "format": FORMAT,
        "recipe": job.recipe,
        "source": job.corpus.describe,
        "sources": work.sources,
        "tokenizer": {name: getattr(tokenizer, name) for name in about},
        "dtype": token_type(tokenizer.vocab_size),
        "order": list(names),
        "labels": labels,
        "splits": splits,
        "duplicates": count_exact(hashes),
        "files": {
            path.name: {"size": path.stat().st_size, "sha256": digest(path)}
            for path in sorted(work.files.iterdir())
            if path.name != "manifest.json"  # left by a process that was killed just before the end
        },
    }


def _fingerprint(path: Path, report: Report) -> dict[str, Any]:
    try:
        found = stamp(path)
        report("hashing the source", 0, found[0] or None)  # 0 of 0 would be a note
        entry = {"path": str(path.absolute()), "size": found[0], "stamp": found, "sha256": digest(path)}
        report("hashing the source", found[0], found[0] or None)
        return entry
    except OSError as error:
        what = f"cannot read the file: {error.strerror}"
        raise UserError(what, str(path), fix="check its permissions", code="file.unreadable") from error
