"""A classifier that begins as naive Bayes: equal to the textbook's, and to scikit-learn's; which pairs have a row."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from labelled import labelled_changes
from lilliput.data.batches import LabelledBatch
from lilliput.errors import UserError
from lilliput.evaluation.classification import batch_logits
from lilliput.model.mixing import PairEmbedding
from lilliput.model.transformer import Transformer, evaluating
from lilliput.storage.run_folders import Run
from lilliput.training import naive_bayes
from lilliput.training.events import Stepped
from lilliput.training.naive_bayes import begin_as_naive_bayes, list_pairs, read_documents
from lilliput.training.session import Session, open_session
from small import small_config

CLASSIFIER = {"model__initialisation": "zero-residual", "model__final_norm": "false", "model__positions": "none"}
KINDS: dict[str, dict[str, str]] = {
    "words": {},
    "balanced": {"train__balance_labels": "true", "model__positions": "rotary", "model__dropout": "0.5"},
    "pairs": {"model__pairs": "999", "model__mix_embedding": "true", "model__value_embeddings": "ends"},
    "few pairs": {"model__pairs": "5", "model__classifier_hidden": "7", "train__balance_labels": "true"},
}
Floats = NDArray[np.float64]
Said = list[tuple[list[int], int]]


@contextmanager
def opened(folder: Path, name: str = "mine", **changes: str) -> Iterator[Session]:
    with open_session(small_config(folder, name, **(labelled_changes(folder) | CLASSIFIER | changes))) as session:
        yield session


def batch_of(session: Session, split: str = "train") -> LabelledBatch:
    (batch,) = session.trainer.objective.open(session.prepared.split(split), training=False).rows.in_order(999)
    assert isinstance(batch, LabelledBatch)
    return batch


def documents(batch: LabelledBatch) -> Said:
    pos = np.zeros_like(batch.ids) if batch.pos is None else batch.pos
    return [
        (ids[at >= 0].tolist(), label) for ids, at, label in zip(batch.ids, pos, batch.labels.tolist(), strict=True)
    ]


def logits_of(model: Transformer, batch: LabelledBatch) -> Floats:
    with torch.no_grad(), evaluating(model):
        return batch_logits(model, batch).numpy()


def pairs_of(ids: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(ids))


def commonest_pairs(said: Said, most: int) -> set[tuple[int, int]]:
    counts = Counter(pair for ids, _ in said for pair in pairs_of(ids))
    return set(sorted(counts, key=lambda pair: (-counts[pair], pair))[:most])


def by_hand(said: Said, judged: Said, smoothing: float, most_pairs: int, balanced: bool) -> Floats:
    """By dictionaries: sums of logarithms, as if every document had the mean length."""
    chosen = commonest_pairs(said, most_pairs)
    length = sum(len(ids) for ids, _ in said) / len(said)

    def things(ids: list[int]) -> tuple[list[object], ...]:
        return list(ids), [pair for pair in pairs_of(ids) if pair in chosen]

    logits = np.zeros((len(judged), 3))
    for label in range(3):
        share = math.log(sum(own == label for _, own in said) / len(said))
        for kind in range(2):
            known = {thing for ids, _ in said for thing in things(ids)[kind]}
            counts = Counter(thing for ids, own in said if own == label for thing in things(ids)[kind])
            total = counts.total() + smoothing * len(known)
            for row, (ids, _) in enumerate(judged):
                logs = [math.log((counts[thing] + smoothing) / total) for thing in things(ids)[kind] if thing in known]
                logits[row, label] += length * sum(logs) / max(1, len(ids))
        logits[:, label] += 0.0 if balanced else share
    return logits


def centred(logits: Floats) -> Floats:
    return logits - logits.mean(axis=1, keepdims=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["train", "heard"])
def test_a_net_that_begins_so_is_naive_bayes(tmp_path: Path, kind: str, split: str) -> None:
    """In float64, on what was counted and on what was not, words among it that training does not have."""
    changes = KINDS[kind]
    with opened(tmp_path, train__naive_bayes="0.3", **changes) as session:
        said, judged = documents(batch_of(session)), batch_of(session, split)
        found = logits_of(session.trainer.model, judged)
        vocab_size = session.prepared.tokenizer.vocab_size
    balanced = "train__balance_labels" in changes
    expected = by_hand(said, documents(judged), 0.3, int(changes.get("model__pairs", "0")), balanced)
    assert len({token for ids, _ in said for token in ids}) < vocab_size
    np.testing.assert_allclose(centred(found), centred(expected), rtol=0, atol=1e-12)


def test_it_answers_as_scikit_learn_does(tmp_path: Path) -> None:
    sklearn = pytest.importorskip("sklearn.naive_bayes")
    with opened(tmp_path, train__naive_bayes="0.3", train__balance_labels="true", model__pairs="999") as session:
        said, judged = documents(batch_of(session)), batch_of(session, "heard")
        found = logits_of(session.trainer.model, judged)
    expected = np.zeros((len(judged.ids), 3))
    things = [lambda ids: list(ids), pairs_of]
    for of in things:
        names = sorted({thing for ids, _ in said for thing in of(ids)})  # type: ignore[type-var]

        def table(texts: Said) -> NDArray[np.int64]:
            return np.array([[of(ids).count(name) for name in names] for ids, _ in texts])  # noqa: B023

        bayes = sklearn.MultinomialNB(alpha=0.3, fit_prior=False)
        bayes.fit(table(said), [label for _, label in said])
        expected += bayes.predict_joint_log_proba(table(documents(judged)))
    lengths = np.array([len(ids) for ids, _ in documents(judged)])
    mean = np.mean([len(ids) for ids, _ in said])
    np.testing.assert_allclose(centred(found), centred(expected) * (mean / lengths)[:, None], rtol=0, atol=1e-12)


def test_only_the_two_ends_are_touched_and_words_stay_unlike(tmp_path: Path) -> None:
    with opened(tmp_path, **KINDS["pairs"]) as session:
        model, rows = session.trainer.model, session.trainer.train.rows
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        begin_as_naive_bayes(model, rows, 0.3, False, 1)
        changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
        ends = {"head.inner.weight", "head.project.weight", "head.project.bias"}
        assert changed == {"embedding.table.weight", "pairs.table.weight"} | ends
        table = model.embedding.table.weight.detach()
        assert torch.linalg.matrix_rank(table - before["embedding.table.weight"]) <= 3
        assert torch.linalg.matrix_rank(table) == 15  # of 16: along the three directions rows add up to 0
        assert all(p.grad is None and p.requires_grad for p in model.parameters())
        model(torch.tensor([[3, 4]])).sum().backward()
        assert all(p.grad is not None for p in model.head.parameters())


@pytest.mark.parametrize("most", [5, 999])
def test_the_most_frequent_pairs_have_a_row(tmp_path: Path, most: int) -> None:
    with opened(tmp_path, model__pairs=str(most)) as session:
        pairs, said = session.trainer.model.pairs, documents(batch_of(session))
        assert isinstance(pairs, PairEmbedding)
        size = session.prepared.tokenizer.vocab_size
        listed = pairs.listed[pairs.listed != pairs.NONE].tolist()
        assert listed == sorted(first * size + second for first, second in commonest_pairs(said, most))
        assert torch.equal(pairs.listed, pairs.listed.sort().values) and len(pairs.listed) == most
        assert not [note for note in session.notes if "begun" in note] and session.trainer.budget.seconds == 0.0


def test_a_long_text_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naive_bayes, "MOST_TOKENS", 80)
    with opened(tmp_path, model__pairs="9") as session:
        read = read_documents(session.trainer.train.rows, session.prepared.tokenizer.vocab_size, 1)
        assert len(read.labels) == 10 and len(read.pairs) == len(read.tokens) - 10
        list_pairs(session.trainer.model, session.trainer.train.rows, 1)


def losses(session: Session) -> list[float]:
    return [event.loss for event in session.events([]) if isinstance(event, Stepped)]


def test_a_run_goes_on_from_it_and_its_clock_with_it(tmp_path: Path) -> None:
    with opened(tmp_path, train__naive_bayes="0.3") as session:
        assert session.trainer.budget.seconds > 0.0
        (note,) = [note for note in session.notes if "naive Bayes" in note]
        batch = batch_of(session)
        right = (logits_of(session.trainer.model, batch).argmax(axis=1) == batch.labels).mean()
        assert note == f"begun as naive Bayes: {right:.1%} of training right, 0 s" and right > 0.8
        assert losses(session)[0] < 0.6
    with opened(tmp_path, "without") as session:
        assert losses(session)[0] > 0.9


def test_weights_of_another_run_are_not_begun_anew(tmp_path: Path) -> None:
    changes = {"train__naive_bayes": "0.3", "model__pairs": "20"}
    with opened(tmp_path, **changes) as session:
        losses(session)
    config = small_config(
        tmp_path, "second", **(labelled_changes(tmp_path) | CLASSIFIER | changes | {"train__steps": "1"})
    )
    with open_session(config, start_from=str(tmp_path / "runs" / "mine")) as session:
        assert not [note for note in session.notes if "naive Bayes" in note]
        best = Run(tmp_path / "runs" / "mine").best
        assert best is not None
        kept = best.load_model()
        for name in ("head.project.weight", "pairs.listed", "pairs.table.weight"):
            assert torch.equal(session.trainer.model.state_dict()[name], kept[name])


@pytest.mark.parametrize("changes", [{"model__dim": "2", "model__heads": "1"}, {"model__classifier_hidden": "5"}])
def test_a_net_too_narrow_for_its_labels(tmp_path: Path, changes: dict[str, str]) -> None:
    with pytest.raises(UserError) as caught, opened(tmp_path, train__naive_bayes="1", **changes):
        pass
    assert str(caught.value).splitlines() == [
        "naive Bayes of 3 labels needs model.dim 3 and model.classifier_hidden 6 or more",
        "  at  train.naive_bayes",
        "  try a wider model, or train.naive_bayes none",
    ]
