"""Find a vector for each token of a vocabulary.

Owns: the word of a token, the forms of a word in their order, the table, and its statistics. Does not own: files
(`vector_files`), the cache (`vectors`), or the rows of tokens without a vector (the model).

A word is looked up unchanged; then, depending on the settings, in lower case and capitalised; then with plain
apostrophes, without 's and without surrounding apostrophes (each also in both cases). If all fail and the vectors are
a FastText model, the vector is composed of the word's n-grams.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lilliput.data.progress import Report
from lilliput.data.tokenizers import Tokenizer
from lilliput.data.vectors.vector_files import VectorFile
from lilliput.settings.tree import VectorSettings

STAGES = ("exact", "case", "apostrophes", "subword")
TRIES = 16  # more than the forms of one stage: the order of a form is stage x TRIES + its number in the stage
NONE = 255  # the order of a token without a vector

APOSTROPHES = str.maketrans(dict.fromkeys("\u2019\u2018\u02bc\uff07", "'"))
# What tokenizers put before a word: SentencePiece's U+2581, or white space.
WORD_BEGIN = "\u2581 \t\r\n"

UNCOVERED_SHOWN, PROBES, NEIGHBOURS = 20, 6, 5
PROBE_LETTERS = 5  # shorter words are mostly function words, whose neighbours are not informative
COUNTED = 1 << 22  # tokens counted at once


@dataclass(frozen=True)
class Lookup:
    """`order` is the order of the form that was found for each token; NONE if there is no vector (the row is then 0)."""

    table: NDArray[np.float32]  # (V, width)
    order: NDArray[np.uint8]  # (V,)

    @property
    def covered(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.order != NONE
        return found


def words_of(tokenizer: Tokenizer) -> list[str | None]:
    """Return the word of each token; None for special tokens, white space and incomplete characters.

    The word of a subword token is its spelling without the space before it.
    """
    special = {token["id"] for token in json.loads(tokenizer.to_json())["added_tokens"] if token["special"]}
    special |= {tokenizer.start, tokenizer.end, tokenizer.pad, tokenizer.unknown}
    found: list[str | None] = []
    for token_id in range(tokenizer.vocab_size):
        word = None if token_id in special else _spelled(tokenizer, token_id)
        found.append(word.strip(WORD_BEGIN) or None if word else None)
    return found


def _spelled(tokenizer: Tokenizer, token_id: int) -> str | None:
    if not tokenizer.byte_level:
        piece = tokenizer.token(token_id)
        return piece if piece != f"<unused {token_id}>" else None
    try:
        return tokenizer.token_bytes(token_id).decode()
    except UnicodeDecodeError:
        return None


def forms(word: str, settings: VectorSettings) -> Iterator[tuple[int, str]]:
    """Yield the forms of a word with their order (smaller is better)."""

    def cases(form: str) -> list[str]:
        return [form, form.lower(), form.capitalize()] if settings.case else [form]

    stages = [[word], cases(word)]
    if settings.apostrophes:
        plain = word.translate(APOSTROPHES)
        bare = [plain, plain.removesuffix("'s"), plain.removesuffix("'s").strip("'")]
        stages.append([form for one in bare for form in cases(one)])
    seen = {""}
    for stage, tried in enumerate(stages):
        for number, form in enumerate(tried):
            if form not in seen:
                yield stage * TRIES + number, form
                seen.add(form)


def look_up(file: VectorFile, words: list[str | None], settings: VectorSettings, report: Report) -> Lookup:
    """Find the vectors of all words in one pass over the file. A better form replaces a worse one."""
    wanted: dict[bytes, list[tuple[int, int]]] = {}
    for token_id, word in enumerate(words):
        for order, form in forms(word, settings) if word else ():
            wanted.setdefault(form.encode(), []).append((token_id, order))
    table = np.zeros((len(words), file.width), np.float32)
    best = np.full(len(words), NONE, np.uint8)
    for known, read in file.find(wanted, report):
        better = [(token_id, order) for token_id, order in wanted[known] if order < best[token_id]]
        if better:  # of a word that is in the file twice, the first vector counts
            row = read()
            for token_id, order in better:
                table[token_id], best[token_id] = row, order
    for token_id, word in enumerate(words):
        if word is not None and best[token_id] == NONE:
            composed = file.compose(word)
            if composed is not None:
                table[token_id], best[token_id] = composed, STAGES.index("subword") * TRIES
    return Lookup(table, best)


def count_tokens(tokens: NDArray[Any], vocab_size: int) -> NDArray[np.int64]:
    """Count each id in a token file, without loading the whole file."""
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, len(tokens), COUNTED):
        counts += np.bincount(tokens[start : start + COUNTED], minlength=vocab_size)
    return counts


def coverage(lookup: Lookup, words: list[str | None], counts: NDArray[np.int64], unknown: int | None) -> dict[str, Any]:
    """Return the share of the vocabulary (types) and of the text (tokens) that is covered up to each stage.

    Special tokens do not count as words. An unknown word of the text counts as a word without a vector.
    """
    is_word = np.array([word is not None for word in words])
    occurrences = int(counts[is_word].sum()) + (int(counts[unknown]) if unknown is not None else 0)
    shares = {}
    for stage, name in enumerate(STAGES):
        found = lookup.order < (stage + 1) * TRIES
        types, tokens = int(found.sum()) / max(1, int(is_word.sum())), int(counts[found].sum()) / max(1, occurrences)
        shares[name] = {"types": types, "tokens": tokens}
    return {"words": int(is_word.sum()), "occurrences": occurrences, "coverage": shares}


def most_frequent_uncovered(lookup: Lookup, words: list[str | None], counts: NDArray[np.int64]) -> list[list[Any]]:
    by_count = np.argsort(-counts, kind="stable")
    left = (index for index in by_count.tolist() if not lookup.covered[index] and words[index] is not None)
    return [[words[index], int(counts[index])] for index, _ in zip(left, range(UNCOVERED_SHOWN), strict=False)]


def neighbours(lookup: Lookup, words: list[str | None], counts: NDArray[np.int64]) -> dict[str, list[list[Any]]]:
    """Return the nearest words by cosine of a few frequent words, to check the table."""
    by_count = np.argsort(-counts, kind="stable")
    by_count = by_count[lookup.covered[by_count]]
    # A word found in another form shares that word's vector, so it would be its nearest neighbour.
    stages = lookup.order // TRIES
    own = np.flatnonzero((stages == STAGES.index("exact")) | (stages == STAGES.index("subword")))
    norms = np.sqrt(np.einsum("ij,ij->i", lookup.table, lookup.table)).clip(min=np.finfo(np.float32).tiny)
    result: dict[str, list[list[Any]]] = {}
    for index in by_count.tolist():
        word = words[index]
        assert word is not None
        if len(result) == PROBES:
            break
        if len(word) < PROBE_LETTERS or not word.isalpha() or word.lower() in map(str.lower, result):
            continue
        cosines = lookup.table @ lookup.table[index] / (norms * norms[index])
        near, seen = list[list[Any]](), {word.lower()}
        for other in own[np.argsort(-cosines[own], kind="stable")[: 8 * NEIGHBOURS]].tolist():
            name = words[other]
            assert name is not None
            if name.lower() not in seen and len(near) < NEIGHBOURS:
                near.append([name, round(float(cosines[other]), 4)])
                seen.add(name.lower())
        result[word] = near
    return result
