"""Scores over documents are the sums over their texts, one by one."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.attention_pages import small_writer
from helpers.labelled_corpora import token_file
from lilliput.errors import UserError
from lilliput.interpret import summarise_documents
from lilliput.interpret.attention_capture import HeadChoice, capture_ids
from lilliput.interpret.head_scores import Tally

LENGTHS = [5, 40, 1, 9, 31, 32]


@pytest.mark.parametrize("task", ["language", "classifier"])
def test_every_document_from_its_beginning(task: str) -> None:
    writer = small_writer(task=task, classes=3 if task == "classifier" else None)
    file = token_file(LENGTHS)
    found = summarise_documents(writer, file)
    expected, first = Tally(), [] if task == "classifier" else [writer.tokenizer.start]
    for number in range(len(LENGTHS)):
        ids = [*first, *file.tokens[file.offsets[number] : file.offsets[number + 1] - 1].tolist()][:32]
        if len(ids) > 1:
            expected.add(capture_ids(writer, ids, HeadChoice()))
    assert (found.texts, found.tokens) == (expected.texts, expected.tokens)
    assert found.tokens == (5 + 32 + 9 + 31 + 32 if task == "classifier" else 6 + 32 + 2 + 10 + 32 + 32)
    for one, other in zip(found.heads(), expected.heads(), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-12)


def test_a_sample_depends_on_its_seed_alone() -> None:
    writer, file = small_writer(), token_file(list(range(3, 30)))
    told: list[tuple[str, int, int | None]] = []
    one = summarise_documents(
        writer, file, 5, seed=1, report=lambda what, done, total: told.append((what, done, total))
    )
    assert one.texts == 5 and told[-1] == ("looking at documents", 5, 5)
    again, other = (summarise_documents(writer, file, 5, seed=seed) for seed in (1, 2))
    assert again.heads() == one.heads() != other.heads()
    chosen = summarise_documents(writer, file, 5, seed=1, layers=[1], heads=[0])
    (head,) = chosen.heads()
    expected = next(found for found in one.heads() if (found.layer, found.head) == (1, 0))
    assert head.scores == pytest.approx(expected.scores, abs=1e-12)


def test_documents_without_two_tokens() -> None:
    writer = small_writer(task="classifier", classes=3)
    with pytest.raises(UserError, match="no document has two tokens"):
        summarise_documents(writer, token_file([1, 1]))
    assert np.isfinite(summarise_documents(writer, token_file([1, 2])).heads()[0].scores["entropy"] or 0.0)
