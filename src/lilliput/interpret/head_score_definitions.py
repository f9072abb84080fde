"""Names, titles and definitions of the scores of a head, for the console, JSON, CSV, the page and the guide.

Owns: names, titles, definitions and sort order. Does not own: the arithmetic (`head_scores`). Imports nothing else, so that
an unknown name is reported before anything is loaded.

In the definitions, w is an attention weight. A mean is over the tokens with at least two visible tokens and, where the score
names a kind of token, at least one visible token of that kind.
"""

from __future__ import annotations

from typing import NamedTuple


class Score(NamedTuple):
    title: str
    definition: str
    smallest_first: bool = False


SCORES = {
    "entropy": Score(
        "entropy",
        "mean of −Σ w log₂ w, in bits; log₂ n for equal weights on n tokens",
        smallest_first=True,
    ),
    "distance": Score("distance", "mean of Σ w · distance, in tokens, in either direction", smallest_first=True),
    "previous": Score("previous token", "mean weight on the preceding token"),
    "first": Score(
        "first token",
        "mean weight of later tokens on the first token that the model reads (of a language model: its start token)",
    ),
    "punctuation": Score("punctuation", "mean weight on tokens of punctuation only (Unicode category P)"),
    "same": Score("same token", "mean weight on other occurrences of the same token"),
    "induction": Score("induction", "mean weight on tokens after other occurrences of the same token (A B … A → B)"),
}
