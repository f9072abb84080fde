"""Tokenizers: exact round trips, no special ids from text, incremental decoding, and errors of bad files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers as library
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from helpers.shared_data import DATA, needs_data
from helpers.user_errors import refused
from lilliput.data import tokenizers as module
from lilliput.data.corpora import END_OF_TEXT
from lilliput.data.tokenizer_choices import TOKENIZERS
from lilliput.data.tokenizers import TokenDecoder, Tokenizer, byte_tokenizer, make_tokenizer, train_bpe
from lilliput.data.tokenizers import text_chunks as cutting
from lilliput.data.tokenizers import untrusted_files as untrusted
from lilliput.data.tokenizers.text_chunks import cut_text
from lilliput.errors import UserError
from lilliput.settings.tree import TokenizerSettings

STORIES = [
    "Once upon a time, a cat sat on the mat.\nThe cat's friend didn't.",
    "Once upon a time — naïve, 世界! 😀 1234",
] * 3
BPE = train_bpe(STORIES, 320)
BYTE = byte_tokenizer()

every = pytest.mark.parametrize("tokenizer", [BPE, BYTE], ids=["bpe", "byte"])
# White space of every kind, characters that regular expressions treat differently, characters of 1 to 4 bytes.
awkward = (
    st.text(st.sampled_from(" \n\r\t\x1c\x85\xa0\u1680\u2028\u3000\u200b\ufeffaAé'世😀\u0301\x00<|>.1")) | st.text()
)


@every
@given(text=awkward)
def test_round_trip_is_exact(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.end not in ids
    assert all(0 <= one < tokenizer.vocab_size for one in ids)


@every
def test_attributes_of_a_tokenizer(tokenizer: Tokenizer) -> None:
    assert tokenizer.end == tokenizer.vocab_size - 1
    assert not tokenizer.lossy
    assert tokenizer.unknown is None
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""
    assert tokenizer.token(tokenizer.end) == END_OF_TEXT
    assert tokenizer.token(tokenizer.vocab_size + 5) == f"<unused {tokenizer.vocab_size + 5}>"


def test_ids_of_the_byte_tokenizer_are_bytes() -> None:
    assert (BYTE.kind, BYTE.vocab_size, BYTE.end) == ("byte", 257, 256)
    assert BYTE.encode("aé\n") == [97, 195, 169, 10]
    assert [BYTE.token(one) for one in (97, 195, 10)] == ["a", "<0xC3>", "\n"]


@given(awkward)
def test_the_fast_path_for_bytes_equals_the_library(text: str) -> None:
    inner = library.Tokenizer.from_str(BYTE.to_json())
    inner.encode_special_tokens = True
    assert inner.encode(text, add_special_tokens=False).ids == BYTE.encode(text)


def test_bpe_learns_gpt2_words() -> None:
    assert BPE.kind == "bpe"
    assert 257 < BPE.vocab_size <= 320
    pieces = [BPE.token(one) for one in BPE.encode("Once upon a time, a cat's mat 世")]
    assert pieces[:4] == ["Once", " upon", " a", " time"]
    assert not any(" " in piece.lstrip(" ") for piece in pieces)
    assert "".join(piece for piece in pieces if not piece.startswith("<0x")) == "Once upon a time, a cat's mat 世"


@every
def test_end_of_text_in_a_text_is_encoded_as_text(tokenizer: Tokenizer) -> None:
    text = f"He wrote {END_OF_TEXT} and went on. {END_OF_TEXT}"
    ids = tokenizer.encode(text)
    assert tokenizer.end not in ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([tokenizer.end, *ids, tokenizer.end]) == text
    trained = train_bpe([END_OF_TEXT * 9] * 9, 400)
    assert trained.end not in trained.encode(END_OF_TEXT)


@every
def test_an_unpaired_surrogate_becomes_the_replacement_character(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud83db")) == "a\ufffdb"
    with pytest.raises((TypeError, AttributeError)):
        tokenizer.encode(3)  # type: ignore[arg-type]


@every
@given(texts=st.lists(awkward, max_size=5))
def test_a_batch_equals_single_texts(tokenizer: Tokenizer, texts: list[str]) -> None:
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


@given(st.lists(awkward, min_size=1, max_size=12))
def test_pieces_of_long_texts_give_the_same_tokens(parts: list[str]) -> None:
    text = " ".join(parts)
    whole = BPE._inner.encode(text, add_special_tokens=False).ids
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "PIECE", 5)
        patch.setattr(module, "GROUP", 12)
        assert "".join(cut_text(text)) == text
        assert BPE.encode(text) == whole
        assert BPE.encode_batch([text, "", text]) == [whole, [], whole]


def test_a_giant_word_is_split_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "PIECE", 100)
    monkeypatch.setattr(cutting, "LONGEST_PIECE", 1000)
    for text in ("a" * 5000, " " * 5000, "世" * 5000):
        assert max(map(len, cut_text(text))) <= 1000
        assert BPE.decode(BPE.encode(text)) == text
    assert train_bpe(["ab" * 200_000], 300).decode(BPE.encode("x")) == BPE.decode(
        BPE.encode("x")
    )  # and training on it is fast


@every
@given(data=st.data())
def test_incremental_decoding_equals_decode(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3)))
    decoder = TokenDecoder(tokenizer)
    parts = [decoder.push(one) for one in ids]
    assert "".join(parts) + decoder.flush() == tokenizer.decode(ids)


@every
@given(text=awkward)
def test_incremental_decoding_delays_only_incomplete_characters(tokenizer: Tokenizer, text: str) -> None:
    decoder, given_so_far, seen = TokenDecoder(tokenizer), "", b""
    for one in tokenizer.encode(text):
        given_so_far += decoder.push(one)
        seen += tokenizer.token_bytes(one)
        assert given_so_far == seen.decode("utf-8", "ignore")
    assert decoder.flush() == ""


def test_incremental_decoding_of_words() -> None:
    inner = library.Tokenizer(models.WordLevel({"<unk>": 0, "once": 1, "upon": 2, END_OF_TEXT: 3}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer.from_json(inner.to_str())
    assert (tokenizer.kind, tokenizer.lossy, tokenizer.unknown, tokenizer.end) == ("wordlevel", True, 0, 3)
    assert tokenizer.encode("once upon never") == [1, 2, 0]
    assert tokenizer.decode([1, 2, 3]) == "once upon"  # a word in this vocabulary, a special token after loading
    decoder = TokenDecoder(tokenizer)
    parts = [decoder.push(one) for one in (1, 2, 1)]
    assert parts[0] == ""
    assert "".join(parts) + decoder.flush() == tokenizer.decode([1, 2, 1])


def word_piece() -> library.Tokenizer:
    ids = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "un": 4, "##happy": 5, "!": 6}
    inner = library.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return inner


def unigram() -> library.Tokenizer:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁a", -1.0), ("b", -2.0), ("▁", -3.0)]
    inner = library.Tokenizer(models.Unigram(pieces, unk_id=2))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return inner


def byte_fallback() -> library.Tokenizer:
    ids = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "a": 4, "▁a": 5} | {
        f"<0x{byte:02X}>": 6 + byte for byte in range(256)
    }
    inner = library.Tokenizer(models.BPE(ids, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    return inner


OTHER_KINDS = {"wordpiece": word_piece, "unigram": unigram, "bpe": byte_fallback}
other_kinds = pytest.mark.parametrize("kind", OTHER_KINDS)


@pytest.mark.parametrize(
    ("kind", "specials", "text", "ids"),
    [
        ("wordpiece", (2, 3, 0, 1), "unhappy! [SEP]", [4, 5, 6, 1, 1, 1]),
        (
            "unigram",
            (1, 1, 0, 2),
            "a b </s>b",
            [3, 5, 4, 5, 2, 4],
        ),  # </s> is a piece of its model, but encoded as text
        ("bpe", (1, 2, None, 0), "a é", [5, 3, 6 + 0xC3, 6 + 0xA9]),
    ],
)
def test_special_tokens_of_other_tokenizers_are_found_by_name(
    kind: str, specials: tuple[int | None, ...], text: str, ids: list[int]
) -> None:
    tokenizer = Tokenizer.from_json(OTHER_KINDS[kind]().to_str())
    assert (tokenizer.kind, tokenizer.lossy, tokenizer.ends) == (kind, True, True)
    assert (tokenizer.start, tokenizer.end, tokenizer.pad, tokenizer.unknown) == specials
    assert tokenizer.encode(text) == ids


@other_kinds
@given(data=st.data())
def test_incremental_decoding_of_other_tokenizers_equals_decode(kind: str, data: st.DataObject) -> None:
    tokenizer = Tokenizer.from_json(OTHER_KINDS[kind]().to_str())
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size), max_size=12))
    decoder = TokenDecoder(tokenizer)
    assert "".join([decoder.push(one) for one in ids]) + decoder.flush() == tokenizer.decode(ids)


def test_a_learned_piece_with_the_name_of_a_special_token_is_not_special() -> None:
    trained = train_bpe(["<s>struck</s> <pad> [SEP]"] * 9, 400)
    assert trained._inner.token_to_id("<s>") is None or trained.start == trained.end
    value = json.loads(trained.to_json())
    value["model"]["vocab"] |= {"<s>": 398, "</s>": 399}
    value["added_tokens"][0]["id"] = 400
    again = Tokenizer.from_json(json.dumps(value))
    assert (again.start, again.end, again.pad) == (again._inner.token_to_id(END_OF_TEXT),) * 2 + (None,)


def test_dropout_in_a_file_is_ignored() -> None:
    again = Tokenizer.from_json(changed(lambda value: value["model"].update(dropout=0.9)))  # type: ignore[attr-defined]
    assert again.encode(STORIES[0]) == BPE.encode(STORIES[0])


@every
@given(texts=st.lists(awkward, max_size=4))
def test_arrays_equal_lists(tokenizer: Tokenizer, texts: list[str]) -> None:
    arrays = tokenizer.encode_arrays(texts, Counter())
    assert all(found.dtype == np.uint32 for found in arrays)
    assert [found.tolist() for found in arrays] == tokenizer.encode_batch(texts)


@every
def test_saved_and_loaded(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    for again in (Tokenizer.load(path), Tokenizer.load(tmp_path), Tokenizer.from_json(tokenizer.to_json())):
        assert (again.kind, again.vocab_size, again.end) == (tokenizer.kind, tokenizer.vocab_size, tokenizer.end)
        assert again.sha256 == tokenizer.sha256
        assert again.to_json() == tokenizer.to_json()
        assert again.encode(STORIES[1]) == tokenizer.encode(STORIES[1])
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=3))
    assert Tokenizer.load(path).sha256 == tokenizer.sha256
    assert len({BPE.sha256, BYTE.sha256}) == 2


@every
def test_transformers_reads_it(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), eos_token=END_OF_TEXT
    )
    assert theirs.eos_token_id == tokenizer.end
    assert len(theirs) == tokenizer.vocab_size
    assert theirs(STORIES[1])["input_ids"] == tokenizer.encode(STORIES[1])
    assert theirs.decode(tokenizer.encode(STORIES[1])) == STORIES[1]


def test_training_is_deterministic() -> None:
    # Threads and hash seeds of another process must not matter.
    program = f"from lilliput.data.tokenizers import train_bpe; print(train_bpe({STORIES!r}, 320).sha256)"
    for threads in ("1", "3"):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)}
        found = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == BPE.sha256


def test_a_small_text_gives_a_small_vocabulary() -> None:
    assert train_bpe(["ab"], 5000).vocab_size == 257
    assert train_bpe([], 300).vocab_size == 257
    assert train_bpe(["aaaa aaaa"] * 2, 5000).vocab_size < 270


def test_settings_choose_the_tokenizer(tmp_path: Path) -> None:
    assert make_tokenizer(TokenizerSettings(kind="bpe", vocab_size=300), iter(STORIES)).vocab_size == 300
    assert make_tokenizer(TokenizerSettings(kind="byte"), iter([])).sha256 == BYTE.sha256
    BPE.save(tmp_path / "mine.json")
    assert make_tokenizer(TokenizerSettings(path=str(tmp_path / "mine.json")), iter([])).sha256 == BPE.sha256
    assert set(TOKENIZERS) == {"bpe", "byte", "character", "gpt2", "word"}


def test_an_error_in_the_documents_passes_through_training() -> None:
    def documents() -> object:
        yield "good"
        raise UserError("bad", "file, line 2", fix="use UTF-8", code="file.not-utf8")

    error = refused(lambda: train_bpe(documents(), 300))  # type: ignore[arg-type]
    assert (error.code, error.where) == ("file.not-utf8", "file, line 2")


def test_truncation_padding_and_templates_in_a_file_are_ignored() -> None:
    inner = library.Tokenizer.from_str(BPE.to_json())
    inner.enable_truncation(2)
    inner.enable_padding(length=50)
    inner.post_processor = library.processors.TemplateProcessing(
        single=f"$A {END_OF_TEXT}", special_tokens=[(END_OF_TEXT, BPE.end)]
    )
    assert Tokenizer.from_json(inner.to_str()).encode("a cat sat") == BPE.encode("a cat sat")


def changed(change: Callable[[dict[str, object]], object]) -> str:
    value = json.loads(BPE.to_json())
    change(value)
    return json.dumps(value)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("", "file.syntax"),
        ("{", "file.syntax"),
        ("[]", "file.syntax"),
        ("[" * 100_000, "file.syntax"),
        (b"\xff", "file.not-utf8"),
        ("{}", "tokenizer.invalid"),
        (changed(lambda value: value.update(added_tokens=[])), "tokenizer.invalid"),
        (changed(lambda value: value["model"].update(merges=[["x", "yy"]])), "tokenizer.invalid"),  # type: ignore[attr-defined]
        (changed(lambda value: value["model"]["vocab"].update(zz=10**9)), "tokenizer.invalid"),  # type: ignore[index]
        (changed(lambda value: value["model"]["vocab"].update(zz=5)), "tokenizer.invalid"),  # type: ignore[index]
        (changed(lambda value: value.pop("model")), "tokenizer.invalid"),
        (changed(lambda value: value.update(normalizer={"type": "Lower"})), "tokenizer.invalid"),
        ('{"pre_tokenizer": ' * 300 + "1" + "}" * 300, "file.syntax"),
        ('{"decoder":' * 990 + "1" + "}" * 990, "file.syntax"),
        (
            changed(lambda value: [value.update(added_tokens=[]), value["model"].update(vocab={}, merges=[])]),
            "tokenizer.invalid",
        ),  # type: ignore[attr-defined]
    ],
)
def test_bad_files_raise(tmp_path: Path, content: str | bytes, code: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    error = refused(lambda: make_tokenizer(TokenizerSettings(path=str(path)), iter([])))
    assert (error.code, error.setting) == (code, "tokenizer.path")
    assert str(path) in (error.where or "")


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe"])
def test_a_model_without_an_unknown_token_raises(kind: str) -> None:
    value = json.loads(OTHER_KINDS[kind]().to_str())
    value["model"].update({"unk_id": None} if kind == "unigram" else {"unk_token": "<nothing>"})
    assert refused(lambda: Tokenizer.from_json(json.dumps(value))).code == "tokenizer.invalid"


def with_pattern(part: str, pattern: str) -> str:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    replace = {"type": "Replace", "pattern": {"Regex": pattern}, "content": ""}
    value = split if part == "pre_tokenizer" else {"type": "Sequence", f"{part}s": [replace]}
    return changed(lambda whole: whole.update({part: value}))


@pytest.mark.parametrize(
    ("part", "pattern"),
    [
        ("pre_tokenizer", "(a+)+$"),
        ("decoder", r"(\w+\s?)*$"),
        ("normalizer", "(z|zz)+$"),
        ("pre_tokenizer", "(" * 50),
        ("pre_tokenizer", "a" * 5000),
    ],
)
def test_slow_regular_expressions_raise(part: str, pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    begin = time.monotonic()
    error = refused(lambda: Tokenizer.from_json(with_pattern(part, pattern), "evil.json"))
    assert (error.code, error.where) == ("tokenizer.unsafe", "evil.json")
    assert time.monotonic() - begin < 120
    assert capfd.readouterr().err == ""  # the engine's message stays in the other process


def test_the_check_of_a_pattern_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "PATIENCE", 0.001)
    error = refused(lambda: Tokenizer.from_json(with_pattern("pre_tokenizer", "never seen")))
    assert error.code == "tokenizer.unsafe"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's own")
def test_a_fixed_memory_limit_rejects_no_pattern() -> None:
    program = (
        "import resource\n"
        "from lilliput.data.tokenizers import untrusted_files as untrusted\n"
        "resource.setrlimit(resource.RLIMIT_AS, ((1 << 32) - 4096,) * 2)\n"
        "print(untrusted._ends(r'\\w+|\\s+'))\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert (found.stdout, found.stderr) == ("True\n", "")


def test_normal_regular_expressions_are_accepted() -> None:
    # Words, numbers of up to three digits, punctuation and white space, as in the files of large models.
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    sequence = {"type": "Sequence", "pretokenizers": [split, bytes_only]}
    tokenizer = Tokenizer.from_json(changed(lambda whole: whole.update(pre_tokenizer=sequence)))
    assert tokenizer.decode(tokenizer.encode(STORIES[1])) == STORIES[1]


def test_a_panic_of_the_library_raises_a_user_error(tmp_path: Path) -> None:
    # In another process, because the library writes its panic to stderr directly.
    program = (
        "import sys, tokenizers as library\n"
        "from tokenizers import Regex, models, pre_tokenizers\n"
        "from lilliput.data.tokenizers import Tokenizer\n"
        "inner = library.Tokenizer(models.WordLevel({'<unk>': 0, '<eos>': 1}, unk_token='<unk>'))\n"
        "inner.pre_tokenizer = pre_tokenizers.Split(Regex('(a+)+$'), 'isolated')\n"
        "try: Tokenizer(inner).encode('a' * 60 + '!')\n"
        "except Exception as error: print(type(error).__name__, error.code)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["UserError", "tokenizer.invalid"]


def test_missing_unreadable_and_huge_files_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    error = refused(lambda: Tokenizer.load(path))
    assert (error.code, error.where) == ("file.missing", str(path))
    with open(path, "wb") as file:
        file.truncate(50_000_001)  # a sparse file: uses no disk space
    error = refused(lambda: Tokenizer.load(path))
    assert error.code == "file.too-large"
    assert "50,000,001" in error.what
    BPE.save(path)

    def forbidden(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    assert refused(lambda: Tokenizer.load(path)).code == "file.unreadable"


@needs_data
def test_round_trip_of_real_stories() -> None:
    text = (DATA / "tinystories" / "mixed-heldout.txt").read_text()[:1_000_000]
    tokenizer = train_bpe([text[:300_000]], 1024)
    assert tokenizer.vocab_size == 1024
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text) == tokenizer._inner.encode(text, add_special_tokens=False).ids
