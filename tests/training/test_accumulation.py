"""Gradient accumulation: micro-batches give the gradient of one large batch, and only one is in memory at a time.

The references use torch's cross-entropy over logits, without objectives or counts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.labelled_corpora import labelled_changes
from helpers.small_runs import small_config, write_text
from helpers.tiny_models import assert_same, gradients
from lilliput.data.batches import Batch, BothBatch, LabelledBatch, LanguageBatch
from lilliput.model.heads import LanguageAndLabelHead
from lilliput.model.transformer import Transformer
from lilliput.training.session import open_session

UNCLIPPED = {"optimizer__clip": "none"}
KEPT = 64  # bytes of a micro-batch that may be kept: its one or two losses, which are logged at the end
WEIGHTS = {"train__language_weight": "0.7", "train__label_weight": "1.9"}


def tensor(array: np.ndarray | None) -> Tensor | None:
    return None if array is None else torch.from_numpy(array)


def token_mean(model: Transformer, batch: Batch) -> Tensor:
    assert isinstance(batch, LanguageBatch)
    logits = model(torch.from_numpy(batch.ids), tensor(batch.pos), tensor(batch.doc))
    return F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.targets).flatten())


def label_mean(model: Transformer, batch: Batch) -> Tensor:
    assert isinstance(batch, LabelledBatch)
    return F.cross_entropy(model(torch.from_numpy(batch.ids), tensor(batch.pos)), torch.from_numpy(batch.labels))


def both_means(model: Transformer, batch: Batch) -> Tensor:
    assert isinstance(batch, BothBatch) and isinstance(model.head, LanguageAndLabelHead)
    ids = torch.from_numpy(batch.ids)
    now = model.begin(ids, tensor(batch.pos), None)
    labels = F.cross_entropy(model.head.label(model.trunk(ids, now), now), torch.from_numpy(batch.labels))
    return 0.7 * token_mean(model, batch) + 1.9 * labels


def settings_of(kind: str, folder: Path) -> dict[str, str]:
    """Rows of different lengths: some texts are shorter than the context, and the last window of a long text is short."""
    if kind in ("packed", "overlapping"):
        texts = ("The old bear went to the sea and sang. "[: 3 + 7 * n % 32] for n in range(40))
        write_text(folder, text="\n<|endoftext|>\n".join(texts))
        return {"data__windows": "aligned" if kind == "packed" else "overlapping", "model__context": "20"}
    labelled = labelled_changes(folder)
    if kind == "both":
        labelled |= {"model__task": "both", "model__context": "6", **WEIGHTS}
    return labelled


KINDS: dict[str, Callable[[Transformer, Batch], Tensor]] = {
    "packed": token_mean,
    "overlapping": token_mean,
    "labels": label_mean,
    "both": both_means,
}


def begin_before_smallest(trainer: Any, accumulate: int) -> list[Batch]:
    """Return the micro-batches of a step whose second one is the smallest of the epoch."""
    batches, rows = trainer.batches, trainer.train.rows
    smallest = min(range(batches.epoch_batches), key=lambda n: int(rows.sizes(batches.at(n)).sum()))
    batches.position = max(0, smallest - 1)
    return [rows.batch(batches.at(batches.position + n)) for n in range(accumulate)]


def gradient_of_step(trainer: Any) -> dict[str, Tensor]:
    """Return the gradients that the optimizer receives in one step."""
    found: dict[str, Tensor] = {}
    trainer.optimizer.register_step_pre_hook(lambda *_: found.update(gradients(trainer.model)))
    trainer.update()
    return found


@pytest.mark.parametrize(("batch", "accumulate"), [(1, 9), (3, 5), (7, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_give_the_gradient_of_one_large_batch(
    tmp_path: Path, kind: str, batch: int, accumulate: int
) -> None:
    sizes = {"train__batch": str(batch), "train__accumulate": str(accumulate)}
    with open_session(small_config(tmp_path, **settings_of(kind, tmp_path), **sizes, **UNCLIPPED)) as session:
        trainer = session.trainer
        parts = begin_before_smallest(trainer, accumulate)
        assert len({part.counts for part in parts}) > 1 or (kind == "labels" and batch == 1), "all counts are equal"
        whole = trainer.train.rows.batch(np.concatenate([part.rows for part in parts]))
        KINDS[kind](trainer.model, whole).backward()  # type: ignore[no-untyped-call]
        expected = gradients(trainer.model)
        trainer.model.zero_grad()
        found = gradient_of_step(trainer)
    assert found.keys() == expected.keys()
    assert max(gradient.abs().max() for gradient in expected.values()) > 0.01
    for name, gradient in expected.items():
        assert_same(found[name], gradient)


def test_mean_of_micro_batch_means_differs(tmp_path: Path) -> None:
    """Dividing each micro-batch by its own count gives another gradient, so the test above can fail."""
    sizes = {"train__batch": "1", "train__accumulate": "9"}
    with open_session(small_config(tmp_path, **settings_of("packed", tmp_path), **sizes, **UNCLIPPED)) as session:
        trainer = session.trainer
        for part in begin_before_smallest(trainer, 9):
            (token_mean(trainer.model, part) / 9).backward()  # type: ignore[no-untyped-call]
        mean = gradients(trainer.model)
        trainer.model.zero_grad()
        found = gradient_of_step(trainer)
    assert max((found[name] - mean[name]).abs().max().item() for name in found) > 1e-4


# ---- memory


class LiveBytes(TorchDispatchMode):
    """Count the bytes of all new tensors that are still in memory; `peak` is the maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, Tensor):
                self.see(each.untyped_storage())
        return made

    def see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.known:
            return
        size = storage.nbytes()
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.forget, key, size)

    def forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def peak_of_update(folder: Path, kind: str, accumulate: int) -> tuple[int, int]:
    """Return the peak bytes of tensors in the second step, and the bytes of all weights."""
    changes = settings_of(kind, folder) | {"train__batch": "6", "model__context": "8", "train__precision": "float32"}
    config = small_config(folder, f"{kind}-{accumulate}", **changes, train__accumulate=str(accumulate))
    with open_session(config) as session:
        trainer = session.trainer
        rows = trainer.train.rows
        longest = np.flatnonzero(rows.sizes(np.arange(len(rows))) == 8)[:6]  # of one size, so that the peak is stable
        assert len(longest) == 6
        trainer.batches.at = lambda position: longest  # type: ignore[method-assign]
        trainer.update()
        with LiveBytes() as live:
            trainer.update()
        return live.peak, sum(4 * weight.numel() for weight in trainer.model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_with_the_number_of_micro_batches(tmp_path: Path, kind: str) -> None:
    """By the bytes of live tensors: eight micro-batches need as much as two, and two at most one gradient more than one."""
    one, two, eight = (peak_of_update(tmp_path, kind, accumulate) for accumulate in (1, 2, 8))
    assert 0 <= eight[0] - two[0] <= 6 * KEPT
    assert 0 <= two[0] - one[0] <= two[1] + KEPT, "a second micro-batch is added to the gradient of the first"
    assert one[0] > 2 * one[1], "activations are not counted"
