"""What a compressor of files needs for a text: a model that was never trained, or only by what stands before the text.

Owns: joining documents to one stream of bytes, and its size as xz and zstd leave it at their strongest. Does
not own: the division by bytes and the names of the rows (`baselines`).

Each document is followed by a byte that no UTF-8 text has, as a net must tell where a document ends. The
window spans the whole stream, so that a compressor that has read the training text before may use all of it.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Protocol

BORDER = b"\xff"
SMALLEST, LARGEST = 12, 30  # bits of a window that xz and zstd both take
CHUNK = 1 << 18  # compressed in a fraction of a second, so that Ctrl-C is heard


class Stream(Protocol):
    """What lzma and zstandard agree on."""

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


Compressor = Callable[[int], Stream]  # a stream for so many bytes


def join(texts: Iterable[str], most: int | None = None) -> bytes:
    """Documents one after the other; with `most`, none after those that have more bytes than that."""
    joined = bytearray()
    for text in texts:
        joined += text.encode("utf-8") + BORDER
        if most is not None and len(joined) > most:
            break
    return bytes(joined)


def measure_sizes(compressor: Compressor, texts: Sequence[bytes]) -> list[int]:
    """Bytes that each of them takes, compressed alone; all at a time, because the libraries leave Python's lock."""
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
    """As `xz -9e`, but for the window."""
    preset = 9 | lzma.PRESET_EXTREME
    filters = [{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": 1 << window_bits(size)}]
    return lzma.LZMACompressor(filters=filters)


def find_zstandard() -> Compressor | None:
    """As `zstd --ultra -22`, but for the window; None where the library is not installed."""
    try:
        import zstandard
    except ImportError:
        return None

    def stream(size: int) -> Stream:
        parameters = zstandard.ZstdCompressionParameters.from_level(22, source_size=size, window_log=window_bits(size))
        return zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=size)

    return stream
