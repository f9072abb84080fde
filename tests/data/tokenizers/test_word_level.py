"""Word and character tokenizers: splitting, ids, decoding, and vocabulary files."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.shared_data import DATA, needs_data
from helpers.user_errors import refused
from lilliput.data import tokenizers as module
from lilliput.data.tokenizers import TokenDecoder, Tokenizer, make_tokenizer
from lilliput.data.tokenizers import text_chunks as cutting
from lilliput.settings.tree import TokenizerSettings

SPECIALS = {"<sos>": 0, "<eos>": 1, "<pad>": 2, "<unk>": 3}

PROSE = [
    "Once upon a time, a cat's friend said, \"I don't know!\" and ran.",
    "The ice-cream (3.5% fat) cost $1,000 at 10:30; the kids' toys cost less...",
    "“Let’s go,” he said. “It is ‘late’ in the U.S. now—no!” (“Why?”)",
    "She read 'Pale Gem' twice: a red/green book--not more. \"Really?!\" asked Tom.",
    'He said "one", "two" and "three". [A note: {so}.] Look at #1 & «this»…',
]


def settings(**changes: Any) -> TokenizerSettings:
    return TokenizerSettings(**({"kind": "word"} | changes))


def made(*documents: str, **changes: Any) -> Tokenizer:
    return make_tokenizer(settings(**changes), iter(documents))


def words_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token(one) for one in tokenizer.encode(text)]


WORD = made(*PROSE)
LOWER = made(*PROSE, lowercase=True)
STRIP = made(*PROSE, punctuation="strip")
SPACES = made(*PROSE, split="spaces")
CHARACTER = made(*PROSE, "line\nline", kind="character")
LOWER_CHARACTER = made(*PROSE, kind="character", lowercase=True)
ALL = {
    "word": WORD, "lower": LOWER, "strip": STRIP, "spaces": SPACES, "character": CHARACTER,
    "lower character": LOWER_CHARACTER,
}  # fmt: skip
every = pytest.mark.parametrize("tokenizer", ALL.values(), ids=ALL.keys())
awkward = (
    st.text(st.sampled_from(" \n\r\t\x85\xa0\u2028\u3000\u200baAsSé'’\"“”-—./,:;$()<>世😀\u0301\x0013İΣ")) | st.text()
)


# ---- splitting into words


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("don't it's o'clock Tom’s", ["don't", "it's", "o'clock", "Tom’s"]),
        ("the kids' toys", ["the", "kids'", "toys"]),
        ("ice-cream, well-to-do", ["ice-cream", ",", "well-to-do"]),
        ("3.5 1,000,000 10:30 3. 4", ["3.5", "1,000,000", "10:30", "3", ".", "4"]),
        ("U.S. e.g. I. Go.", ["U.S.", "e.g.", "I", ".", "Go", "."]),
        ("Hm.... What?!", ["Hm", "...", ".", "What", "?", "!"]),
        ("a - b -- c--d — e", ["a", "-", "b", "--", "c", "--", "d", "—", "e"]),
        ("\"Go,\" 'he' said", ['"', "Go", ",", '"', "'", "he", "'", "said"]),
        ("a\tb\r\n\nc\u2028d\u3000e", ["a", "b", "c", "d", "e"]),
        ("naïve cafe\u0301 世界 snake_case", ["naïve", "cafe\u0301", "世界", "snake_case"]),
        ("$5 (6%) a/b", ["$", "5", "(", "6", "%", ")", "a", "/", "b"]),
        ("'tis -5 a- ''", ["'", "tis", "-", "5", "a", "-", "'", "'"]),
    ],
)
def test_words_and_punctuation(text: str, tokens: list[str]) -> None:
    assert words_of(made(text), text) == tokens
    assert words_of(made(text, punctuation="strip"), text) == [
        one for one in tokens if any(character.isalnum() for character in one)
    ]


def test_split_spaces_changes_only_white_space() -> None:
    text = "I 'm\na don't ... ``\tquote '' ( 3.5\u3000%"
    assert words_of(made(text, split="spaces"), text) == text.split()
    assert words_of(made(text, split="spaces", punctuation="strip"), text) == ["I", "'m", "a", "don't", "quote", "3.5"]
    assert SPACES.decode(SPACES.encode("Tom.\n  asked \n red/green")) == "Tom. asked red/green"


def test_lowercase() -> None:
    assert words_of(LOWER, "ONCE Upon") == ["once", "upon"]
    assert LOWER.decode(LOWER.encode(PROSE[0])) == PROSE[0].lower()
    assert LOWER_CHARACTER.decode(LOWER_CHARACTER.encode(PROSE[1])) == PROSE[1].lower()
    assert not any(token != token.lower() for token in json.loads(LOWER.to_json())["model"]["vocab"])


# ---- decoding


@pytest.mark.parametrize("text", PROSE)
def test_round_trip_of_prose(text: str) -> None:
    assert WORD.decode(WORD.encode(text)) == text


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ('" Hi , " said Tom . " Go " !', '"Hi," said Tom. "Go"!'),
        ('( " a " )', '("a")'),
        ("\" He said ' no ' . \"", "\"He said 'no'.\""),
        ('said , "', 'said, "'),
        ("a -- b — c / d", "a--b—c/d"),
        ("# 1 , $ 5 , 6 %", "#1, $5, 6%"),
        ("well ... no . . .", "well... no..."),
        ("“ a ” ‘ b ’ « c »", "“a” ‘b’ «c»"),
    ],
)
def test_spaces_of_prose(tokens: str, text: str) -> None:
    tokenizer = made(tokens)
    ids = [tokenizer._inner.token_to_id(token) for token in tokens.split()]
    assert None not in ids
    assert tokenizer.decode(ids) == text  # type: ignore[arg-type]


@needs_data
def test_round_trip_of_real_stories() -> None:
    stories = [one.strip() for one in (DATA / "tinystories" / "mixed-heldout.txt").read_text().split("<|endoftext|>")]
    tokenizer = made(*stories)
    encoded = tokenizer.encode_batch(stories)
    assert not any(tokenizer.unknown in ids for ids in encoded)
    # Line ends are white space, which only separates words.
    same = sum(tokenizer.decode(ids) == " ".join(story.split()) for story, ids in zip(stories, encoded, strict=True))
    assert same / len(stories) > 0.99


@given(awkward)
def test_round_trip_of_characters(text: str) -> None:
    tokenizer = made(text or "x", kind="character")
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_characters_are_code_points() -> None:
    assert words_of(CHARACTER, "a\n “x”") == ["a", "\n", " ", "“", "<unk>", "”"]
    assert CHARACTER.decode(CHARACTER.encode("a\n x")) == "a\n <unk>"


# ---- ids


@every
def test_special_tokens_have_the_ids_of_the_settings(tokenizer: Tokenizer) -> None:
    assert (tokenizer.start, tokenizer.end, tokenizer.pad, tokenizer.unknown) == (0, 1, 2, 3)
    assert tokenizer.ends
    assert tokenizer.lossy
    assert not tokenizer.byte_level
    assert tokenizer.kind in ("word", "character")
    assert tokenizer.decode([0, 1, 2]) == ""
    assert tokenizer.decode([3]) == "<unk>"  # part of a text, unlike other special tokens


def test_ids_are_ordered_by_frequency_then_by_word() -> None:
    tokenizer = made("b b a a c c c d", sos_id=2, eos_id=None, pad_id=5, unk_id=0)
    assert [tokenizer.token(one) for one in range(tokenizer.vocab_size)] == [
        "<unk>",
        "c",
        "<sos>",
        "a",
        "b",
        "<pad>",
        "d",
    ]
    assert (tokenizer.start, tokenizer.end, tokenizer.ends) == (2, 5, False)
    characters = made("bbaaccc\n", kind="character", sos_id=None, eos_id=0, pad_id=None, unk_id=2)
    assert [characters.token(one) for one in range(characters.vocab_size)] == ["<eos>", "c", "<unk>", "a", "b", "\n"]
    assert (characters.start, characters.end, characters.pad) == (0, 0, None)


def test_size_of_the_vocabulary() -> None:
    text = "a a a b b c"
    assert made(text, max_vocabulary=6).vocab_size == 6
    assert words_of(made(text, max_vocabulary=6), text) == ["a"] * 3 + ["b"] * 2 + ["<unk>"]
    assert made(text, min_frequency=2).vocab_size == 6
    assert made(text, min_frequency=3).vocab_size == 5
    assert made(text, kind="character", min_frequency=2).vocab_size == 4 + 3  # a, b and the space


@given(st.lists(awkward, max_size=4))
def test_fitting_counts_the_encoded_words(documents: list[str]) -> None:
    counts = Counter(word for text in [*documents, "x"] for word, _ in WORD._inner.pre_tokenizer.pre_tokenize_str(text))
    expected = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    tokenizer = made(*documents, "x")
    assert [tokenizer.token(one) for one in range(4, tokenizer.vocab_size)] == [word for word, _ in expected]


def test_fitting_is_deterministic() -> None:
    program = (
        "from lilliput.data.tokenizers import make_tokenizer as make\n"
        "from lilliput.settings.tree import TokenizerSettings as Settings\n"
        f"print(*(make(Settings(kind=kind), {PROSE!r}).sha256 for kind in ('word', 'character')))"
    )
    expected = f"{WORD.sha256} {made(*PROSE, kind='character').sha256}"
    environment = {
        **os.environ,
        "RAYON_NUM_THREADS": "3",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONHASHSEED": "7",
    }
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == expected


# ---- guarantees of every tokenizer


@every
@given(text=awkward)
def test_no_text_gives_a_special_id(tokenizer: Tokenizer, text: str) -> None:
    for one in (text, f"{text} <eos> <sos> <EOS> <pad> {text}", f"<eos>{text}"):
        assert not {tokenizer.start, tokenizer.end, tokenizer.pad} & {*tokenizer.encode(one)}
    assert SPACES.encode("<eos> <unk>") == [3, 3]


def test_a_special_token_in_the_training_text_is_not_a_word() -> None:
    tokenizer = made("<eos> <eos> a <unk>", split="spaces")
    assert tokenizer.vocab_size == 5
    assert tokenizer.encode("a <eos> <unk>") == [4, 3, 3]


@every
@given(data=st.data())
def test_incremental_decoding_equals_decode(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    decoder = TokenDecoder(tokenizer)
    assert "".join([decoder.push(one) for one in ids]) + decoder.flush() == tokenizer.decode(ids)


@every
@given(parts=st.lists(awkward, min_size=1, max_size=8))
def test_pieces_give_the_tokens_of_the_whole_text(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = " ".join(parts)
    whole = tokenizer.encode(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "PIECE", 4)
        patch.setattr(module, "GROUP", 9)
        assert tokenizer.encode_batch([text, "", text]) == [whole, [], whole]
        fitted = module.make_tokenizer(settings(kind=tokenizer.kind), [text, "x"])
    assert fitted.sha256 == made(text, "x", kind=tokenizer.kind).sha256


@every
def test_arrays_and_unknown_words(tokenizer: Tokenizer) -> None:
    texts = ["Once Zebra zebra, upon", "", "ZEBRA\ud83d x"]
    found: Counter[str] = Counter({"x": 1})
    arrays = tokenizer.encode_arrays(texts, found)
    assert [one.dtype for one in arrays] == [np.uint32] * 3
    assert [one.tolist() for one in arrays] == tokenizer.encode_batch(texts)
    assert sum(found.values()) - 1 == sum(int((one == tokenizer.unknown).sum()) for one in arrays)
    if tokenizer.kind == "word":
        assert found["Zebra"] == 1
        assert found["x"] == 2
        assert "Once" not in found


@every
def test_saved_and_loaded(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path)
    names = ("kind", "vocab_size", "start", "end", "ends", "pad", "unknown", "lossy", "sha256")
    assert [getattr(again, name) for name in names] == [getattr(tokenizer, name) for name in names]
    assert again.to_json() == tokenizer.to_json()
    assert again.encode(PROSE[0]) == tokenizer.encode(PROSE[0])


@every
def test_transformers_reads_it(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), clean_up_tokenization_spaces=False
    )
    assert len(theirs) == tokenizer.vocab_size
    for text in (*PROSE, "Never heard, 'of' this: 世界!", ""):
        ids = tokenizer.encode(text)
        assert theirs(text)["input_ids"] == ids
        assert theirs.decode([0, *ids, 1], skip_special_tokens=True) == tokenizer.decode(ids)


# ---- vocabulary files


@needs_data
def test_the_published_vocabulary_of_the_speeches() -> None:
    folder = DATA / "speeches" / "tokenised"
    tokenizer = make_tokenizer(settings(split="spaces", vocabulary=str(folder / "vocab.txt")), ())
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.unknown) == ("word", 5755, 1)
    assert (tokenizer.start, tokenizer.end, tokenizer.ends, tokenizer.pad) == (0, 0, False, 0)
    train = (folder / "train_LM.tok.txt").read_text()
    assert len(tokenizer.encode(train)) == 32_071
    assert tokenizer.decode(tokenizer.encode(train)) == " ".join(train.split())
    for author, unknown in (("obama", 113), ("wbush", 105), ("hbush", 108)):
        found: Counter[str] = Counter()
        (ids,) = tokenizer.encode_arrays([(folder / f"test_LM_{author}.tok.txt").read_text()], found)
        assert int((ids == tokenizer.unknown).sum()) == found.total() == unknown


def test_special_tokens_of_a_vocabulary_file_are_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"\xef\xbb\xbfa\r\n</s>\r\nb\r\n[UNK]\r\n<s>\r\n\r\n")
    tokenizer = make_tokenizer(settings(vocabulary=str(path), sos_id=7, eos_id=8), ())
    assert tokenizer.encode("b a c") == [2, 0, 3]
    assert (tokenizer.start, tokenizer.end, tokenizer.ends, tokenizer.pad, tokenizer.unknown) == (4, 1, True, None, 3)
    assert tokenizer.decode([4, 2, 0, 1]) == "b a"


# ---- errors


@pytest.mark.parametrize(
    ("content", "code", "place"),
    [
        (b"<unk>\n<eos>\na\nb\na\n", "tokenizer.invalid", ", line 5"),
        (b"<unk>\n<eos>\n\na\n", "tokenizer.invalid", ", line 3"),
        (b"<eos>\na\n", "tokenizer.invalid", ""),
        (b"<unk>\na\n", "tokenizer.invalid", ""),
        (b"<unk>\n<eos>\nthe 1234\n", "tokenizer.invalid", ", line 3"),
        (b"<unk>\n<eos>\nthe\t5\n", "tokenizer.invalid", ", line 3"),
        (b"<unk>\n<eos>\ncaf\xe9\n", "file.not-utf8", ", byte 15"),
        (b"", "tokenizer.invalid", ""),
        (None, "file.missing", ""),
    ],
)
def test_bad_vocabulary_files_raise(tmp_path: Path, content: bytes | None, code: str, place: str) -> None:
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content)
    error = refused(lambda: make_tokenizer(settings(vocabulary=str(path)), ()))
    assert (error.code, error.setting, error.where) == (code, "tokenizer.vocabulary", f"{path}{place}")


def test_a_vocabulary_that_is_not_a_small_file_raises(tmp_path: Path) -> None:
    assert refused(lambda: make_tokenizer(settings(vocabulary=str(tmp_path)), ())).code == "file.is-folder"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        error = refused(lambda path=path: make_tokenizer(settings(vocabulary=str(path)), ()))  # type: ignore[misc]
        assert error.code == "file.format"
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(50_000_001)  # a sparse file: uses no disk space
    error = refused(lambda: make_tokenizer(settings(vocabulary=str(tmp_path / "huge")), ()))
    assert error.code == "file.too-large"
    assert "50,000,001" in error.what


@pytest.mark.parametrize(
    ("changes", "code", "setting"),
    [
        ({"max_vocabulary": 4}, "setting.value", "tokenizer.max_vocabulary"),
        ({"min_frequency": 9}, "data.empty", "tokenizer.min_frequency"),
        ({"kind": "character", "min_frequency": 99}, "data.empty", "tokenizer.min_frequency"),
        ({"eos_id": 50}, "setting.value", "tokenizer.eos_id"),
        ({"eos_id": None, "pad_id": None}, "tokenizer.invalid", "tokenizer.eos_id"),
    ],
)
def test_impossible_settings(changes: dict[str, Any], code: str, setting: str) -> None:
    error = refused(lambda: made("a b a", **changes))
    assert (error.code, error.setting) == (code, setting)


def test_a_text_without_words() -> None:
    assert refused(lambda: made(" \n ")).code == "data.empty"
    assert refused(lambda: made("... !", punctuation="strip")).code == "data.empty"
    assert refused(lambda: made("", kind="character")).code == "data.empty"


def test_different_settings_give_different_hashes() -> None:
    # The hash is part of the key of prepared data.
    found = {
        made("A a. b's", split=split, punctuation=marks, lowercase=small).sha256
        for split, marks, small in itertools.product(("words", "spaces"), ("keep", "strip"), (False, True))
    }
    assert len(found) == 8
