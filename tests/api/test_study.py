"""`lilliput.study`, and the examples of the API: each docstring, docs/python.md, and the calls of the README of the API."""

from __future__ import annotations

import csv
import doctest
import os
import re
import signal
import threading
import time
import types
import typing
from pathlib import Path

import pytest

import lilliput
from helpers.python_examples import copy_of_workspace, train_few_steps, workspace
from helpers.user_errors import refused
from lilliput.api.arguments import GENERATE_KEYWORDS
from lilliput.api.generate_keywords import GenerateKeywords
from lilliput.api.run import Run
from lilliput.settings.tree import GenerateSettings
from lilliput.studies.runner import LOCK
from lilliput.studies.study_results import read_result

ROOT = Path(__file__).parents[2]
FUNCTIONS = ("evaluate", "load", "predict", "prepare", "runs", "study", "train")
METHODS = ("attention", "evaluate", "generate", "metrics", "predict", "report", "stream")
# As in the request for this API, with a small study in place of the shipped one.
CALLS = """
import lilliput
run = lilliput.train("mytext.txt", minutes=3)
text = run.generate("Once upon a time", top_p=0.9)
pieces = list(run.stream("Once upon a time"))
result = run.evaluate(baselines=True)
shown = result._repr_html_(), str(result), result.to_dict()
view = run.attention("The cat sat on the mat.")
weights = view.weights
label = lilliput.load("runs/said").predict("some text")
figure = run.metrics.plot()
page = run.report().save("report.html")
table = lilliput.study("window.toml", quick=True).table
found = lilliput.runs(), lilliput.load("runs/demo"), lilliput.prepare("mytext.txt")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = copy_of_workspace(tmp_path)
    monkeypatch.chdir(folder)
    return folder


def test_a_study_returns_its_table() -> None:
    place = workspace() / "runs" / "window-quick"
    outcome = lilliput.study(workspace() / "window.toml", quick=True, folder=place.parent, progress=False)
    (row,) = outcome.table
    (line,) = csv.DictReader((place / "table.csv").read_text("utf-8").splitlines())
    assert (row["window"], row["seed"], row["run"]) == ("full", 1, line["run"])
    assert {name: f"{value}" for name, value in row.items()} == line
    assert (outcome.folder, outcome.name, outcome.finished, outcome.missing) == (place, "window", True, [])
    assert (place / "report.html").is_file()
    assert outcome.to_dict()["table"] == outcome.table and outcome.to_dict()["verdict"] == outcome.verdict
    assert repr(outcome) == "StudyOutcome('window', 1 measurements, 0 missing)"
    loss = f"{row['validation.loss']:.4f}"
    assert loss in str(outcome) and f'<td style="text-align: right">{loss}</td>' in outcome._repr_html_()
    assert outcome.table == [
        {**one.cell, "seed": one.seed, "run": one.run, **one.figures} for one in read_result(place).rows
    ]


def test_an_interrupted_study_returns_what_is_measured(tmp_path: Path) -> None:
    place = tmp_path / "window-quick"

    def press() -> None:
        while not (place / LOCK).exists():  # it is created after the handlers
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before, thread = signal.getsignal(signal.SIGINT), threading.Thread(target=press)
    thread.start()
    outcome = lilliput.study(workspace() / "window.toml", quick=True, folder=tmp_path, progress=False)
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert (outcome.finished, outcome.table, outcome.folder) == (False, [], place)
    assert outcome.missing == [{"cell": {"window": "full"}, "seed": 1}]
    assert repr(outcome) == "StudyOutcome('window', 0 measurements, 1 missing)" and "<table>" in outcome._repr_html_()


@pytest.mark.parametrize(
    ("arguments", "code", "setting"),
    [
        ({"name": "windw"}, "study.missing", "name"),
        ({"name": "mytext.txt"}, "study.file", "name"),
        ({"name": 3}, "argument.value", "name"),
        ({"seeds": [-1]}, "argument.value", "seeds"),
        ({"quick": "x"}, "argument.value", "quick"),
    ],
)
def test_wrong_arguments_of_study(here: Path, arguments: dict[str, object], code: str, setting: str) -> None:
    error = refused(lambda: lilliput.study(**{"name": "window.toml", **arguments}))  # type: ignore[arg-type]
    assert (error.code, error.setting) == (code, setting) and "lilliput study" not in error.fix


def test_prepared_text(here: Path) -> None:
    prepared = lilliput.prepare("mytext.txt", settings={"tokenizer.kind": "byte"}, progress=False)
    assert prepared.documents == {"train": 11, "validation": 1} and prepared.vocab_size == 257
    assert sum(prepared.bytes.values()) == len(Path("mytext.txt").read_bytes()) - 11 * len("\n<|endoftext|>\n")
    assert prepared.to_dict()["tokens"] == prepared.tokens and prepared.folder.is_dir()
    assert str(prepared.tokens["train"]) in prepared._repr_html_().replace(",", "")
    assert str(prepared).startswith(repr(prepared))
    for arguments, code, setting in (
        ({"tokeniser": "byte"}, "argument.unknown", "tokeniser"),
        ({"tokenizer": "bite"}, "setting.choice", "tokenizer.kind"),
        ({"target": "mytex.txt"}, "recipe.missing", "target"),
    ):
        error = refused(lambda arguments=arguments: lilliput.prepare(**{"target": "mytext.txt", **arguments}))  # type: ignore[misc]
        assert (error.code, error.setting) == (code, setting)


def test_the_calls_of_the_request(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lilliput, "train", train_few_steps)
    names: dict[str, typing.Any] = {}
    exec(CALLS, names)
    assert isinstance(names["run"], Run) and names["run"].folder == Path("runs/mytext")
    assert names["text"] and all(0 < piece.probability <= 1 for piece in names["pieces"])
    assert names["weights"][0].ndim == 3 and names["label"].label in ("bee", "bear", "owl")
    assert names["page"].is_file() and names["table"][0]["window"] == "full"
    assert [run.name for run in names["found"][0]] == ["demo", "mytext", "said"]


def test_the_examples_of_the_guide(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lilliput, "train", train_few_steps)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text("utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 9
    names: dict[str, typing.Any] = {}
    for block in blocks:
        exec(block.replace('lilliput.study("window",', 'lilliput.study("window.toml",'), names)
        assert capsys.readouterr().out.strip() or "print" not in block, block
    assert Path("attention.html").is_file() and Path("report.html").is_file()
    assert (names["run"].name, names["run"].steps, names["run"].config.model.norm) == ("deeper", 5, "layer")


@pytest.mark.parametrize("name", [*FUNCTIONS, *(f"Run.{method}" for method in METHODS)])
def test_the_examples_of_docstrings(name: str, here: Path) -> None:
    """Every public function has an example that runs."""
    owner: typing.Any = lilliput
    for part in name.split("."):
        owner = vars(owner)[part] if owner is Run else getattr(owner, part)
    names = {"lilliput": lilliput, "run": lilliput.load("runs/demo"), "classifier": lilliput.load("runs/said")}
    test = doctest.DocTestParser().get_doctest(owner.__doc__ or "", names, name, None, None)
    assert test.examples, "no example"
    printed: list[str] = []
    outcome = doctest.DocTestRunner(verbose=False).run(test, out=printed.append)
    assert outcome.failed == 0, "".join(printed)


def test_every_public_function_is_listed_here() -> None:
    functions = {name for name in lilliput.__all__ if isinstance(getattr(lilliput, name), types.FunctionType)}
    assert functions == {*FUNCTIONS, "load_config", "register"}
    public = {name for name in vars(Run) if not name.startswith("_")}
    assert {*METHODS} <= public


def test_the_keywords_of_generation_have_the_types_of_the_settings() -> None:
    typed = typing.get_type_hints(GenerateKeywords)
    assert typed.keys() == GENERATE_KEYWORDS.keys()
    default = GenerateSettings()
    for name, kind in typed.items():
        allowed = {*typing.get_args(kind)} or {kind}
        value = getattr(default, name)
        assert value is not None or type(None) in allowed, name
        if isinstance(value, bool | int | float):
            assert type(value) in allowed, name
