"""Notes before the first step: small texts, and weights of another run on another text."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from helpers.labelled_corpora import labelled_changes
from helpers.small_runs import TEXT, small_config, train_small, write_text
from lilliput.settings.tree import Config
from lilliput.storage.run_folders import best_validation
from lilliput.training.events import Evaluated
from lilliput.training.first_look import FEWEST_BYTES, bytes_per_token
from lilliput.training.session import open_session


def notes_of(config: Config, start_from: str | None = None) -> list[str]:
    with open_session(config, start_from=start_from) as session:
        return session.notes


def test_a_small_text_is_reported(tmp_path: Path) -> None:
    text = write_text(tmp_path)
    (note,) = notes_of(small_config(tmp_path, "small"))
    assert "bytes of training text are too few" in note
    text.write_text(TEXT * (1 + 2 * FEWEST_BYTES // len(TEXT)))
    assert notes_of(small_config(tmp_path, "large")) == []


def test_a_large_share_of_validation_is_reported(tmp_path: Path) -> None:
    write_text(tmp_path).write_text(TEXT * (1 + 8 * FEWEST_BYTES // len(TEXT)))
    (note,) = notes_of(small_config(tmp_path, "most", data__validation_share="0.75"))
    assert "data.validation_share 0.75" in note and re.match(r"7\d% of the text", note)


def test_few_labelled_documents_are_reported(tmp_path: Path) -> None:
    (note,) = notes_of(small_config(tmp_path, "labels", **labelled_changes(tmp_path)))
    assert "training documents are too few" in note


def test_weights_of_another_run(tmp_path: Path) -> None:
    bpe = {"tokenizer__kind": "bpe", "tokenizer__vocab_size": "300"}
    run, events = train_small(small_config(tmp_path, "old", train__steps="60", **bpe))
    log = best_validation(run.metrics())
    assert log is not None and run.best is not None
    expected = log["tokens"]
    assert bytes_per_token(run.best) == pytest.approx(math.log2(log["perplexity"]) / log["bits_per_byte"]) and expected
    last = [
        event.loss
        for event in events
        if isinstance(event, Evaluated) and not event.whole and event.step == run.best.step
    ]
    tokens, start = notes_of(small_config(tmp_path, "same"), str(run.folder))
    assert f"{bytes_per_token(run.best):.2f} on the text of the run" in tokens
    assert f"starting loss {last[-1]:.3f}" in start and "uniform" in start and "train a new model" not in start
    other = write_text(tmp_path, "other.txt", "\u65e5\u672c\u8a9e XYZ 123 %&/ " * 100)
    tokens, start = notes_of(small_config(tmp_path, "other", data__source=str(other)), str(run.folder))
    assert "train a new model" in start
