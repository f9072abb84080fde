"""FastText model files, written from the description of their format."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from lilliput.data.vectors.fasttext_format import MAGIC


def write_model(
    path: Path,
    words: list[bytes],
    matrix: np.ndarray,
    bucket: int = 0,
    pruned: dict[int, int] | None = None,
    quantized: bool = False,
    version: int = 12,
    labels: list[bytes] | None = None,
    kind: int = 2,
) -> Path:
    """Write a model without the output matrix, which only training needs."""
    labels = labels or []
    data = struct.pack("<ii12id", MAGIC, version, matrix.shape[1], 5, 5, 1, 5, 1, 2, kind, bucket, 3, 6, 100, 1e-4)
    size = len(words) + len(labels)
    data += struct.pack("<iiiqq", size, len(words), len(labels), 99, -1 if pruned is None else len(pruned))
    data += b"".join(word + b"\0" + struct.pack("<qb", 7, 0) for word in words)
    data += b"".join(label + b"\0" + struct.pack("<qb", 7, 1) for label in labels)
    data += b"".join(struct.pack("<ii", *pair) for pair in (pruned or {}).items())
    path.write_bytes(data + struct.pack("<?qq", quantized, *matrix.shape) + matrix.astype("<f4").tobytes())
    return path
