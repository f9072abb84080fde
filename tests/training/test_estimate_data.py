"""The data of an estimate: prepared, prepared for the moment, a part of the storybook, or assumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.small_runs import small_config
from lilliput.data.prepare import prepare
from lilliput.settings.loading import replace
from lilliput.training import estimate_data
from lilliput.training.estimate_data import open_estimate_data


def test_a_small_text_is_read_and_leaves_no_files(tmp_path: Path) -> None:
    config = small_config(tmp_path, tokenizer__kind="word")
    with open_estimate_data(config) as data:
        assert (data.scale, data.note) == (1.0, None)
        assert data.config.model.vocab_size == 38
        rows = len(data.splits["train"].rows)
        assert data.splits.keys() == {"train", "validation"}
    assert [path.name for path in tmp_path.iterdir()] == ["mytext.txt"]
    prepare(config)
    with open_estimate_data(config) as again:
        assert len(again.splits["train"].rows) == rows


def test_a_large_text_is_read_only_if_it_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate_data, "CHEAP", 1000)
    config = small_config(tmp_path)
    with open_estimate_data(config) as data:
        assert data.scale is None and data.note and "not prepared" in data.note
    prepare(config)
    with open_estimate_data(config) as data:
        assert data.scale == 1.0


def test_a_part_of_a_large_storybook_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate_data, "CHEAP", 1000)
    monkeypatch.setattr(estimate_data, "STORIES", 30)
    config = replace(small_config(tmp_path), {"data.source": "storybook", "data.documents": 300})
    with open_estimate_data(config) as data:
        assert data.scale == 10.0 and data.note
        part = data.splits["train"].predictions
    whole = prepare(config).split("train").predictions
    assert 10 * part == pytest.approx(whole, rel=0.1)


@pytest.mark.parametrize("task", ["language", "classifier", "both"])
def test_assumed_rows_are_full(task: str, tmp_path: Path) -> None:
    config = small_config(tmp_path, train__batch="4", data__labelled=str(task != "language").lower(), model__task=task)
    with open_estimate_data(replace(config, {"data.source": "absent.txt"})) as data:
        rows = data.splits["train"].rows
        assert data.scale is None and data.note
        assert np.all(rows.sizes(np.arange(len(rows))) == 32)
        batch = rows.batch(np.arange(4))
        assert batch.ids.shape == (4, 32) and batch.ids.max() < 257
        if task != "language":
            assert data.config.model.classes == 2


def test_the_hub_is_not_contacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network is used")

    monkeypatch.setattr(estimate_data, "prepare", refuse)
    monkeypatch.setattr(estimate_data, "open_corpus", refuse)
    monkeypatch.chdir(tmp_path)
    with open_estimate_data(replace(small_config(tmp_path), {"data.source": "owner/name"})) as data:
        assert data.scale is None
