"""What preparing tells about a corpus: counted batch by batch, in memory that does not grow with it.

Owns: the counters of a split, and the report that is made of them. Does not own: counting inside a batch
(`encoding`), duplicates (`duplicates`), or where figures are kept (`work_folder`, `token_files`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST = 5  # documents that are named
UNKNOWN_WORDS = 20  # that are told
# Different unknown words that are counted at once. Beyond, the rarest half goes: a word that matters for the list comes
# back, and its count is then too small by what was dropped.
MOST_WORDS = 200_000


@dataclass
class CorpusStatistics:
    """The counters of one split. Adding batches in order gives the same ones whoever encoded them."""

    documents: int = 0
    bytes: int = 0
    tokens: int = 0  # of documents, without ends
    words: int = 0  # as white space separates them
    unknown: int = 0  # tokens
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
        """`lengths` and `sizes`: tokens and bytes of each document of a batch; the rest is counted over all of it."""
        # A stable sort: of equally long documents the first are named.
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
        """What the manifest keeps of them; `ends`: the vocabulary has a token that ends a document."""
        predictions = self.tokens + (self.documents if ends else 0)
        return {
            "documents": self.documents,
            "bytes": self.bytes,
            "tokens": predictions,
            "words": self.words,
            "bytes_per_token": self.bytes / predictions,
            "tokens_per_word": self.tokens / self.words if self.words else None,
            "unknown": self.unknown,
            "unknown_rate": self.unknown / self.tokens,
            "unknown_words": most_frequent(self.unknown_words, UNKNOWN_WORDS),
            "longest": self.longest,
        }


def most_frequent(counts: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    """Of equally frequent words the first of the alphabet: `Counter.most_common` would take the first that came."""
    return sorted(Counter(counts).items(), key=lambda found: (-found[1], found[0]))[:most]


BY_SPLIT = (
    "documents", "bytes", "tokens", "words", "bytes_per_token", "tokens_per_word", "unknown_rate", "empty", "dropped",
    "unknown_words",
)  # fmt: skip


def tell_figures(
    manifest: Mapping[str, Any], lengths: Mapping[str, NDArray[np.int64]], context: int | None
) -> dict[str, Any]:
    """The report of prepared data. `lengths`: predictions of each document, by split, where a context is given."""
    splits, tokenizer, order = manifest["splits"], manifest["tokenizer"], manifest["order"]
    found: dict[str, Any] = {"source": manifest["source"], "tokenizer": tokenizer["kind"]}
    found |= {name: tokenizer[name] for name in ("vocab_size", "lossy")}
    found |= {figure: {split: splits[split][figure] for split in order} for figure in BY_SPLIT}
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
    found["cut"] = tell_cut(lengths, context) if context else None
    found["duplicates"] = manifest["duplicates"]
    return found


def tell_cut(lengths: Mapping[str, NDArray[np.int64]], context: int) -> dict[str, Any]:
    """The share of documents that are longer than a context, and of tokens that stand beyond their first window."""
    return {
        "context": context,
        "documents": {split: float((found > context).mean()) for split, found in lengths.items()},
        "tokens": {
            split: float(np.maximum(found - context, 0).sum() / found.sum()) for split, found in lengths.items()
        },
    }
