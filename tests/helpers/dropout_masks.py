"""Masks of dropout in NumPy: the definition that the compiled code must agree with, bit for bit."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lilliput.kernels.dropout import LINE, DropoutMask


def mask_lines(mask: DropoutMask, lines: NDArray[np.uint64], width: int) -> NDArray[np.bool_]:
    """Return which of the first `width` numbers of these lines are kept."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 and 2^32
        key = np.uint64(mask.seed) + (lines + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        key = (key ^ key >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        key = (key ^ key >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        key = (key ^ key >> np.uint64(31))[..., None]
        x = np.arange(width, dtype=np.uint32) + key.astype(np.uint32)
        x = (x ^ x >> np.uint32(16)) * np.uint32(0x21F0AAAD)
        x = (x ^ x >> np.uint32(15) ^ (key >> np.uint64(32)).astype(np.uint32)) * np.uint32(0xD35A2D97)
    kept: NDArray[np.bool_] = x >= np.uint32(mask.threshold)
    return kept


def attention_mask_of(mask: DropoutMask, rows: int, heads: int, tokens: int) -> Tensor:
    """Return which attention weights (B, H, T, T) are kept."""
    lines = np.arange(rows * heads * tokens, dtype=np.uint64).reshape(rows, heads, tokens)
    return torch.from_numpy(mask_lines(mask, lines, tokens))


def tensor_mask_of(mask: DropoutMask, *shape: int) -> Tensor:
    """Return which numbers of a tensor of this shape are kept."""
    count = int(np.prod(shape))
    lines = np.arange(-(-count // LINE), dtype=np.uint64)
    return torch.from_numpy(mask_lines(mask, lines, LINE).reshape(-1)[:count].reshape(shape))
