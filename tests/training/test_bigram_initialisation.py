"""Initialisation from bigram counts: equal to training the whole model, whose blocks are the identity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from helpers.small_runs import small_config
from lilliput.data.prepare.token_files import TokenFile
from lilliput.storage.run_folders import RunFolder
from lilliput.training import bigram_initialisation as pairs_module
from lilliput.training.bigram_initialisation import count_pairs, descend, learn_pairs
from lilliput.training.events import Stepped
from lilliput.training.session import Session, open_session

CPU = torch.device("cpu")
KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "capped": {"model__soft_cap": "5", "model__value_embeddings": "ends"},
    "words": {"tokenizer__kind": "word", "model__norm": "layer", "model__bias_head": "true"},
    "overlapping": {"data__windows": "overlapping", "model__positions": "none"},
}


@contextmanager
def opened(folder: Path, **changes: str) -> Iterator[Session]:
    with open_session(small_config(folder, **({"model__initialisation": "zero-residual"} | changes))) as session:
        yield session


def counted_by_hand(file: TokenFile, start: int) -> Counter[tuple[int, int]]:
    """Count the bigrams of each document, with `start` before it and its end token if there is one."""
    found: Counter[tuple[int, int]] = Counter()
    for begin, end in zip(file.offsets[:-1].tolist(), file.offsets[1:].tolist(), strict=True):
        document = file.tokens[begin : end if file.ends else end - 1].tolist()
        found.update(zip([start, *document[:-1]], document, strict=True))
    return found


def whole_loss(session: Session) -> torch.Tensor:
    """Return the loss of the whole model on the whole training split."""
    trainer = session.trainer
    batches = list(trainer.train.rows.in_order(16))
    goals = [trainer.objective.losses(trainer.model, batch).goal.sum() for batch in batches]
    return torch.stack(goals).sum() / sum(batch.tokens for batch in batches)


@pytest.mark.parametrize("kind", ["plain", "words"])
def test_bigram_counts_are_those_of_the_text(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, **KINDS[kind]) as session:
        rows, prepared = session.trainer.train.rows, session.prepared
        found = count_pairs(rows, prepared.tokenizer.vocab_size, 1, CPU)
        expected = counted_by_hand(prepared.split("train"), prepared.tokenizer.start)
    firsts = found.first[found.row].tolist()
    counts = dict(zip(zip(firsts, found.second.tolist(), strict=True), found.counts.tolist(), strict=True))
    assert counts == expected and found.total == expected.total()
    assert [firsts[border] for border in found.borders[:-1]] == found.first.tolist()
    assert found.borders[-1] == len(counts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1 << 22, 700])
def test_loss_and_gradients_equal_those_of_the_whole_model(
    tmp_path: Path, kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the whole text, in float64. The blocks are the identity, so only the other parameters are compared."""
    monkeypatch.setattr(pairs_module, "CHUNK_NUMBERS", chunk)
    with opened(tmp_path, **KINDS[kind]) as session:
        model, rows = session.trainer.model, session.trainer.train.rows
        expected = whole_loss(session)
        expected.backward()  # type: ignore[no-untyped-call]
        wanted = {name: p.grad for name, p in model.named_parameters() if not name.startswith("blocks")}
        model.zero_grad()
        found = descend(model, count_pairs(rows, session.prepared.tokenizer.vocab_size, 1, CPU))
        assert found == pytest.approx(expected.item(), rel=0, abs=1e-12)
        for name, gradient in wanted.items():
            torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=0, atol=1e-12, msg=name)


def test_only_embedding_and_head_change(tmp_path: Path) -> None:
    with opened(tmp_path, **KINDS["capped"]) as session:
        model, rows = session.trainer.model, session.trainer.train.rows
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        first = learn_pairs(model, rows, 1, 1, CPU)
        nats = learn_pairs(model, rows, 40, 1, CPU)
        changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
        assert changed == {"embedding.table.weight", "head.project.weight"}
        assert all(p.grad is None for p in model.parameters())
        counts = count_pairs(rows, session.prepared.tokenizer.vocab_size, 1, CPU)
        often = torch.zeros(len(counts.first), dtype=torch.float64).index_add_(0, counts.row, counts.counts.double())
        entropy = -(counts.counts * (counts.counts / often[counts.row]).log()).sum().item() / counts.total
        assert first == pytest.approx(torch.tensor(257.0).log().item(), abs=0.1)
        assert entropy < nats < entropy + 0.35, "a bigram model cannot be below the bigram entropy"


def test_a_long_text_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs_module, "MOST_TOKENS", 100)
    with opened(tmp_path) as session:
        found = count_pairs(session.trainer.train.rows, session.prepared.tokenizer.vocab_size, 1, CPU)
    assert 64 <= found.total <= 100


def losses(session: Session) -> list[float]:
    return [event.loss for event in session.events([]) if isinstance(event, Stepped)]


def test_training_continues_from_bigrams_and_their_time_counts(tmp_path: Path) -> None:
    with opened(tmp_path, train__pair_updates="30") as session:
        assert session.trainer.budget.seconds > 0.0
        (note,) = [note for note in session.notes if "bigram" in note]
        noted = float(note.split(": ")[1].split(" nats")[0])
        assert whole_loss(session).item() == pytest.approx(noted, abs=0.01)
        assert losses(session)[0] == pytest.approx(noted, abs=0.3)
    with opened(tmp_path, name="without") as session:
        assert session.trainer.budget.seconds == 0.0 and not [note for note in session.notes if "bigram" in note]
        assert losses(session)[0] > noted + 2.0


def test_weights_of_another_run_are_not_initialised_again(tmp_path: Path) -> None:
    with opened(tmp_path, train__pair_updates="5") as session:
        losses(session)
    config = small_config(
        tmp_path, "second", model__initialisation="zero-residual", train__pair_updates="5", train__steps="1"
    )
    with open_session(config, start_from=str(tmp_path / "runs" / "mine")) as session:
        assert not [note for note in session.notes if "bigram" in note]
        best = RunFolder(tmp_path / "runs" / "mine").best
        assert best is not None
        assert torch.equal(session.trainer.model.head.project.weight, best.load_model()["head.project.weight"])
