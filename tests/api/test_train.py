"""`lilliput.train`: keywords, resumed and interrupted runs, wrong arguments."""

from __future__ import annotations

import inspect
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lilliput
from helpers.python_examples import copy_of_workspace
from helpers.small_runs import SETTINGS, small_config, train_small, write_text
from helpers.small_runs import lilliput as command
from helpers.user_errors import refused
from lilliput.api.arguments import KEYWORDS
from lilliput.api.train import OTHERS
from lilliput.settings.loading import setting_types
from lilliput.storage.run_folders import RunFolder
from lilliput.training.events import Event, Stepped
from torture import outcome

SMALL = {name: value for name, value in SETTINGS.items() if name != "train.steps"}


class Presser:
    """Press Ctrl-C at a step, once or twice."""

    def __init__(self, step: int, times: int = 1) -> None:
        self.step, self.times = step, times

    def __call__(self, event: Event) -> None:
        if isinstance(event, Stepped) and event.step == self.step:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)

    def close(self) -> None:
        pass


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    return tmp_path


def test_a_call_trains_what_the_command_trains(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = lilliput.train("mytext.txt", steps=3, lr=0.01, settings=SMALL, name="called", progress=False)
    assert capsys.readouterr() == ("", ""), "progress=False prints nothing"
    flags = [word for name, value in SMALL.items() for word in (f"--{name}", value)]
    words = ("train", "mytext.txt", *flags, "--train.steps", "3", "--optimizer.lr", "0.01", "--name", "typed")
    assert command(*words).code == 0
    typed = lilliput.load("typed")
    assert asdict(run.config) | {"name": "typed"} == asdict(typed.config)
    losses = [[row["loss"] for row in one.metrics.select("step")] for one in (run, typed)]
    assert losses[0] == losses[1] and len(losses[0]) == 3
    assert (run.folder, run.finished, run.steps) == (Path("runs/called"), True, 3)


def test_progress_is_on_stderr(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lilliput.train("mytext.txt", steps=3, settings=SMALL)
    out, err = capsys.readouterr()
    assert out == "" and "validation loss" in err and "14,480 parameters" in err


def test_keywords_sizes_and_budgets(here: Path) -> None:
    keywords: dict[str, Any] = {
        "size": "nano",
        "dim": np.int64(32),
        "context": 16,
        "batch": 2,
        "seed": 3,
        "folder": "mine",
    }
    settings = {name: value for name, value in SMALL.items() if not name.startswith(("model.", "train.batch"))}
    run = lilliput.train("mytext.txt", tokens=64, settings=settings, progress=False, **keywords)
    config = run.config
    assert (config.model.layers, config.model.dim, config.model.context) == (2, 32, 16)
    assert (config.train.tokens, config.train.minutes, config.train.steps) == (64, None, None)
    assert (config.train.batch, config.seed, run.folder) == (2, 3, Path("mine/mytext"))


def test_a_config_is_a_target(here: Path) -> None:
    config = small_config(here)
    run = lilliput.train(config, steps=2, progress=False)
    assert run.steps == 2 and run.name == "mine"
    assert lilliput.train(config, steps=2, name="other", dropout=0.1, progress=False).config.model.dropout == 0.1
    assert lilliput.load(run) is run, "load accepts what train returns"


def test_a_run_resumes_grows_and_is_fine_tuned(here: Path) -> None:
    run = lilliput.train("mytext.txt", steps=2, settings=SMALL, progress=False)
    longer = lilliput.train(run, resume=True, steps=4, progress=False)
    assert (longer.steps, longer.finished, longer.folder.resolve()) == (4, True, run.folder.resolve())
    tuned = lilliput.train("mytext.txt", start_from=run, steps=1, name="tuned", settings=OWN, progress=False)
    assert tuned.config.model == run.config.model and tuned.steps == 1


OWN = {name: value for name, value in SMALL.items() if not name.startswith(("model.", "tokenizer."))}


def test_an_interrupt_saves_and_returns_the_run(tmp_path: Path) -> None:
    expected, _ = train_small(small_config(tmp_path, "whole"))
    config, before = small_config(tmp_path), signal.getsignal(signal.SIGINT)
    run = lilliput.train(config, observers=[Presser(5)], progress=False)
    assert signal.getsignal(signal.SIGINT) is before
    assert (run.finished, run.state, run.steps) == (False, "interrupted", 5)
    assert run.checkpoint is not None and RunFolder(run.folder).last is not None  # train.save_every is 2
    assert run.generate("A bee", tokens=3, seed=1)
    again = lilliput.train(config, resume=True, progress=False)
    assert again.finished and outcome(again.folder) == outcome(expected.folder)


def test_an_interrupted_run_prints_how_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = lilliput.train(small_config(tmp_path), observers=[Presser(5)])
    assert f"lilliput.train({str(run.folder)!r}, resume=True)" in capsys.readouterr().err
    assert lilliput.train(run.folder, resume=True, progress=False).finished


def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        lilliput.train(small_config(tmp_path), observers=[Presser(5, times=2)], progress=False)
    run = RunFolder(tmp_path / "runs" / "mine")
    assert run.last is not None and run.last.step == 4
    assert not run.is_locked()


@pytest.mark.parametrize(
    ("arguments", "code", "setting", "fix"),
    [
        ({"minutes": -1}, "setting.value", "train.minutes", "set minutes to"),
        ({"layers": 0}, "setting.value", "model.layers", "set layers to"),
        ({"layers": True}, "setting.value", "model.layers", "set layers to"),
        ({"minutes": 1, "steps": 2}, "setting.conflict", "train.steps", "set exactly one of steps"),
        ({"minutes": 1, "settings": {"train.minutes": 2}}, "argument.conflict", "train.minutes", "remove minutes"),
        ({"settings": {"model.layer": 2}}, "setting.unknown", "model.layer", "use layers"),
        ({"settings": {"model.nrom": "rms"}}, "setting.unknown", "model.nrom", 'use settings["model.norm"]'),
        ({"settings": 3}, "argument.value", "settings", "use settings="),
        ({"learning_rate": 1}, "argument.unknown", "learning_rate", "use lr"),
        ({"minuts": 1}, "argument.unknown", "minuts", "use minutes"),
        ({"norm": "rms"}, "argument.unknown", "norm", 'pass settings={"model.norm": VALUE}'),
        ({"size": "huge"}, "setting.choice", "size", "choose one of"),
        ({"name": "a/b"}, "run.name", "name", 'use name="NAME"'),
        ({"name": "demo"}, "run.exists", "name", "add resume=True"),
        ({"target": "mytex.txt"}, "recipe.missing", "target", "use 'mytext.txt'"),
        ({"target": 3}, "argument.value", "target", "set target"),
        ({"start_from": "dmo"}, "run.missing", "start_from", "use demo"),
        ({"start_from": "demo", "size": "nano"}, "argument.conflict", "size", "remove start_from or size"),
        ({"start_from": "demo", "dim": 8}, "setting.conflict", "model.dim", "remove dim"),
        ({"resume": True, "overwrite": True}, "argument.conflict", "overwrite", "remove resume or overwrite"),
        ({"resume": "x"}, "argument.value", "resume", "set resume"),
        ({"target": "runs/demo", "resume": True, "lr": 3.0}, "setting.changed", "optimizer.lr", "remove the changed"),
        ({"name": "xyz", "resume": True}, "run.missing", "name", "use lilliput.runs()"),
    ],
)
def test_wrong_arguments(
    arguments: dict[str, Any], code: str, setting: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy_of_workspace(tmp_path))
    before = sorted(Path("runs").iterdir())
    error = refused(lambda: lilliput.train(**{"target": "mytext.txt", "progress": False, **arguments}))
    assert (error.code, error.setting) == (code, setting)
    assert error.fix.startswith(fix) and "--" not in error.fix
    assert sorted(Path("runs").iterdir()) == before


def test_every_keyword_is_a_setting() -> None:
    parameters = inspect.signature(lilliput.train).parameters
    assert {*KEYWORDS, *OTHERS} == {*parameters} - {"target", "unknown"}
    assert {*KEYWORDS.values()} <= {*setting_types()}
