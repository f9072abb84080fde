"""Distributions over the vocabulary: equal to the nats of single tokens and to dictionaries, and normalised."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.labelled_corpora import token_file
from helpers.ngram_reference import START, VOCAB, ByDefinition, Gram, documents, make_file
from lilliput.data.ngrams.kneser_ney import Floats, NGrams, TokenSequence, lay_out
from lilliput.data.ngrams.sparse_tables import SparseTables

# After training texts, after texts that end like them, and after ids that are not in training.
OTHERS: list[Gram] = [(), (0,), (17,), (17, 3), (3, 17), (0, 1, 2, 3, 4), (5, 17, 1, 2), (START,), (3, START, 2)]


def contexts(train: list[Gram], start: int) -> list[Gram]:
    """Return prefixes of training documents, from the start token alone to whole documents, and other texts."""
    prefixes = [document[:length] for document in train for length in range(1, len(document) + 1, 3)]
    return [*prefixes, *((start, *other) for other in OTHERS)]


def by_scoring(counts: NGrams, context: Gram) -> Floats:
    """Return the probability of each token after the context, each scored as the last token of a document."""
    rows = np.tile(np.array([*context, 0]), (counts.vocab_size, 1))
    rows[:, -1] = np.arange(counts.vocab_size)
    text = TokenSequence(rows.ravel(), np.tile(np.arange(rows.shape[1]), counts.vocab_size))
    *_, nats = counts.nats(text)
    return np.exp(-nats.reshape(counts.vocab_size, -1)[:, -1])


@pytest.mark.parametrize("start", [START, 2], ids=["separate start token", "start token that also occurs in texts"])
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("order", [1, 2, 5])
def test_equals_the_probabilities_of_single_tokens(order: int, ends: bool, start: int) -> None:
    train = make_file(0, ends)
    counts, every = NGrams(lay_out(train, start), VOCAB, order), contexts(documents(train, start), start)
    found = SparseTables(counts).distributions(every)
    expected = np.stack([by_scoring(counts, context) for context in every])
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=0)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)


def test_equals_the_definition() -> None:
    train = documents(make_file(0), START)
    reference, every = ByDefinition(train, 5, None), contexts(train, START)[::5]
    found = SparseTables(NGrams(lay_out(make_file(0), START), VOCAB, 5)).distributions(every)
    for row, context in zip(found, every, strict=True):
        expected = [reference.probability(token, context[-4:]) for token in range(VOCAB)]
        np.testing.assert_allclose(row, expected, rtol=1e-12, atol=0)


def test_a_row_does_not_depend_on_the_others() -> None:
    train = make_file(0)
    tables, every = SparseTables(NGrams(lay_out(train, START), VOCAB, 5)), contexts(documents(train, START), START)
    together = tables.distributions(every)
    for row, context in zip(together, every, strict=True):
        assert np.array_equal(tables.distributions([context])[0], row)


def test_only_the_last_tokens_are_read() -> None:
    """The start token counts only where the text is shorter than the context."""
    train = make_file(0)
    tables = SparseTables(NGrams(lay_out(train, START), VOCAB, 5))
    long, other, short = tables.distributions([(START, 5, 5, 0, 1, 2, 3), (17, 4, 0, 1, 2, 3), (START, 0, 1, 2, 3)])
    assert np.array_equal(long, other) and np.array_equal(long, short)
    begin, middle = tables.distributions([(START,), (3,)])
    assert not np.allclose(begin, middle)


@pytest.mark.parametrize("lengths", [[1], [0], [2, 0, 1]])
def test_very_short_texts(lengths: list[int]) -> None:
    """Some orders have no n-grams at all."""
    found = SparseTables(NGrams(lay_out(token_file(lengths), START), VOCAB, 5)).distributions([(START,), (START, 3, 4)])
    assert (found > 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
