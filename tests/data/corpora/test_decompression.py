"""Bytes of files: decompression, splitting at separators, and the places of errors."""

from __future__ import annotations

import gzip
import lzma
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from helpers.user_errors import refused
from lilliput.data.corpora import decompression as pieces
from lilliput.data.corpora import open_corpus
from lilliput.data.corpora.decompression import read_bytes, split_at
from lilliput.errors import UserError
from lilliput.settings.tree import DataSettings

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,  # as its command line does
    ".xz": lzma.compress,
}
forms = pytest.mark.parametrize("form", COMPRESS)
STORIES = "".join(f"story {n}, ünd so weiter\r\n" for n in range(20_000)).encode()


def refused_file(path: Path) -> UserError:
    error = refused(lambda: list(open_corpus(DataSettings(source=str(path), separator="line")).stream()))
    assert error.setting == "data.source"
    assert str(path) in (error.where or "")
    return error


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@given(st.lists(st.binary(max_size=6)), st.integers(1, 7), st.sampled_from([b"ab", b"\n", b"aab"]))
def test_split_at_equals_split_of_the_whole(parts: list[bytes], size: int, mark: bytes) -> None:
    whole = mark.join(parts)
    chunks = [whole[start : start + size] for start in range(0, len(whole), size)]
    found = list(split_at(chunks, mark))
    expected = whole.split(mark)
    if not expected[-1].strip():
        expected.pop()
    assert [raw for _, raw in found] == expected
    assert all(whole[start : start + len(raw)] == raw for start, raw in found)


@forms
@pytest.mark.parametrize("chunk", [1 << 16, 1000, 7])
def test_decompression_restores_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, chunk: int
) -> None:
    monkeypatch.setitem(pieces.COMPRESSIONS, form, pieces.COMPRESSIONS[form]._replace(chunk=chunk))
    text = STORIES[:50_000]
    path = write(tmp_path, f"a.txt{form}", COMPRESS[form](text))
    assert b"".join(read_bytes(path)) == text
    # Several members, as written by `cat` and parallel compressors.
    path = write(tmp_path, f"a.txt{form}", COMPRESS[form](text) + COMPRESS[form](b"more"))
    assert b"".join(read_bytes(path)) == text + b"more"


@forms
def test_compressed_and_plain_files_give_the_same_corpus(tmp_path: Path, form: str) -> None:
    plain = write(tmp_path, "a.txt", b"\xef\xbb\xbf" + STORIES)
    packed = write(tmp_path, f"a.txt{form}", COMPRESS[form](b"\xef\xbb\xbf" + STORIES))
    found = [open_corpus(DataSettings(source=str(path), separator="line")) for path in (plain, packed)]
    assert list(found[0].stream()) == list(found[1].stream())
    assert found[0].describe == found[1].describe


def test_padding_after_a_member_is_ignored(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt.gz", gzip.compress(b"one") + bytes(600) + gzip.compress(b" two") + bytes(9))
    assert b"".join(read_bytes(path)) == b"one two"


@forms
def test_truncated_archives(tmp_path: Path, form: str) -> None:
    packed = COMPRESS[form](STORIES)
    assert refused_file(write(tmp_path, f"a.txt{form}", packed[: len(packed) // 2])).code == "file.damaged"


@forms
def test_damaged_archives(tmp_path: Path, form: str) -> None:
    packed = bytearray(COMPRESS[form](STORIES))
    packed[len(packed) // 2] ^= 0xFF
    assert refused_file(write(tmp_path, f"a.txt{form}", bytes(packed))).code == "file.damaged"


def test_a_wrong_checksum_raises(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(STORIES))
    packed[-8] ^= 1
    assert zlib.decompressobj(wbits=-15).decompress(bytes(packed[10:])) == STORIES  # the text is complete
    assert refused_file(write(tmp_path, "a.txt.gz", bytes(packed))).code == "file.damaged"


@forms
def test_suffixes_that_do_not_match_the_content(tmp_path: Path, form: str) -> None:
    for name, content, right in (
        ("a.txt", COMPRESS[form](STORIES), f"a.txt{form}"),
        (f"b.txt{form}", STORIES, "b.txt"),
        (f"stories{form}", STORIES, "stories"),
    ):
        error = refused_file(write(tmp_path, name, content))
        assert error.code == "file.format"
        assert right in (error.fix or "").replace(",", "").split()
    assert refused_file(write(tmp_path, f"c.txt{form}", b"")).code == "data.empty"


@forms
def test_places_refer_to_the_decompressed_text(tmp_path: Path, form: str) -> None:
    pack = COMPRESS[form]
    error = refused_file(write(tmp_path, f"a.txt{form}", pack(STORIES + b"bad \xe9\n")))
    assert error.code == "file.not-utf8"
    assert f"line 20001, byte {len(STORIES) + 4} of the decompressed text" in (error.where or "")
    assert "| iconv -f latin1 -t utf-8 > utf8-a.txt" in (error.fix or "")
    error = refused_file(write(tmp_path, f"a.txt{form}", pack(STORIES + b"bad \x00\n")))
    assert error.code == "file.binary"
    assert f"byte {len(STORIES) + 4} of the decompressed text" in (error.where or "")
    assert refused_file(write(tmp_path, f"a.txt{form}", pack("text".encode("utf-16")))).code == "file.not-utf8"


@pytest.mark.parametrize("content", [b"\x89PNG\r\n", b"\xff\xd8\xff\xe0 a", b"\x7fELF", b"a\x01b\xff", b"a\x00b"])
def test_files_that_are_not_text(tmp_path: Path, content: bytes) -> None:
    error = refused_file(write(tmp_path, "a.txt", content))
    assert error.code == "file.binary" and "iconv" not in error.fix and ".jsonl" in error.fix


def test_control_bytes_of_terminals_are_text(tmp_path: Path) -> None:
    assert refused_file(write(tmp_path, "a.txt", b"\x1b[1m caf\xe9")).code == "file.not-utf8"
    write(tmp_path, "b.txt", b"a\x01 text")
    assert open_corpus(DataSettings(source=str(tmp_path / "b.txt"))).size


def test_without_zstandard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "a.txt.zst", COMPRESS[".zst"](b"text"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    error = refused(lambda: list(read_bytes(path)))
    assert error.code == "package.missing"
    assert "lilliput[data]" in (error.fix or "")


@pytest.mark.parametrize("form", ["", ".gz"])
def test_memory_is_bounded_by_chunks_and_documents(tmp_path: Path, form: str) -> None:
    text = (STORIES[:4000].replace(b"\r\n", b" ") + b"\n") * 3_000  # 12 MB in lines
    path = write(tmp_path, f"a.txt{form}", COMPRESS[form](text) if form else text)
    corpus = open_corpus(DataSettings(source=str(path), separator="line"))
    # Two copies of a chunk are in memory, and 64 KB of repetitive text may decompress to megabytes.
    largest = max(map(len, read_bytes(path)))
    tracemalloc.start()
    count = sum(1 for _ in corpus.stream())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 3_000
    assert peak < 4 * largest + 300_000


def test_a_very_repetitive_archive_is_read_in_parts(tmp_path: Path) -> None:
    packer = zstandard.ZstdCompressor().compressobj()
    packed = b"".join(packer.compress(b"tick\n" * 200_000) for _ in range(200)) + packer.flush()
    path = write(tmp_path, "a.txt.zst", packed)  # 200 MB in 20 KB
    parts = [len(part) for part in read_bytes(path)]
    assert sum(parts) == 200_000_000
    assert max(parts) < 80_000_000


@pytest.mark.parametrize(("character", "times"), [("x", 3), ("’", 5)])
def test_a_document_of_one_huge_line_costs_a_few_times_its_size(tmp_path: Path, character: str, times: int) -> None:
    text = character + " many words and no line end" * 400_000 + "\n"  # 11 MB; 100 MB gives the same ratio, in 3 s
    path = write(tmp_path, "a.txt", text.encode())
    tracemalloc.start()
    corpus = open_corpus(DataSettings(source=str(path)))
    streamed = sum(len(document.text) for _, document in corpus.stream())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert streamed == len(text) - 2
    assert peak < times * len(text)
