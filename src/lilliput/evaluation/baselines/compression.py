"""Compressed sizes of texts by xz and zstd.

Owns: joining documents to one byte stream, and its size at the strongest compression level. Does not own: the division
by bytes and the names of the rows (`baselines`).

Each document is followed by a byte that does not occur in UTF-8, because a model must predict the end of a document
too. The window spans the whole stream, so that a compressor can use all of the training text before it.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Protocol

BORDER = b"\xff"
SMALLEST, LARGEST = 12, 30  # window sizes in bits that both xz and zstd accept
CHUNK = 1 << 18  # compressed in a fraction of a second, so that Ctrl-C takes effect soon


class Stream(Protocol):
    """The interface that lzma and zstandard share."""

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


Compressor = Callable[[int], Stream]  # makes a stream for a given number of bytes


def join(texts: Iterable[str], most: int | None = None) -> bytes:
    """Return the documents as one byte string. With `most`, stop after the first document that exceeds this size."""
    joined = bytearray()
    for text in texts:
        joined += text.encode("utf-8") + BORDER
        if most is not None and len(joined) > most:
            break
    return bytes(joined)


def measure_sizes(compressor: Compressor, texts: Sequence[bytes]) -> list[int]:
    """Return the compressed size of each text. They run in parallel: the libraries release the GIL."""
    stopped = Event()

    def measure(text: bytes) -> int:
        stream, size = compressor(len(text)), 0
        for first in range(0, len(text), CHUNK):
            if stopped.is_set():
                break
            size += len(stream.compress(text[first : first + CHUNK]))
        return size + len(stream.flush())

    with ThreadPoolExecutor() as threads:
        try:
            return list(threads.map(measure, texts))
        except BaseException:
            stopped.set()
            raise


def window_bits(size: int) -> int:
    return min(max(size.bit_length(), SMALLEST), LARGEST)


def xz(size: int) -> Stream:
    """Return a stream like `xz -9e`, except for the window."""
    preset = 9 | lzma.PRESET_EXTREME
    filters = [{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": 1 << window_bits(size)}]
    return lzma.LZMACompressor(filters=filters)


def find_zstandard() -> Compressor | None:
    """Return a compressor like `zstd --ultra -22`, except for the window; None if zstandard is not installed."""
    try:
        import zstandard
    except ImportError:
        return None

    def stream(size: int) -> Stream:
        parameters = zstandard.ZstdCompressionParameters.from_level(22, source_size=size, window_log=window_bits(size))
        return zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=size)

    return stream
