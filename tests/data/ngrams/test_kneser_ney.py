"""Kneser-Ney n-grams: equal to a dictionary implementation of the definition, and normalised."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.labelled_corpora import token_file
from helpers.ngram_reference import START, VOCAB, ByDefinition, Gram, documents, make_file
from helpers.shared_data import DATA, needs_data
from lilliput.data.ngrams.kneser_ney import (
    Discounts,
    NGrams,
    TokenSequence,
    choose_order,
    estimate_discounts,
    lay_out,
)
from lilliput.data.prepare.token_files import TokenFile


@pytest.mark.parametrize("start", [START, 2], ids=["separate start token", "start token that also occurs in texts"])
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("discount", [None, 0.9, 0.4])
def test_equals_the_definition(discount: float | None, ends: bool, start: int) -> None:
    train, evaluated = make_file(0, ends), make_file(1, ends, below=8)  # two ids are not in training
    found = list(NGrams(lay_out(train, start), VOCAB, 5).nats(lay_out(evaluated, start), discount))
    assert len(found) == 5
    for order, nats in enumerate(found, start=1):
        assert len(nats) == evaluated.predictions
        expected = ByDefinition(documents(train, start), order, discount).nats(documents(evaluated, start))
        np.testing.assert_allclose(nats, expected, rtol=1e-12, atol=0)


def every_next(context: Gram, vocab_size: int, start: int) -> TokenSequence:
    """Return the context followed by each id of the vocabulary, as separate documents."""
    rows = np.tile(np.array([start, *context, 0]), (vocab_size, 1))
    rows[:, -1] = np.arange(vocab_size)
    return TokenSequence(rows.ravel(), np.tile(np.arange(rows.shape[1]), vocab_size))


def mass(counts: NGrams, context: Gram, start: int, discount: float | None) -> list[float]:
    text = every_next(context, counts.vocab_size, start)
    return [float(np.exp(-one.reshape(counts.vocab_size, -1)[:, -1]).sum()) for one in counts.nats(text, discount)]


@pytest.mark.parametrize("discount", [None, 1.0, 0.9, 0.01])
def test_sums_to_one_over_the_vocabulary(discount: float | None) -> None:
    """Contexts that are in training, that end like one in training, and that are not in training."""
    train = make_file(0)
    counts = NGrams(lay_out(train, START), VOCAB, 5)
    contexts: list[Gram] = [(), (0,), (17,), (17, 3), (3, 17), (0, 1, 2, 3, 4)]
    contexts += [document[at : at + 6] for document in documents(train, START) for at in range(1, 50, 7)]
    for context in contexts:
        assert mass(counts, context, START, discount) == pytest.approx([1.0] * 5, rel=1e-12)


def test_order_one_equals_its_closed_form() -> None:
    train = make_file(0)
    targets = np.concatenate([document[1:] for document in documents(train, START)])
    counts = np.bincount(targets, minlength=VOCAB)
    expected = (np.maximum(counts - 0.7, 0) + 0.7 * (counts > 0).sum() / VOCAB) / counts.sum()
    (nats,) = NGrams(lay_out(train, START), VOCAB, 1).nats(every_next((), VOCAB, START), 0.7)
    np.testing.assert_allclose(nats, -np.log(expected), rtol=1e-12)


def test_a_lower_order_does_not_depend_on_the_highest() -> None:
    train, evaluated = lay_out(make_file(0), START), lay_out(make_file(1), START)
    five, two = (list(NGrams(train, VOCAB, order).nats(evaluated)) for order in (5, 2))
    assert all(np.array_equal(one, other) for one, other in zip(five[:2], two, strict=True))


def test_no_ngram_crosses_a_document_border() -> None:
    files = [token_file(lengths, below=6, seed=0) for lengths in ([30, 20], [20, 30])]
    tokens = [one.tokens[one.tokens != START] for one in files]
    assert np.array_equal(*tokens)
    evaluated = lay_out(make_file(1), START)
    other = [np.concatenate(list(NGrams(lay_out(one, START), VOCAB, 3).nats(evaluated))) for one in files]
    assert not np.allclose(*other)
    swapped = token_file([20, 30], below=6, seed=0)
    parts = [swapped.tokens[1:22], swapped.tokens[22:]]
    swapped = TokenFile(np.concatenate([[START], parts[1], parts[0]]), np.array([1, 32, 53]), np.array([30, 20]))
    same = np.concatenate(list(NGrams(lay_out(swapped, START), VOCAB, 3).nats(evaluated)))
    np.testing.assert_allclose(same, other[1], rtol=1e-12)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1] * 8 + [2] * 4 + [3] * 2 + [4], Discounts(0.5, 1.25, 2.0)),
        ([1] * 8 + [2] * 4, Discounts(0.5, 0.5, 0.5)),  # no count of 3
        ([1] * 8 + [2] * 1 + [3] * 9 + [4], Discounts(0.8, 0.8, 0.8)),  # the estimate for 2 would be negative
        ([1] * 5, Discounts(1.0, 1.0, 1.0)),
        ([7, 9], Discounts(0.5, 0.5, 0.5)),
        ([], Discounts(0.5, 0.5, 0.5)),
    ],
)
def test_discounts(counts: list[int], expected: Discounts) -> None:
    assert estimate_discounts(np.array(counts, np.int64)) == pytest.approx(expected, rel=1e-12)


def test_probabilities_are_positive_after_regular_text() -> None:
    """Every n-gram occurs many times: a discount of zero would leave no mass for unseen tokens."""
    tokens = np.array([START, *[0, 1] * 50, START])
    train = TokenFile(tokens, np.array([1, len(tokens)]), np.array([100]))
    for nats in NGrams(lay_out(train, START), VOCAB, 5).nats(every_next((0, 1, 0, 1, 0), VOCAB, START)):
        assert np.isfinite(nats).all()


def test_lay_out_of_the_first_tokens() -> None:
    file = make_file(0)
    whole = lay_out(file, START)
    for most in (1, 2, 4, 5, 46, len(whole.ids) - 1):
        part = lay_out(file, START, most)
        assert np.array_equal(part.ids, whole.ids[:most]) and np.array_equal(part.place, whole.place[:most])
    assert np.array_equal(lay_out(file, START, len(whole.ids)).ids, whole.ids)


def test_the_order_is_chosen_on_the_last_tenth_of_training() -> None:
    """The last tenth is held out and scored with its context in the text."""
    text = lay_out(token_file([150, 100, 150], below=4, seed=3), START)
    border = len(text.ids) - len(text.ids) // 10
    counts = NGrams(text.before(border), VOCAB, 4)
    held = text.predicted.cumsum()[border - 1]
    expected = [nats[held:].sum() for nats in counts.nats(text)]
    assert choose_order(text, VOCAB, (1, 2, 3, 4)) == 1 + int(np.argmin(expected))
    assert choose_order(text, VOCAB, (3, 4)) == 3 + int(np.argmin(expected[2:]))
    tokens = np.array([START, *[0, 1, 2, 0, 3] * 40, START])
    regular = lay_out(TokenFile(tokens, np.array([1, len(tokens)]), np.array([200])), START)
    assert choose_order(regular, VOCAB, (1, 2, 3)) == 3  # the token after 0 depends on the token before it


@pytest.mark.parametrize("lengths", [[1], [0], [2, 0, 1]])
def test_very_short_texts(lengths: list[int]) -> None:
    text = lay_out(token_file(lengths), START)
    for nats in NGrams(text, VOCAB, 5).nats(text):
        assert np.isfinite(nats).all()
    assert choose_order(text, VOCAB, (1, 2, 3)) in (1, 2, 3)


@needs_data
def test_perplexity_of_the_speeches() -> None:
    """Published perplexities of the trigram with discount 0.9: one document, `<pad>` is its start, no end is predicted."""
    folder = DATA / "speeches" / "tokenised"
    words = {word: number for number, word in enumerate((folder / "vocab.txt").read_text("utf-8").split("\n")[:-1])}

    def read(name: str) -> TokenSequence:
        ids = [words.get(word, 1) for word in (folder / f"{name}.tok.txt").read_text("utf-8").split()]
        tokens = np.array([0, *ids, 0])
        return lay_out(TokenFile(tokens, np.array([1, len(tokens)]), np.array([1]), ends=False), 0)

    train = read("train_LM")
    counts = NGrams(train, len(words), 5)
    for name, published in {"obama": 239, "wbush": 358, "hbush": 267}.items():
        evaluated = read(f"test_LM_{name}")
        trigram = list(counts.nats(evaluated, 0.9))[2]
        assert int(np.exp(trigram.mean())) == published
        assert np.exp(list(counts.nats(evaluated))[2].mean()) < np.exp(trigram.mean())
    generator = np.random.default_rng(0)
    for at in generator.integers(4, len(train.ids) - 4, size=3).tolist():
        context = tuple(train.ids[at : at + 4].tolist())
        assert mass(counts, context, 0, None) == pytest.approx([1.0] * 5, rel=1e-12)
    assert choose_order(train, len(words), (1, 2, 3, 4, 5)) == 4
