"""The scores of a head, by name: what each is, exactly. The one place for the console, JSON, CSV, the page and the
guide.


Owns: names, words and the order in which people want to see them. Does not own: the arithmetic
(`head_scores`). Needs nothing but Python, so that a wrong name is told before anything is loaded.

In the definitions w is the weight that a token gives to another; a mean is over the tokens that have a
choice, which are those that may look at two tokens at least. No score is a claim about what a head is for.
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
        "mean of −Σ w log₂ w, in bits: 0 where a token looks at one token alone, log₂ n where it looks at n tokens alike",
        smallest_first=True,
    ),
    "distance": Score(
        "distance", "mean of Σ w · (how many tokens away), in tokens, in either direction", smallest_first=True
    ),
    "previous": Score("previous token", "mean weight on the token just before, over the tokens that may see it"),
    "first": Score("first token", "mean weight on the first token of the text, over the later tokens that may see it"),
    "punctuation": Score(
        "punctuation",
        "mean weight on tokens that have nothing but punctuation (Unicode's P, spaces aside), over the tokens that may see one",
    ),
    "same": Score(
        "same token", "mean weight on other places of the same token, over the tokens that may see such a place"
    ),
    "induction": Score(
        "induction",
        "mean weight on what came after other places of the same token (A B … A looks at B; itself aside), over the tokens that "
        "may see such a place",
    ),
}
