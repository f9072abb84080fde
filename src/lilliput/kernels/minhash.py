"""The compiled part of the near-duplicate search: MinHash signatures of texts, and similarity of sets of shingles.

Owns: the definition of a word, shingles (five consecutive words), signatures (MinHash, Broder 1997, one byte of each minimum
as in Li and König 2010), candidate pairs of signatures (banding), the exact Jaccard similarity, and connected clusters. Does
not own: documents, splits, passes over a corpus or reports (`data.duplicates`, which imports this module only when needed:
importing numba takes half a second).

A word is a sequence of letters and digits in lower case; everything between words is ignored: quotes, case, line ends and
the form of an apostrophe make no difference. In scripts without spaces (Chinese, Japanese) each character is a word.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])
Bytes = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
Positions = NDArray[np.int64]

SHINGLE = 5  # words
SIGNATURE = 224  # bytes of a document: 28 bands of 8 find 99.4% of the pairs of similarity 0.8
LETTERS_END = 0x40000  # no character beyond is a letter or a digit
ALONE = np.uint32(1 << 31)  # marks a character that is a word by itself
# The largest number of documents that one document is compared with in a bucket, and of pairs that it has in its split and
# with train: without a limit, 100,000 documents from one template would make 5 billion pairs.
MOST_TWINS = 16


def compiled(function: Function) -> Function:
    """Compile at the first call; cache the code on disk, by numba, if its folder is writable."""
    try:
        return cast("Function", numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # no writable folder
        return cast("Function", numba.njit(nogil=True)(function))


@functools.cache
def _letters() -> NDArray[np.uint32]:
    """Return a table by code point: 0 outside words, else the lower-case letter (ALONE: a word by itself)."""
    table = np.zeros(0x110000, dtype=np.uint32)
    for code in range(LETTERS_END):
        character = chr(code)
        if character.isalnum():
            small = character.lower()
            table[code] = ord(small) if len(small) == 1 else code
            if code > 0x1100 and unicodedata.east_asian_width(character) == "W":
                table[code] |= ALONE
    return table


@functools.cache
def _permutations() -> NDArray[np.uint32]:
    """Return factors (odd) and summands of the SIGNATURE hash functions whose minima form a signature."""
    drawn = np.random.Generator(np.random.PCG64(5)).integers(0, 1 << 32, (2, SIGNATURE), dtype=np.uint32)
    drawn[0] |= 1
    return drawn


def shingle(texts: list[bytes]) -> tuple[Hashes, Positions]:
    """Return the shingles of all texts (UTF-8) in one array, and the end of each text in it.

    A text of fewer than five words has one shingle of all of them, a text without words none.
    """
    ends = np.cumsum([len(text) for text in texts])
    joined = np.frombuffer(b"".join(texts), dtype=np.uint8)
    words = np.empty(len(joined) // 2 + len(texts) + 1, dtype=np.uint64)
    count = _hash_words(joined, ends, _letters(), words)
    return words[: _combine_words(words[:count], ends)], ends


def sign(shingles: Hashes, ends: Positions) -> Bytes:
    """Return signatures (texts, SIGNATURE): the share of equal bytes of two signatures estimates their similarity."""
    return _sign(shingles, ends, _permutations())


def estimated(similarity: float) -> int:
    """Return the expected number of equal bytes for two sets of that similarity: 1 of 256 is equal by chance."""
    return round(SIGNATURE * (similarity + (1 - similarity) / 256))


def rows_of_band(threshold: float) -> int:
    """Return the bytes of a band: the most that find 99% of the pairs at the threshold, for the fewest false positives."""
    valid = (rows for rows in range(8, 1, -1) if 1 - (1 - threshold**rows) ** (SIGNATURE // rows) >= 0.99)
    return next(valid, 1)


def likely_pairs(signatures: Bytes, order: Positions, splits: NDArray[np.uint16], threshold: float) -> Positions:
    """Return candidate pairs (n, 2) of documents whose similarity may reach the threshold, each once, sorted by the second.

    `order` lists the documents by split and then position. Documents of one split are paired, the earlier first, and
    those of split 0 (train) with those of all other splits, the one of train first.
    """
    rows = rows_of_band(threshold)
    # 0.1 is almost four standard errors of the estimate: at the threshold itself, one pair in 10,000 is lost.
    fewest = estimated(threshold - 0.1)
    counts = np.zeros((2, len(signatures)), dtype=np.uint8)
    found = []
    for band in range(SIGNATURE // rows):
        keys = _band_keys(signatures, order, band, rows)
        by_key = np.argsort(keys, kind="stable")
        pairs, count = _pair_buckets(keys[by_key], order[by_key], splits, signatures, band, rows, fewest, counts)
        found.append(pairs[:count].copy())
    # A pair across splits may have been found from both documents.
    first, second = np.concatenate(found).T
    codes = np.unique(second * len(signatures) + first)
    return np.stack((codes % len(signatures), codes // len(signatures)), axis=1)


def distinct(shingles: Hashes, ends: Positions) -> tuple[Hashes, Positions]:
    """Return the shingles as sets: sorted and unique in each text."""
    parts = [np.unique(part) for part in np.split(shingles, ends[:-1])]
    return np.concatenate(parts), np.cumsum([len(part) for part in parts])


def similarities(shingles: Hashes, ends: Positions, pairs: Positions) -> NDArray[np.float64]:
    """Return the Jaccard similarity of pairs of sets: the size of the intersection over that of the union."""
    return _similarities(shingles, ends, pairs)


def clusters(count: int, pairs: Positions) -> Positions:
    """Return for each of `count` items the first item that pairs connect it with, directly or indirectly."""
    return _clusters(count, pairs)


@compiled
def _hash_words(text: Bytes, ends: Positions, letters: NDArray[np.uint32], words: Hashes) -> int:
    """Write the hash of every word, convert the ends of texts from bytes to words, and return the number of words."""
    count, at = 0, 0
    nothing, prime = np.uint64(0), np.uint64(0x9E3779B97F4A7C15)
    for document in range(len(ends)):
        word = nothing
        while at < ends[document]:
            code = np.int64(text[at])
            at += 1
            if code >= 0xC0:  # a character of 2 to 4 bytes; Python encoded it, so it is valid UTF-8
                following = 1 + (code >= 0xE0) + (code >= 0xF0)
                code &= 0x3F >> following
                for _ in range(following):
                    code = code << 6 | np.int64(text[at]) & 0x3F
                    at += 1
            letter = letters[code]
            if letter != 0 and letter < ALONE:
                word = (word ^ np.uint64(letter)) * prime
                word ^= word >> np.uint64(29)
                continue
            if word != nothing:
                words[count] = word
                count += 1
                word = nothing
            if letter != 0:
                words[count] = np.uint64(letter) * prime
                count += 1
        if word != nothing:
            words[count] = word
            count += 1
        ends[document] = count
    return count


@compiled
def _combine_words(words: Hashes, ends: Positions) -> int:
    """Replace words by shingles in place (a text has at most as many); return the number of shingles."""
    begin, count = 0, 0
    for document in range(len(ends)):
        end = ends[document]
        size = min(SHINGLE, end - begin)
        for first in range(begin, end - size + 1 if size else begin):
            combined = np.uint64(size)
            for word in words[first : first + size]:
                combined = (combined ^ word) * np.uint64(0xBF58476D1CE4E5B9)
                combined ^= combined >> np.uint64(32)
            words[count] = combined * np.uint64(0x94D049BB133111EB)
            count += 1
        begin = end
        ends[document] = count
    return count


@compiled
def _sign(shingles: Hashes, ends: Positions, permutations: NDArray[np.uint32]) -> Bytes:
    signatures = np.empty((len(ends), SIGNATURE), dtype=np.uint8)
    least = np.empty(SIGNATURE, dtype=np.uint32)
    factors, summands = permutations[0], permutations[1]  # unpacking would make non-contiguous views: not vectorised
    begin = 0
    for document in range(len(ends)):
        least[:] = np.uint32(0xFFFFFFFF)
        for value in shingles[begin : ends[document]]:
            high = np.uint32(value >> np.uint64(32))
            for k in range(SIGNATURE):  # vectorised: 8 or 16 at a time
                least[k] = min(least[k], np.uint32(np.uint32(factors[k] * high) + summands[k]))
        begin = ends[document]
        for k in range(SIGNATURE):  # the top byte of a product depends on all bits of the minimum
            signatures[document, k] = np.uint8(np.uint32(least[k] * np.uint32(0x9E3779B1)) >> np.uint32(24))
    return signatures


@compiled
def _band_keys(signatures: Bytes, order: Positions, band: int, rows: int) -> Hashes:
    keys = np.empty(len(order), dtype=np.uint64)
    for at in range(len(order)):
        key = np.uint64(0)
        for byte in signatures[order[at], band * rows : (band + 1) * rows]:
            key = key << np.uint64(8) | np.uint64(byte)
        keys[at] = key
    return keys


@compiled
def _is_new(a: Bytes, b: Bytes, band: int, rows: int, fewest: int) -> bool:
    """Return whether two signatures have at least `fewest` equal bytes and no earlier band in common."""
    equal = 0
    for k in range(SIGNATURE):
        equal += a[k] == b[k]
    if equal < fewest:
        return False
    for earlier in range(band):
        same = 0
        for k in range(earlier * rows, (earlier + 1) * rows):
            same += a[k] == b[k]
        if same == rows:
            return False
    return True


@compiled
def _doubled(pairs: Positions) -> Positions:
    more = np.empty((2 * len(pairs), 2), dtype=np.int64)
    for at in range(len(pairs)):  # assigning slices would take five seconds to compile
        more[at, 0] = pairs[at, 0]
        more[at, 1] = pairs[at, 1]
    return more


@compiled
def _pair_buckets(
    keys: Hashes, order: Positions, splits: NDArray[np.uint16], signatures: Bytes,
    band: int, rows: int, fewest: int, counts: Bytes,
) -> tuple[Positions, int]:  # fmt: skip
    """Return the new pairs of one band and their number.

    A bucket is a run of equal keys: train, then the other splits.
    """
    pairs, count, begin = np.empty((1024, 2), dtype=np.int64), 0, 0
    while begin < len(keys):
        end = begin + 1
        while end < len(keys) and keys[end] == keys[begin]:
            end += 1
        border = begin
        while border < end and splits[order[border]] == 0:
            border += 1
        run = begin  # where the split of this document begins in the bucket
        for at in range(begin, end):
            if splits[order[at]] != splits[order[run]]:
                run = at
            # The documents that this one is paired with across splits: all others for train, train for the others.
            first, size = (border, end - border) if at < border else (begin, border - begin)
            own = min(at - run, MOST_TWINS)
            if count + 2 * MOST_TWINS > len(pairs):
                pairs = _doubled(pairs)
            for step in range(own + min(size, MOST_TWINS)):
                # Of its own split the preceding documents; of the others a different range in each band.
                other = at - 1 - step if step < own else first + (at + band * MOST_TWINS + step) % size
                a, b, kind = order[min(at, other)], order[max(at, other)], int(step >= own)
                if counts[kind, order[at]] < MOST_TWINS and _is_new(signatures[a], signatures[b], band, rows, fewest):
                    counts[kind, order[at]] += np.uint8(1)
                    pairs[count, 0] = a
                    pairs[count, 1] = b
                    count += 1
        begin = end
    return pairs, count


@compiled
def _similarities(shingles: Hashes, ends: Positions, pairs: Positions) -> NDArray[np.float64]:
    found = np.empty(len(pairs), dtype=np.float64)
    for number in range(len(pairs)):
        a, b = pairs[number]
        at, a_end = ends[a - 1] if a else 0, ends[a]
        other, b_end = ends[b - 1] if b else 0, ends[b]
        both, together = 0, a_end - at + b_end - other
        while at < a_end and other < b_end:
            if shingles[at] == shingles[other]:
                both += 1
                at += 1
                other += 1
            elif shingles[at] < shingles[other]:
                at += 1
            else:
                other += 1
        found[number] = both / (together - both)
    return found


@compiled
def _clusters(count: int, pairs: Positions) -> Positions:
    first = np.arange(count)
    for a, b in pairs:
        while first[a] != a:
            first[a] = first[first[a]]  # shortens the path for later lookups
            a = first[a]
        while first[b] != b:
            first[b] = first[first[b]]
            b = first[b]
        first[max(a, b)] = min(a, b)
    for at in range(count):
        first[at] = first[first[at]]  # never after `at`, and final for all before it
    return first
