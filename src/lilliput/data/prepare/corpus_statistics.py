"""Statistics of a corpus, counted batch by batch in bounded memory.

Owns: the counters of a split, and the report. Does not own: counting within a batch (`encoding`), duplicates
(`duplicates`), or storage of the counts (`work_folder`, `token_files`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST = 5  # documents in the report
UNKNOWN_WORDS = 20  # in the report
# Different unknown words counted at once. Beyond this the rarest half is dropped: a frequent word reappears, with a
# count that is too small by its dropped occurrences.
MOST_WORDS = 200_000
PERCENTILES = (5, 25, 50, 75, 95)  # of the lengths of documents


@dataclass
class CorpusStatistics:
    """The counters of one split."""

    documents: int = 0
    bytes: int = 0
    tokens: int = 0  # of documents, without end tokens
    words: int = 0  # separated by white space
    unknown: int = 0  # tokens
    line_ends: int = 0  # replaced: CRLF and CR
    longest: list[tuple[int, int]] = field(default_factory=list)  # (tokens, document's number from 0), longest first
    unknown_words: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        lengths: NDArray[np.int64],
        sizes: NDArray[np.int64],
        words: int,
        unknown: int,
        unknown_words: Mapping[str, int],
    ) -> None:
        """Add a batch. `lengths` and `sizes`: tokens and bytes of each document; the others are totals."""
        # A stable sort: of equally long documents the first are listed.
        top = np.argsort(-lengths, kind="stable")[:LONGEST].tolist()
        self.longest += [(int(lengths[index]), self.documents + index) for index in top]
        self.longest = sorted(self.longest, key=lambda found: (-found[0], found[1]))[:LONGEST]
        self.documents += len(lengths)
        self.bytes += int(sizes.sum())
        self.tokens += int(lengths.sum())
        self.words += words
        self.unknown += unknown
        for word, count in unknown_words.items():
            self.unknown_words[word] = self.unknown_words.get(word, 0) + count
        if len(self.unknown_words) > MOST_WORDS:
            self.unknown_words = dict(most_frequent(self.unknown_words, MOST_WORDS // 2))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> CorpusStatistics:
        return CorpusStatistics(**{**found, "longest": [(tokens, number) for tokens, number in found["longest"]]})

    def summary(self, ends: bool) -> dict[str, Any]:
        """Return the entry of the manifest. `ends`: whether the vocabulary has an end token."""
        predictions = self.tokens + (self.documents if ends else 0)
        return {
            "documents": self.documents,
            "bytes": self.bytes,
            "tokens": predictions,
            "words": self.words,
            "bytes_per_token": self.bytes / predictions,
            "tokens_per_word": self.tokens / self.words if self.words else None,
            "unknown": self.unknown,
            "line_ends": self.line_ends,
            "unknown_rate": self.unknown / self.tokens,
            "unknown_words": most_frequent(self.unknown_words, UNKNOWN_WORDS),
            "longest": self.longest,
        }


def most_frequent(counts: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    """Return the most frequent words. Equal counts are in alphabetical order, unlike `Counter.most_common`."""
    return sorted(Counter(counts).items(), key=lambda found: (-found[1], found[0]))[:most]


BY_SPLIT = (
    "documents", "bytes", "tokens", "words", "bytes_per_token", "tokens_per_word", "unknown_rate", "empty", "dropped",
    "unknown_words", "line_ends",
)  # fmt: skip


def describe_corpus(
    manifest: Mapping[str, Any], lengths: Mapping[str, NDArray[np.int64]], context: int | None, has_unknown: bool
) -> dict[str, Any]:
    """Return the report of prepared data. `lengths`: by split, the tokens of each document without its end token.

    `has_unknown`: whether the vocabulary has an unknown token; else it covers every text, and `coverage` is None.
    """
    splits, tokenizer, order = manifest["splits"], manifest["tokenizer"], manifest["order"]
    found: dict[str, Any] = {"source": manifest["source"], "tokenizer": tokenizer["kind"]}
    found |= {name: {split: splits[split][name] for split in order} for name in BY_SPLIT}
    found |= {"vocab_size": tokenizer["vocab_size"], "lossy": tokenizer["lossy"] or any(found["line_ends"].values())}
    found["coverage"] = {split: 1 - splits[split]["unknown_rate"] if has_unknown else None for split in order}
    found["document_tokens"] = {split: describe_lengths(lengths[split]) for split in order}
    found["labels"] = None
    if manifest["labels"] is not None:
        found["labels"] = {
            split: dict(zip(manifest["labels"], splits[split]["labels"], strict=True)) for split in order
        }
    longest = [(tokens, split, number) for split in order for tokens, number in splits[split]["longest"]]
    longest.sort(key=lambda one: -one[0])
    found["longest"] = [
        {"split": split, "document": number, "tokens": tokens} for tokens, split, number in longest[:LONGEST]
    ]
    predictions = {split: found + tokenizer["ends"] for split, found in lengths.items()}
    found["cut"] = truncation(predictions, context) if context else None
    found["duplicates"] = manifest["duplicates"]
    return found


def describe_lengths(lengths: NDArray[np.int64]) -> dict[str, float]:
    """Return the mean, percentiles and maximum of the lengths of documents."""
    values = np.percentile(lengths, PERCENTILES).tolist()
    percentiles = {f"p{percent}": value for percent, value in zip(PERCENTILES, values, strict=True)}
    return {"mean": float(lengths.mean()), **percentiles, "max": int(lengths.max())}


def truncation(lengths: Mapping[str, NDArray[np.int64]], context: int) -> dict[str, Any]:
    """Return the share of documents longer than the context, and of tokens after the first window."""
    return {
        "context": context,
        "documents": {split: float((found > context).mean()) for split, found in lengths.items()},
        "tokens": {
            split: float(np.maximum(found - context, 0).sum() / found.sum()) for split, found in lengths.items()
        },
    }
