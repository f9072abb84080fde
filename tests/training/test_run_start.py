"""How a run starts: its name, its settings and its weights, resolved before any work is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.small_runs import copy_of_trained, small_config, train_small
from helpers.user_errors import refused
from lilliput.settings.loading import SIZES, replace
from lilliput.storage.run_folders import RunFolder
from lilliput.training.run_start import CommandSettings, resolve_start, run_folder
from lilliput.training.session import open_session

# ---- names


@pytest.mark.parametrize(
    "name", ["../up", "a/b", "..", ".", ".hidden", "-x", "a\\b", "a:b", "x" * 101, "é" * 60, "a\nb", "end."]
)
def test_invalid_names_are_errors(tmp_path: Path, name: str) -> None:
    error = refused(lambda: train_small(small_config(tmp_path, name)))
    assert (error.code, error.setting) == ("run.name", "name")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mytext.txt"]


@pytest.mark.parametrize("name", ["a", "my run", "träume", "v1.2-final", "x" * 100, "[bold]", "物語"])
def test_valid_names(tmp_path: Path, name: str) -> None:
    config = small_config(tmp_path, name)
    assert run_folder(config) == tmp_path / "runs" / name
    with open_session(config) as session:
        assert session.run.name == name


# ---- settings of a command


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A finished run, runs/mine, of the text mytext.txt in the working folder."""
    monkeypatch.chdir(copy_of_trained(tmp_path))
    return RunFolder(Path("runs/mine"))


def test_a_new_run_has_the_settings_of_its_command(run: RunFolder) -> None:
    start = resolve_start(CommandSettings("mytext.txt", {"optimizer.lr": "0.5"}, "nano"))
    assert (start.resume, start.overwrite, start.origin) == (False, False, None)
    assert (start.config.optimizer.lr, start.config.model.dim) == (0.5, SIZES["nano"]["dim"])
    assert start.config.name == "mytext"


@pytest.mark.parametrize("target", ["mine", "runs/mine"])
@pytest.mark.parametrize("parallel", ["replicate", "shard"])
def test_a_resumed_run_has_its_saved_settings_except_the_free_ones(run: RunFolder, target: str, parallel: str) -> None:
    start = resolve_start(CommandSettings(target, {"train.parallel": parallel}), resume=True)
    saved = run.config()
    assert start.resume and start.config.train.parallel == parallel
    assert (start.config.name, start.config.log.folder) == ("mine", "runs")
    assert start.config.model.dim == saved["model"]["dim"] and start.config.model.vocab_size == 257


def test_a_command_and_a_config_resume_the_same_run(run: RunFolder) -> None:
    by_command = resolve_start(CommandSettings("mytext.txt", {"name": "mine", "model.dim": "16"}), resume=True)
    by_config = resolve_start(by_command.config, resume=True)
    left_open = resolve_start(replace(by_command.config, {"model.vocab_size": None}), resume=True)
    assert by_command == by_config == left_open


def test_changing_settings_of_a_resumed_run_is_an_error(run: RunFolder) -> None:
    command = CommandSettings("mytext.txt", {"name": "mine", "model.dim": "16", "optimizer.lr": "0.5"})
    error = refused(lambda: resolve_start(command, resume=True))
    assert (error.code, error.setting, error.where) == ("setting.changed", "optimizer.lr", "runs/mine")
    error = refused(lambda: resolve_start(CommandSettings("mine", {"optimizer.lr": "0.5"}), resume=True))
    assert (error.code, error.setting) == ("setting.changed", "optimizer.lr")


def test_a_run_that_does_not_exist_cannot_be_resumed(run: RunFolder) -> None:
    error = refused(lambda: resolve_start(CommandSettings("mytext.txt", {"name": "other"}), resume=True))
    assert error.code == "run.missing"


# ---- another run's weights


def test_model_and_tokenizer_come_with_the_weights(run: RunFolder) -> None:
    start = resolve_start(CommandSettings("mytext.txt", {"model.dropout": "0.3"}), start_from="mine")
    assert start.origin == run.best
    assert (start.config.model.dim, start.config.model.dropout) == (16, 0.3)


@pytest.mark.parametrize("name", ["model.dim", "tokenizer.kind", "vectors.source"])
def test_settings_that_come_with_the_weights_cannot_be_set(run: RunFolder, name: str) -> None:
    value = {"model.dim": "32", "tokenizer.kind": "byte", "vectors.source": "none"}[name]
    error = refused(lambda: resolve_start(CommandSettings("mytext.txt", {name: value}), start_from="mine"))
    assert (error.code, error.setting) == ("setting.conflict", name)
