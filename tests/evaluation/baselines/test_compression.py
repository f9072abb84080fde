"""Compressed sizes equal those of real files, which decompress to the texts."""

from __future__ import annotations

import lzma
import sys
import time

import numpy as np
import pytest
import zstandard

from lilliput.evaluation.baselines import compression
from lilliput.evaluation.baselines.compression import BORDER, find_zstandard, join, measure_sizes, window_bits, xz


def test_joined_documents_can_be_split() -> None:
    texts = ["one", "", "zwei Füße\n", "three\0"]
    assert [part.decode("utf-8") for part in join(texts).split(BORDER)[:-1]] == texts


def test_join_stops_at_the_limit() -> None:
    texts = iter(["abc", "def", "ghi"])
    assert join(texts, most=5) == b"abc\xffdef\xff"
    assert list(texts) == ["ghi"]


def test_sizes_equal_those_of_compressed_files() -> None:
    words = np.random.default_rng(0).choice(["sun", "moon", "a", "the", "sees", "finds"], size=(50, 40))
    data = join(" ".join(row) for row in words.tolist())
    # A window as large as the text finds the same matches as the larger one of the preset.
    plain = [len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) for text in (data, data[:999])]
    assert measure_sizes(xz, [data, data[:999]]) == plain
    compressor = find_zstandard()
    assert compressor is not None
    (found,) = measure_sizes(compressor, [data])
    assert (
        abs(found - len(zstandard.ZstdCompressor(level=22).compress(data))) <= 4
    )  # the header may contain the window size


@pytest.mark.parametrize("size", [0, 10, compression.CHUNK, 2 * compression.CHUNK + 1])
def test_measured_stream_decompresses_to_the_input(size: int) -> None:
    data, written = np.random.default_rng(0).integers(4, size=size, dtype=np.uint8).tobytes(), bytearray()

    class Kept:
        def __init__(self, size: int) -> None:
            self.stream = xz(size)

        def compress(self, data: bytes, /) -> bytes:
            written.extend(found := self.stream.compress(data))
            return found

        def flush(self) -> bytes:
            written.extend(found := self.stream.flush())
            return found

    assert measure_sizes(Kept, [data]) == [len(written)]
    assert lzma.decompress(written) == data


def test_ctrl_c_stops_between_chunks() -> None:
    read: list[int] = []

    class Slow:
        def __init__(self, size: int) -> None:
            if size == 1:
                raise KeyboardInterrupt

        def compress(self, data: bytes, /) -> bytes:
            time.sleep(0.02)
            read.append(len(data))
            return b""

        def flush(self) -> bytes:
            return b""

    with pytest.raises(KeyboardInterrupt):
        measure_sizes(Slow, [b"1", bytes(400 * compression.CHUNK)])
    assert len(read) < 400


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 1 << 20, (1 << 20) + 1, 1 << 40])
def test_the_window_spans_the_text(size: int) -> None:
    bits = window_bits(size)
    assert 12 <= bits <= 30
    assert 1 << bits >= min(size, 1 << 30)


def test_distant_repetitions_are_found() -> None:
    """A copy of the first part, beyond the window of smaller presets, costs at most 2%."""
    noise = np.random.default_rng(0).bytes(300_000)
    far = noise[:100_000]
    compressor = find_zstandard()
    assert compressor is not None
    for one in (xz, compressor):
        both, before, alone = measure_sizes(one, [noise + far, noise, far])
        assert both - before < 2_000
        assert alone >= 100_000


def test_without_zstandard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert find_zstandard() is None
