"""Names, titles and definitions of the scores and functions of a head, for the console, JSON, CSV, the page and the guides.

Owns: names, titles, definitions and sort order. Does not own: the arithmetic (`head_scores`, `head_functions`). Imports
nothing else, so that an unknown name is reported before anything is loaded.

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


class HeadFunction(NamedTuple):
    """A function that a head may have. `positional`: it is a function of positions alone, so that only equal weights on all
    visible tokens are a baseline, not the mean weight by distance."""

    title: str
    definition: str
    positional: bool = False


# Of the token scores above, those that are weights; then relations of annotated words; then similarity.
FUNCTIONS = {
    "previous": HeadFunction("previous token", "weight on the preceding token", positional=True),
    "first": HeadFunction("first token", "weight on the first token of the text", positional=True),
    "punctuation": HeadFunction("punctuation", "weight on tokens of punctuation only"),
    "same": HeadFunction("same token", "weight on other occurrences of the same token"),
    "induction": HeadFunction("induction", "weight on tokens after other occurrences of the same token"),
    "subject-verb": HeadFunction("subject and verb", "weight between a subject (nsubj) and its verb (VERB, AUX)"),
    "article-noun": HeadFunction("article and noun", "weight between an article (det, PronType=Art) and its noun"),
    "adjective-noun": HeadFunction("adjective and noun", "weight between an adjective (amod) and its noun"),
    "preposition-object": HeadFunction(
        "preposition and object", "weight between a preposition (case, ADP) and its noun or pronoun"
    ),
    "verb-object": HeadFunction("verb and object", "weight between an object (obj) and its verb (VERB)"),
    "pronoun-antecedent": HeadFunction("pronoun and antecedent", "weight between a pronoun (PRON) and its Antecedent"),
    "recall": HeadFunction(
        "recall of a fact",
        "weight on the Antecedent of the next word, from the token before that word; the next word is not a pronoun",
    ),
    "similarity": HeadFunction(
        "semantic similarity", "correlation of the weights with the cosine of the embeddings of query and key"
    ),
}
