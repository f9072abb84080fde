"""Duplicates: counts equal those of sets, near duplicates those of all pairs, drops their definition."""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.shared_data import DATA, needs_data
from helpers.user_errors import refused
from lilliput.data import duplicates
from lilliput.data.corpora import open_corpus
from lilliput.data.duplicates import NearDuplicates, count_exact, find_dropped, find_near, hash_text
from lilliput.kernels import minhash
from lilliput.settings.tree import DataSettings


class Text(NamedTuple):
    text: str
    label: str | None = None


@dataclass(frozen=True)
class Texts:
    """A corpus in memory, with the used part of `Corpus`'s interface."""

    rows: list[tuple[str, str]]  # split, text
    name: str = "texts"

    @property
    def splits(self) -> tuple[str, ...]:
        return ("train", "validation", *sorted({split for split, _ in self.rows} - {"train", "validation"}))

    @property
    def size(self) -> int:
        return sum(len(text.encode()) for _, text in self.rows)

    def stream(self) -> Iterator[tuple[str, Text]]:
        return ((split, Text(text)) for split, text in self.rows)


def texts(**splits: list[str]) -> Texts:
    return Texts([(split, text) for split, found in splits.items() for text in found])


def near(corpus: Texts, threshold: float = 0.8) -> NearDuplicates:
    return find_near(corpus, threshold)  # type: ignore[arg-type]


# The reference: Python's own words, sets and all pairs ---------------------------------------------------------------


def shingles(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[^\W_]+", text.lower())
    return {tuple(words[at : at + 5]) for at in range(max(1, len(words) - 4))} if words else set()


def jaccard(a: str, b: str) -> float:
    one, other = shingles(a), shingles(b)
    return len(one & other) / len(one | other) if one | other else 0.0


def edited(chance: random.Random, text: str, share: float) -> str:
    """Return the text with some words replaced, removed or repeated, and other punctuation and case."""
    words = []
    for word in text.split():
        word = word.upper() if chance.random() < 0.05 else word + chance.choice(["", "", "", ",", "!", "”"])
        if chance.random() >= share:
            words.append(word)
        elif chance.random() < 0.6:
            words += chance.choice([[word, word], [f"{word}est"]])
    return " ".join(words)


def story(chance: random.Random, words: int) -> str:
    lengths = (chance.choice("bdfgklmnprst") + chance.choice("aeiou") + chance.choice("bdgklmnprst") for _ in range(40))
    book = list(lengths)
    return " ".join(chance.choice(book) + chance.choice(["", "", "", ".", ","]) for _ in range(words)).capitalize()


@pytest.fixture(scope="module")
def edits() -> Texts:
    """Sixty stories and six versions of each, with decreasing similarity, in three splits, shuffled."""
    chance = random.Random(1)
    rows = []
    for _ in range(60):
        first = story(chance, chance.randrange(40, 300))
        versions = [first, *(edited(chance, first, share) for share in (0, 0.005, 0.01, 0.02, 0.03, 0.05))]
        rows += [(chance.choice(["train", "train", "train", "validation", "held"]), text) for text in versions]
    chance.shuffle(rows)
    return Texts(rows)


@pytest.fixture(scope="module")
def found(edits: Texts) -> NearDuplicates:
    return near(edits)


@pytest.fixture(scope="module")
def true_pairs(edits: Texts) -> dict[tuple[int, int], float]:
    """All pairs of comparable splits that share a shingle, by position."""
    sets = [shingles(text) for _, text in edits.rows]
    alike = {}
    for a, b in combinations(range(len(sets)), 2):
        splits = {edits.rows[a][0], edits.rows[b][0]}
        if (len(splits) == 1 or "train" in splits) and (both := len(sets[a] & sets[b])):
            alike[a, b] = both / len(sets[a] | sets[b])
    return alike


def test_near_duplicates_equal_those_of_all_pairs(
    found: NearDuplicates, true_pairs: dict[tuple[int, int], float]
) -> None:
    wanted = {pair for pair, similarity in true_pairs.items() if similarity >= 0.8}
    near_misses = [similarity for similarity in true_pairs.values() if 0.7 <= similarity < 0.8]
    at_threshold = [similarity for similarity in true_pairs.values() if 0.8 <= similarity < 0.85]
    assert len(wanted) > 300 and len(near_misses) > 50 and len(at_threshold) > 50  # enough pairs on both sides
    reported = {(min(a, b), max(a, b)): s for (a, b), s in zip(found.pairs.tolist(), found.similarities, strict=True)}
    assert len(reported) == len(found.pairs), "a pair is reported twice"
    assert reported.keys() <= wanted
    assert len(reported.keys() & wanted) > 0.99 * len(wanted)
    for pair, similarity in reported.items():
        assert similarity == true_pairs[pair]


def test_counts_equal_those_of_all_pairs(
    edits: Texts, found: NearDuplicates, true_pairs: dict[tuple[int, int], float]
) -> None:
    alike = {pair for pair, similarity in true_pairs.items() if similarity >= 0.8}
    split = [name for name, _ in edits.rows]
    numbers = {name: [at for at, other in enumerate(split) if other == name] for name in edits.splits}
    repeated = {b for a, b in alike if split[a] == split[b]}
    leaked = {b if split[a] == "train" else a for a, b in alike if split[a] != split[b]}
    assert edits.splits == ("train", "validation", "held")
    for name in edits.splits:
        assert found.repeated[name].tolist() == [n for n, at in enumerate(numbers[name]) if at in repeated]
        assert found.within[name] == len(repeated & set(numbers[name])) > 0
    for name in edits.splits[1:]:
        assert found.leaked[name].tolist() == [n for n, at in enumerate(numbers[name]) if at in leaked]
        assert found.across[name] == len(leaked & set(numbers[name])) > 0
    assert "train" not in found.across


def test_train_has_no_duplicates_after_dropping(edits: Texts, found: NearDuplicates) -> None:
    dropped = find_dropped(edits, "near")  # type: ignore[arg-type]
    assert dropped.tolist() == found.dropped.tolist() == sorted(set(dropped.tolist()))
    assert {edits.rows[position][0] for position in dropped} == {"train"}
    clean = near(replace(edits, rows=[row for at, row in enumerate(edits.rows) if at not in set(dropped.tolist())]))
    assert clean.within["train"] == 0
    assert set(clean.across.values()) == {0}
    assert clean.dropped.tolist() == []
    assert clean.within["held"] == found.within["held"] > 0  # evaluation splits are not changed
    # Every dropped document has a near duplicate in another split, or an earlier connected document.
    linked = {int(position) for position in found.pairs.ravel()}
    assert set(dropped.tolist()) <= linked


def test_the_first_document_of_a_chain_stays() -> None:
    """a - b - c, where a and c are not similar: b and c are dropped. If b is also in validation, only b is dropped."""
    words = [f"w{n}" for n in range(120)]
    a, b, c = (" ".join(words[at : at + 100]) for at in (0, 10, 20))
    assert jaccard(a, b) == jaccard(b, c) == 86 / 106 > 0.8 > jaccard(a, c)
    other = "something that has nothing to do with any of it"
    assert near(texts(train=[a, b, c], validation=[other])).dropped.tolist() == [1, 2]
    assert near(texts(train=[c, other, a, b], validation=["else"])).dropped.tolist() == [2, 3]
    assert near(texts(train=[a, b, c], validation=[f"{b}!"])).dropped.tolist() == [0, 1, 2]
    nearer = " ".join(words[14:110])
    assert jaccard(nearer, b) > 0.8 and jaccard(nearer, a) < 0.8 and jaccard(nearer, c) > 0.8
    assert near(texts(train=[a, b, c], validation=[nearer])).dropped.tolist() == [1, 2]
    only_b = " ".join([*words[10:46], "new", *words[47:96], "else", *words[97:110]])
    assert jaccard(only_b, b) > 0.8 > max(jaccard(only_b, a), jaccard(only_b, c))
    assert near(texts(train=[a, b, c], validation=[only_b])).dropped.tolist() == [1]


def test_equal_documents_count_as_near_duplicates() -> None:
    corpus = texts(train=["one", "two", "one", "three!", "one"], validation=["two", "two", "four"], held=["Three"])
    found = near(corpus)
    assert found.within == {"train": 2, "validation": 1, "held": 0}
    assert found.across == {"validation": 2, "held": 1}
    assert found.dropped.tolist() == [1, 2, 3, 4]
    assert found.closest == [(("train", "held"), (3, 0), 1.0, ("three!", "Three"))]
    exact = find_dropped(corpus, "exact")  # type: ignore[arg-type]
    assert exact.tolist() == [1, 2, 4]


def test_copies_of_a_leaked_document_are_leaked() -> None:
    text = " ".join(f"w{n}" for n in range(60))
    found = near(texts(train=[text, "else", text], validation=[f"{text} more", "new", f"{text} more"]))
    assert found.across == {"validation": 2}
    assert found.leaked["validation"].tolist() == [0, 2]
    assert found.dropped.tolist() == [0, 2]


def test_a_document_without_words_has_no_near_duplicates() -> None:
    found = near(texts(train=["!!!", "???", "🙂 …", "a b", "!!!"], validation=["—", "???"]))
    assert found.within == {"train": 1, "validation": 0}
    assert found.across == {"validation": 1}
    assert found.dropped.tolist() == [1, 4]
    assert near(texts(train=["!", "?"], validation=["—"])).as_json()["within"] == {"train": 0, "validation": 0}


def test_a_thousand_documents_of_one_template() -> None:
    """The number of pairs is bounded, but every document with a near duplicate is found."""
    form = (
        "Dear customer, the parcel with the number {} has been given to our driver and will be there before noon. " * 3
    )
    train, validation = [form.format(*[n] * 3) for n in range(1500)], [form.format(*[n] * 3) for n in range(-300, 0)]
    assert 0.5 < jaccard(train[0], train[1]) < 0.8
    found = near(texts(train=train, validation=validation), 0.5)
    assert found.within == {"train": 1499, "validation": 299}
    assert found.across == {"validation": 300}
    assert len(found.dropped) == 1500
    assert len(found.pairs) <= 1800 * 2 * minhash.MOST_TWINS


def test_two_runs_give_the_same_result(edits: Texts, found: NearDuplicates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "BATCH", 1000)
    again = near(edits)
    assert again.pairs.tolist() == found.pairs.tolist()
    assert again.similarities.tolist() == found.similarities.tolist()
    assert again.closest == found.closest


def test_the_closest_pairs_are_shown(edits: Texts, found: NearDuplicates) -> None:
    assert len(found.closest) == 10
    assert [pair.similarity for pair in found.closest] == sorted(found.similarities, reverse=True)[:10]
    by_split = {name: [text for split, text in edits.rows if split == name] for name in edits.splits}
    for pair in found.closest:
        first, second = (by_split[name][n] for name, n in zip(pair.splits, pair.documents, strict=True))
        assert first != second
        assert pair.openings == (first[:60], second[:60])
        assert pair.similarity == jaccard(first, second)


def test_the_report_is_json(found: NearDuplicates) -> None:
    report = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert report.keys() == {
        "within", "across", "threshold", "seconds", "megabytes_per_second", "memory_bytes", "dropped", "closest",
    }  # fmt: skip
    assert report["within"] == found.within and report["across"] == found.across
    assert report["closest"][0].keys() == {"splits", "documents", "similarity", "openings"}
    assert report["seconds"] > 0 and report["megabytes_per_second"] > 0


def test_progress_is_reported_for_two_passes(edits: Texts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "BATCH", 50_000)
    reports: list[tuple[str, int, int | None]] = []
    find_near(edits, report=lambda *progress: reports.append(progress))  # type: ignore[arg-type]
    assert list(dict.fromkeys(phase for phase, _, _ in reports)) == [
        "looking for near duplicates",
        "comparing near duplicates",
    ]
    for phase in {phase for phase, _, _ in reports}:
        done = [done for other, done, _ in reports if other == phase]
        assert len(done) > 2 and done == sorted(done)


# Signatures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("similarity", [0.2, 0.5, 0.8, 0.95])
def test_signatures_estimate_similarity(similarity: float) -> None:
    """The estimate is unbiased, and its spread is at most that of independent bytes."""
    chance = np.random.default_rng(3)
    size, pairs = 400, 300
    both = round(size * similarity)
    equal = []
    for _ in range(pairs):
        drawn = chance.integers(0, 1 << 64, size, dtype=np.uint64)
        half = both + (size - both) // 2
        shown = np.concatenate([drawn[:half], drawn[:both], drawn[half:]])
        one, other = minhash.sign(shown, np.array([half, len(shown)]))
        equal.append(int((one == other).sum()))
    expected = minhash.SIGNATURE * (similarity + (1 - similarity) / 256)
    error = (minhash.SIGNATURE * similarity * (1 - similarity) / pairs) ** 0.5
    assert abs(np.mean(equal) - expected) < 4 * error
    assert np.std(equal) < 1.2 * error * pairs**0.5
    assert abs(minhash.estimated(similarity) - expected) <= 0.5


@pytest.mark.parametrize(("threshold", "rows"), [(0.5, 3), (0.7, 6), (0.8, 8), (1.0, 8)])
def test_the_threshold_determines_the_length_of_bands(threshold: float, rows: int) -> None:
    assert minhash.rows_of_band(threshold) == rows
    assert 1 - (1 - threshold**rows) ** (minhash.SIGNATURE // rows) >= 0.99


def sets(*found: str) -> list[frozenset[int]]:
    values, ends = minhash.shingle([text.encode() for text in found])
    return [frozenset(part.tolist()) for part in np.split(values, ends)[:-1]]


@given(st.lists(st.text(alphabet="aBc1é_ .'’\n\tßдж", max_size=60), max_size=6))
def test_shingles_equal_those_of_pythons_words(found: list[str]) -> None:
    expected = [shingles(text) for text in found]
    actual = sets(*found)
    assert [len(one) for one in actual] == [len(one) for one in expected]
    for a, b in combinations(range(len(found)), 2):
        assert len(actual[a] & actual[b]) == len(expected[a] & expected[b])


def test_punctuation_case_and_line_ends_do_not_matter() -> None:
    plain = "she said i don t know where the élan went today"
    assert sets(plain) == sets("She said: “I don’t know\r\nwhere the Élan\twent — today!”")
    assert sets(plain) != sets(plain.replace("today", "yesterday"))
    assert sets("") == sets("?!") == [frozenset()]
    assert len(sets("One two")[0]) == 1 and sets("One two") == sets("one, TWO") != sets("two one")


def test_a_character_is_a_word_in_scripts_without_spaces() -> None:
    one, other = sets("今天天气很好我们去公园玩", "今天天气很好我们去公园吧")
    assert len(one) == len(other) == 12 - 4
    assert len(one & other) == 7
    assert len(sets("한국어 문장")[0]) == 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_clusters_are_connected_and_named_by_their_first(links: list[tuple[int, int]]) -> None:
    cluster = minhash.clusters(31, np.array(links, dtype=np.int64).reshape(-1, 2)).tolist()
    reached = [{at} for at in range(31)]
    for _ in range(31):
        for a, b in links:
            reached[a] |= reached[b]
            reached[b] |= reached[a]
    assert cluster == [min(all_of) for all_of in reached]


# Exact duplicates ----------------------------------------------------------------------------------------------------

SMALL = st.lists(st.integers(0, 12).map(lambda n: n * 0x1555555555555555), max_size=40)


@given(SMALL, SMALL, SMALL, st.sampled_from([1, 3, 7, 1 << 22]))
def test_exact_counts_equal_those_of_sets(train: list[int], validation: list[int], held: list[int], part: int) -> None:
    splits = {"train": train, "validation": validation, "held": held}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "PART", part)
        found = count_exact({split: np.array(values, dtype=np.uint64) for split, values in splits.items()})
    assert found["within"] == {split: len(values) - len(set(values)) for split, values in splits.items()}
    assert found["across"] == {split: sum(v in set(train) for v in splits[split]) for split in ("validation", "held")}


def test_exact_counts_of_files_take_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the hashes are equal: 6.4 MB on disk, processed in parts of 160 kB."""
    import tracemalloc

    monkeypatch.setattr(duplicates, "PART", 20_000)
    values = np.random.default_rng(1).integers(0, 1 << 64, 400_000, dtype=np.uint64)
    (tmp_path / "train").write_bytes(np.concatenate([values, np.full_like(values, values[7])]).tobytes())
    (tmp_path / "validation").write_bytes(values[:1000].tobytes())
    maps = {split: np.memmap(tmp_path / split, dtype="<u8", mode="r") for split in ("train", "validation")}
    tracemalloc.start()
    try:
        assert count_exact(maps) == {"within": {"train": 400_000, "validation": 0}, "across": {"validation": 1000}}
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@given(st.lists(st.tuples(st.sampled_from(["train", "validation", "held"]), st.sampled_from("abcdefgh")), max_size=30))
def test_exact_duplicates_are_dropped_from_train_only(rows: list[tuple[str, str]]) -> None:
    held = {text for split, text in rows if split != "train"}
    seen: set[str] = set()
    expected = []
    for at, (split, text) in enumerate(rows):
        if split == "train":
            if text in held | seen:
                expected.append(at)
            seen.add(text)
    corpus = Texts(rows)
    assert find_dropped(corpus, "exact").tolist() == expected  # type: ignore[arg-type]
    assert near(corpus).dropped.tolist() == expected  # one word each: near duplicates are equal


def test_the_hash_of_a_text_is_pinned() -> None:
    """Token files on disk contain it."""
    assert hash_text(b"One day").hex() == "35a9e21575fe57ba"


# Errors ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [0.0, 0.4999, 1.01, float("nan")])
def test_a_threshold_is_a_similarity(threshold: float) -> None:
    assert refused(lambda: near(texts(train=["a"], validation=["b"]), threshold)).code == "setting.value"


def test_a_missing_folder_raises(tmp_path: Path) -> None:
    corpus = texts(train=["a b c", "a b c!"], validation=["d"])
    error = refused(lambda: find_near(corpus, folder=tmp_path / "nowhere"))  # type: ignore[arg-type]
    assert error.code == "file.not-written"
    assert str(tmp_path / "nowhere") in (error.where or "")


def test_temporary_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[object] = []
    plain = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: (used.append(dir), plain(dir=dir))[1])
    corpus = texts(train=["a b c", "a b c!"], validation=["d"])
    assert find_near(corpus, folder=tmp_path).within["train"] == 1  # type: ignore[arg-type]
    assert used == [tmp_path, tmp_path]
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_changes_between_the_passes_raises() -> None:
    @dataclass(frozen=True)
    class Changing(Texts):
        def stream(self) -> Iterator[tuple[str, Text]]:
            yield from list(super().stream())
            self.rows.pop()

    corpus = Changing([("validation", "d"), ("train", "a b c"), ("train", "a b c!")])
    assert refused(lambda: near(corpus)).code == "data.changed"


def test_an_empty_corpus_has_no_duplicates() -> None:
    found = near(texts())
    assert found.within == {"train": 0, "validation": 0}
    assert found.pairs.shape == (0, 2) and found.similarities.shape == (0,) and found.dropped.shape == (0,)


# Real corpora --------------------------------------------------------------------------------------------------------


def test_positions_are_those_of_the_stream_of_a_real_corpus(tmp_path: Path) -> None:
    chance = random.Random(7)
    stories = [story(chance, 120) for _ in range(40)]
    rows = [*stories, stories[3], edited(chance, stories[5], 0.005), stories[8].upper(), stories[0]]
    (tmp_path / "train.txt").write_text("\n<|endoftext|>\n".join(rows), "utf-8")
    (tmp_path / "author.txt").write_text(f"{stories[1]}\n{stories[2]} and more\n", "utf-8")
    source, author = str(tmp_path / "train.txt"), str(tmp_path / "author.txt")
    settings = DataSettings(source=source, validation_share=0.25, tests=(f"author={author}",))
    corpus = open_corpus(replace(settings, separator="endoftext"))
    assert corpus.splits == ("train", "validation", "author")
    found = find_near(corpus)
    stream = [(split, document.text) for split, document in corpus.stream()]
    reference = near(Texts(stream))
    assert found.dropped.tolist() == reference.dropped.tolist() == find_dropped(corpus, "near").tolist()
    assert (found.within, found.across) == (reference.within, reference.across)
    assert len(found.dropped) > 0 and sum(found.across.values()) > 0
    assert {stream[position][0] for position in found.dropped} == {"train"}


@needs_data
def test_the_stories_at_hand_are_clean_and_the_speeches_are_not() -> None:
    """According to an inverted index over all pairs, no two stories have a similarity of 0.4 or more."""
    folder = DATA / "tinystories"
    stories = DataSettings(source=str(folder / "mixed-train.txt"), validation_source=str(folder / "mixed-heldout.txt"))
    found = find_near(open_corpus(stories))
    assert found.within == {"train": 0, "validation": 0}
    assert found.across == {"validation": 1}
    assert [pair.openings for pair in found.closest] == [("The end.", "The End.")]
    folder = DATA / "speeches"
    speeches = DataSettings(
        source=str(folder / "train_CLS.tsv"), validation_source=str(folder / "test_CLS.tsv"), labelled=True
    )
    rows = {name: (folder / name).read_text("utf-8").splitlines() for name in ("train_CLS.tsv", "test_CLS.tsv")}
    trained, evaluated = ([row.split("\t")[1].strip() for row in rows[name]] for name in rows)
    assert sum(text in set(trained) for text in evaluated) == 551
    found = find_near(open_corpus(speeches))
    assert found.across == {"validation": 552}
    assert len(found.dropped) == 558
