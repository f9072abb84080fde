"""Vectors of a vocabulary: their report, cache and settings; training them on the training split; and memory."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from helpers.shared_data import DATA, needs_data
from helpers.user_errors import refused
from helpers.vector_files import write_model
from lilliput.data import vectors as module
from lilliput.data.prepare import prepare
from lilliput.data.prepare.token_files import Prepared
from lilliput.data.vectors import Vectors, fit_vectors, prepare_vectors
from lilliput.errors import UserErrors
from lilliput.settings.tree import Config, DataSettings, ModelSettings, TokenizerSettings, VectorSettings

STORIES = [
    "The garden was quiet. Tim saw a lantern in the garden, and the lantern was bright.",
    "A bear lost the lantern. The bear sang of the garden by the sea.",
    "Tim and the bear went home. The garden was quiet again.",
] * 4
HELD_OUT = ["The bear saw Tim.", "The garden was bright."]
ROWS = {"the": (1, 0, 0), "garden": (0, 1, 0), "lantern": (0, 0.9, 0.1), "tim": (0, 0, 1), "bear": (0.5, 0, 0.5)}


def write_stories(path: Path, stories: list[str]) -> str:
    path.write_text("\n<|endoftext|>\n".join(stories), encoding="utf-8")
    return str(path)


def write_vectors(path: Path, rows: dict[str, tuple[float, ...]] = ROWS) -> str:
    width = len(next(iter(rows.values())))
    lines = [f"{len(rows)} {width}", *(f"{word} {' '.join(map(str, row))}" for word, row in rows.items())]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def configure(folder: Path, kind: str = "word", **vectors: object) -> Config:
    data = DataSettings(
        source=write_stories(folder / "train.txt", STORIES),
        validation_source=write_stories(folder / "held-out.txt", HELD_OUT),
        cache=str(folder / "cache"),
        workers=1,
    )
    return Config(data=data, tokenizer=TokenizerSettings(kind=kind), vectors=VectorSettings(**vectors))


def make(config: Config, seen: list[str] | None = None) -> tuple[Vectors, Prepared]:
    prepared = prepare(config)
    report = (lambda phase, done, total: seen.append(phase)) if seen is not None else module.silent
    return prepare_vectors(config, prepared, report), prepared


def by_word(vectors: Vectors, prepared: Prepared) -> dict[str, np.ndarray]:
    return {prepared.tokenizer.token(index): vectors.table[index] for index in np.flatnonzero(vectors.covered)}


# From a file ----------------------------------------------------------------------------------------------------------


def test_rows_equal_the_file_and_the_report_describes_them(tmp_path: Path) -> None:
    source = write_vectors(tmp_path / "mini.vec")
    found, prepared = make(configure(tmp_path, source=source))
    rows = by_word(found, prepared)
    assert {word: tuple(row.tolist()) for word, row in rows.items()} == {
        word: tuple(np.float32(ROWS[word.lower()]).tolist())
        for word in ("The", "the", "garden", "lantern", "Tim", "bear")
    }
    assert found.table.shape == (prepared.tokenizer.vocab_size, 3)
    assert not found.table[~found.covered].any()
    for special in (prepared.tokenizer.start, prepared.tokenizer.end, prepared.tokenizer.unknown):
        assert not found.covered[special]
    report = found.report
    assert (report["source"], report["kind"], report["rows"], report["width"]) == (source, "text", 5, 3)
    text = " ".join(STORIES).replace(".", " .").replace(",", " ,").split()
    exact = sum(word in ROWS for word in text) / len(text)
    either = sum(word.lower() in ROWS for word in text) / len(text)
    assert report["occurrences"] == len(text)
    assert report["coverage"]["exact"]["tokens"] == pytest.approx(exact)
    assert report["coverage"]["case"]["tokens"] == pytest.approx(either)
    assert report["uncovered"] == int((~found.covered).sum())
    assert report["most_frequent_uncovered"][0] == [".", text.count(".")]
    assert report["neighbours"]["garden"][0][0] == "lantern"


def test_vectors_are_cached_until_something_changes(tmp_path: Path) -> None:
    config = configure(tmp_path, source=write_vectors(tmp_path / "mini.vec"))
    phases: list[str] = []

    def was_read(config: Config) -> bool:
        phases.clear()
        make(config, phases)
        return "reading vectors" in phases

    assert was_read(config)
    assert not was_read(config)
    # The treatment of uncovered rows does not change the vectors.
    assert not was_read(replace(config, vectors=replace(config.vectors, uncovered="average", frozen=False)))
    assert was_read(replace(config, vectors=replace(config.vectors, case=False)))
    write_vectors(tmp_path / "mini.vec", ROWS | {"quiet": (3, 3, 3)})
    assert was_read(config)
    assert "quiet" in by_word(*make(config))
    folders = [path for path in (tmp_path / "cache").iterdir() if path.name.startswith("vectors-") and path.is_dir()]
    assert len(folders) == 2  # the vectors of the changed file replaced the old ones
    for name in ("table.npy", "covered.npy", "manifest.json"):
        for folder in folders:
            damaged = bytearray((folder / name).read_bytes())
            damaged[-1] ^= 1
            (folder / name).write_bytes(damaged)
        assert was_read(config), name
        assert not was_read(config)


def test_a_file_that_changes_while_it_is_read_raises(tmp_path: Path) -> None:
    config = configure(tmp_path, source=write_vectors(tmp_path / "mini.vec"))
    prepared = prepare(config)

    def touch(phase: str, done: int, total: int | None) -> None:
        os.utime(tmp_path / "mini.vec", ns=(1, 1))

    error = refused(lambda: prepare_vectors(config, prepared, touch))
    assert (error.code, error.setting) == ("data.changed", "vectors.source")
    assert not list((tmp_path / "cache").glob("vectors-*/"))


def test_settings_that_follow_from_the_vectors(tmp_path: Path) -> None:
    config = configure(tmp_path, source=write_vectors(tmp_path / "mini.vec"))
    found, prepared = make(config)
    size = prepared.tokenizer.vocab_size
    config = replace(config, model=ModelSettings(vocab_size=size + 2, dim=16, heads=2, hidden=32, kv_heads=2))
    missing = int((~found.covered).sum())
    fitted = fit_vectors(config, found).vectors
    assert (fitted.width, fitted.rows) == (3, missing + 2)  # the vocabulary is larger than the tokenizer's
    assert fit_vectors(fit_vectors(config, found), found).vectors == fitted
    for changes in ({"frozen": False}, {"uncovered": "average"}):
        assert fit_vectors(replace(config, vectors=replace(config.vectors, **changes)), found).vectors.rows == 0
    wrong = replace(config, vectors=replace(config.vectors, rows=1))
    error = refused(lambda: fit_vectors(wrong, found))
    assert (error.code, error.setting) == ("setting.conflict", "vectors.rows")
    assert str(missing + 2) in error.what
    tied = replace(config, model=replace(config.model, tied=True))
    with pytest.raises(UserErrors) as caught:
        fit_vectors(tied, found)
    assert {(error.code, error.setting) for error in caught.value.errors} == {("setting.conflict", "model.tied")}


def test_conflicting_settings_raise(tmp_path: Path) -> None:
    source = write_vectors(tmp_path / "mini.vec")
    other = write_vectors(tmp_path / "other.vec", {"maison": (1, 2), "jardin": (3, 4)})
    for config, code, setting in (
        (configure(tmp_path, source=source, width=50), "setting.conflict", "vectors.width"),
        (configure(tmp_path, kind="byte", source=source), "setting.conflict", "tokenizer.kind"),
        (configure(tmp_path, source=other), "vectors.coverage", "vectors.source"),
        (configure(tmp_path, source=str(tmp_path / "mimi.vec")), "file.missing", "vectors.source"),
    ):
        error = refused(partial(make, config))
        assert (error.code, error.setting) == (code, setting)


# From the training split ----------------------------------------------------------------------------------------------


def test_vectors_are_trained_on_the_training_split_only(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    one, two = (configure(folder, source="train", width=8, epochs=2) for folder in (first, second))
    write_stories(second / "held-out.txt", ["Unheard words of a castle, and the garden by the window."] * 30)
    seen: list[str] = []
    (here, prepared), (there, _) = make(one, seen), make(two)
    assert seen.count("training vectors") == 3  # one pass to count words, then two epochs
    assert prepared.tokenizer.sha256 == prepare(two).tokenizer.sha256
    np.testing.assert_array_equal(here.table, there.table)
    assert here.report["coverage"]["exact"] == {"types": 1.0, "tokens": 1.0}
    assert here.report["width"] == here.table.shape[1] == 8
    changed = tmp_path / "third"
    changed.mkdir()
    three = configure(changed, source="train", width=8, epochs=2)
    write_stories(changed / "train.txt", [*STORIES, STORIES[0]])
    assert not np.array_equal(make(three)[0].table, here.table)


def test_trained_vectors_equal_gensims(tmp_path: Path) -> None:
    from gensim.models import FastText

    config = configure(tmp_path, source="train", width=8, epochs=2)
    found, prepared = make(config)
    sentences = [story.replace(".", " .").replace(",", " ,").split() for story in STORIES]
    theirs = FastText(vector_size=8, sg=1, min_count=1, bucket=1 << 17, workers=1, seed=1)
    theirs.build_vocab(sentences)
    theirs.train(sentences, total_words=theirs.corpus_total_words, epochs=2)
    for word, row in by_word(found, prepared).items():
        np.testing.assert_allclose(row, theirs.wv[word], rtol=0, atol=1e-6)


# Memory and real data -------------------------------------------------------------------------------------------------

CHILD = """
import sys
from pathlib import Path
from lilliput.data.vectors.vector_files import open_vectors
from lilliput.data.vectors.lookup import look_up
from lilliput.settings.tree import VectorSettings

def own():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

words = [f"word{n}" for n in range(0, 200_000, 100)]
before, most = own(), 0
def watch(phase, done, total):
    global most
    most = max(most, own())
found = look_up(open_vectors(Path(sys.argv[1])), words, VectorSettings(), watch)
watch("", 0, 0)
assert found.covered.all()
print(most - before, found.table.nbytes)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="requires /proc (Linux)")
@pytest.mark.parametrize("kind", ["text", "word2vec", "fasttext"])
def test_a_large_file_requires_little_memory(tmp_path: Path, kind: str) -> None:
    rows, width = 200_000, 100
    names = [f"word{n}".encode() for n in range(rows)]
    path = tmp_path / "large.vec"
    if kind == "text":
        with open(path, "wb") as file:
            file.write(b"%d %d\n" % (rows, width))
            row = b" ".join([b"0.125"] * width)
            file.writelines(name + b" " + row + b"\n" for name in names)
    elif kind == "word2vec":
        with open(path, "wb") as file:
            file.write(b"%d %d\n" % (rows, width))
            row = np.full(width, 0.1, "<f4").tobytes()
            file.writelines(name + b" " + row for name in names)
    else:
        write_model(path, names, np.full((rows + 100_000, width), 0.1, np.float32), bucket=100_000)
    size = path.stat().st_size
    assert size > 75_000_000
    outcome = subprocess.run([sys.executable, "-c", CHILD, str(path)], check=True, capture_output=True, text=True)
    own, table = map(int, outcome.stdout.split())
    assert own < table + 12_000_000, f"{own:,} bytes for a file of {size:,}"


@needs_data
def test_real_vectors_cover_real_stories(tmp_path: Path) -> None:
    data = DataSettings(
        source=str(DATA / "tinystories" / "train-head-2316.txt"), documents=400, cache=str(tmp_path), workers=1
    )
    source = str(DATA / "word-vectors" / "googlenews-300d-first10000.vec")
    config = Config(data=data, tokenizer=TokenizerSettings(kind="word"), vectors=VectorSettings(source=source))
    found, prepared = make(config)
    report = found.report
    assert (report["rows"], report["width"]) == (10_000, 300)
    shares = report["coverage"]
    assert 0.4 < shares["exact"]["types"] < shares["case"]["types"] <= shares["apostrophes"]["types"] < 1
    assert 0.5 < shares["exact"]["tokens"] < shares["case"]["tokens"] <= shares["apostrophes"]["tokens"] < 1
    from gensim.models import KeyedVectors

    theirs = KeyedVectors.load_word2vec_format(source, limit=2_000)
    rows = by_word(found, prepared)
    same = [word for word in rows if word in theirs]
    assert len(same) > 300
    for word in same:
        np.testing.assert_allclose(rows[word], theirs[word], rtol=0, atol=1e-6)
