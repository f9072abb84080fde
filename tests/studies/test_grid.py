"""A study's cells and settings, and everything that can be wrong with its file."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from helpers.small_runs import SETTINGS
from helpers.small_studies import write_study
from helpers.user_errors import refusal
from lilliput.errors import UserError
from lilliput.settings.loading import load_config
from lilliput.studies.grid import budget_of, cell_config, cells, load_study, study_from_dict

TWO = {
    "window": {"full": {}, "4 tokens": {"model.window": 4}, "pattern": {"model.window": [4, "none"]}},
    "rate": {"low": {"optimizer.lr": 1e-4}, "high": {"optimizer.lr": 1e-2, "model.dim": 32}},
}


def mistakes(path: Path, quick: bool = False) -> str:
    with pytest.raises(UserError) as found:
        load_study(path, quick)
    return str(found.value)


def test_cells_are_the_product_by_hand(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path, TWO))
    expected = []
    for (window, w), (rate, r) in itertools.product(TWO["window"].items(), TWO["rate"].items()):
        expected.append(({"window": window, "rate": rate}, {"budget.steps": 8} | study.settings | w | r))
    assert [tuple(cell) for cell in cells(study)] == expected
    assert [axis.compare for axis in study.axes] == ["full", "low"]
    assert len(cells(load_study(write_study(tmp_path, {})))) == 1, "no axis: the recipe alone"


def test_a_cell_s_settings_are_what_flags_would_give(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path, TWO))
    flags = SETTINGS | {"train.steps": "8", "data.cache": str(tmp_path / "prepared")}
    for cell, more in zip(
        cells(study),
        itertools.product(
            ({}, {"model.window": "4"}, {"model.window": "4,none"}),
            ({"optimizer.lr": "1e-4"}, {"optimizer.lr": "1e-2", "model.dim": "32"}),
        ),
        strict=True,
    ):
        asked: dict[str, str] = flags | dict(more[0]) | dict(more[1])
        assert cell_config(study, cell.settings) == load_config(str(tmp_path / "mytext.txt"), asked)


def test_what_is_compared_with_can_be_said(tmp_path: Path) -> None:
    axes = {"window": {"full": {}, "4": {"model.window": 4}, "compare": "4"}}
    (axis,) = load_study(write_study(tmp_path, axes)).axes
    assert (axis.compare, list(axis.values)) == ("4", ["full", "4"])


def test_the_quick_form_replaces(tmp_path: Path) -> None:
    quick = """[quick]\nseeds = [7]\nbudget = { tokens = 256 }\nsettings = { model.dim = 8 }
axes.window = ["full", "pattern"]"""
    path = write_study(tmp_path, TWO, seeds=[1, 2, 3], extra=quick)
    full, short = load_study(path), load_study(path, quick=True)
    assert (full.folder_name, short.folder_name) == ("small", "small-quick")
    assert (short.seeds, short.budget, short.settings["model.dim"]) == ((7,), {"tokens": 256}, 8)
    assert [list(axis.values) for axis in short.axes] == [["full", "pattern"], ["low", "high"]]
    assert (full.seeds, full.settings["model.dim"], len(cells(full))) == ((1, 2, 3), 16, 6)
    assert load_study(path, quick=True, seeds=[4, 5]).seeds == (4, 5)
    assert "has no quick form" in refusal(lambda: load_study(write_study(tmp_path, TWO), quick=True))


def test_an_axis_may_have_its_own_budgets(tmp_path: Path) -> None:
    axes = {"tokens": {"few": {"budget.tokens": 128}, "as all": {}, "compute": {"budget.flops": 1e9}}}
    study = load_study(write_study(tmp_path, axes))
    assert [budget_of(cell) for cell in cells(study)] == [("tokens", 128), ("steps", 8), ("flops", 1e9)]
    assert [cell_config(study, cell.settings).train.steps for cell in cells(study)] == [None, 8, None]


def test_written_and_read_it_is_the_same(tmp_path: Path) -> None:
    plots = '[[plots]]\nkind = "scatter"\nx = "train.seconds"\ny = "validation.loss"'
    study = load_study(write_study(tmp_path, TWO, extra=plots, published=["0.88 bits per byte"]))
    assert study.plots[0].x == "train.seconds"
    assert study_from_dict(study.as_dict()) == study


def test_paths_are_beside_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_study(tmp_path, {"data": {"mine": {}, "other": {"data.source": "other.txt"}}})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    study = load_study(path)
    sources = [cell_config(study, cell.settings).data.source for cell in cells(study)]
    assert sources == [str(tmp_path / "mytext.txt"), str(tmp_path / "other.txt")]


WRONG: list[tuple[str, dict[str, Any], list[str]]] = [
    ("no title", {"title": None}, ["the study lacks title"]),
    ("a key nearly", {"sedes": [1]}, ["a study has no sedes", "line 8", "seeds"]),
    ("no seed", {"seeds": []}, ["a study needs seeds, each once", "line 4"]),
    ("a seed twice", {"seeds": [1, 1]}, ["a study needs seeds, each once"]),
    ("no number", {"seeds": ["x"]}, ["seeds.0 is 'x': it should be a whole number"]),
    ("no such recipe", {"recipe": "deno"}, ["there is no recipe 'deno'", "line 3", "demo"]),
    ("no budget", {"budget": None}, ["one budget is needed, and only one", "budget = { steps = 500 }"]),
    ("two budgets", {"budget": {"steps": 1, "tokens": 2}}, ["one budget is needed, and only one", "line 5"]),
    ("another unit", {"budget": {"hours": 1}}, ["budget.hours", "'steps', 'tokens', 'minutes' or 'flops'"]),
    ("nothing of it", {"budget": {"steps": 0}}, ["budget.steps is 0", "greater than 0"]),
    ("half a step", {"budget": {"steps": 0.5}}, ["train.steps is 0.5: it should be a whole number"]),
    ("no such measure", {"measure": ["likelyhood"]}, ["there is no measure 'likelyhood'", "likelihood"]),
    ("no such figure", {"show": ["validation.los"]}, ["there is no figure 'validation.los'", "validation.loss"]),
    ("a measure not taken", {"show": ["bleu.4"]}, ["bleu.4 is of the measure overlap", '["training", "overlap"]']),
    ("a plot of none", {"extra": '[[plots]]\nkind = "bars"\ny = "train.los"'}, ["no figure 'train.los'", "train.loss"]),
    ("half a plot", {"extra": '[[plots]]\nkind = "fit"\ny = "train.loss"'}, ["kind fit needs two figures"]),
    ("a setting nearly", {"settings": {"model.dmi": 3}}, ["there is no setting model.dmi", "model.dim"]),
    ("a measure's setting", {"settings": {"measure.prompt": 3}}, ["no setting measure.prompt", "measure.prompts"]),
    ("the seed", {"settings": {"seed": 3}}, ["seed is not a setting of a study", "seeds = [1, 2, 3]"]),
    ("a budget elsewhere", {"settings": {"train.steps": 3}}, ["train.steps is not a setting of a study", "budget ="]),
    ("a table is needed", {"axes": {"a": {"x": "8"}}}, ["axes.a.x is '8': a label has a table of settings"]),
    ("no such label", {"axes": {"a": {"x": {}, "compare": "y"}}}, ["axis a has no 'y' to compare with", "one of x"]),
    ("an axis without labels", {"axes": {"a": {}}}, ["axis a has no values"]),
    ("a column's name", {"axes": {"seed": {"x": {}}}}, ["an axis cannot be called seed"]),
    ("another split", {"axes": {"a": {"x": {"data.seed": 2}}}}, ["different validation splits"]),
    ("a conflict", {"axes": {"a": {"x": {"model.heads": 3}}}}, ["16 is not divisible by model.heads 3"]),
    ("ways of writing", {"axes": {"a": {"x": {"generate.beams": 2, "generate.top_k": 3}}}}, ["top_k would do nothing"]),
    ("no such budget", {"axes": {"a": {"x": {"budget.hours": 2}}}, "budget": None}, ["there is no budget in hours"]),
]


@pytest.mark.parametrize(("change", "told"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_mistake_is_told_with_its_place(tmp_path: Path, change: dict[str, Any], told: list[str]) -> None:
    path = write_study(tmp_path, **change)
    found = refusal(lambda: load_study(path))
    assert all(part in found for part in told), found


def test_all_mistakes_at_once_each_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        """title = "Bad"
recipe = "demo"
seeds = [1]
budget = { steps = 5 }
measure = ["training", "trainng"]
[settings]
model.dmi = 64
measure.prompt = 3

[axes.window]
full = {}
"8 tokens, or so" = { model.window = -8 }
wide.model.dim = "x"

[axes.form]
plain = {}
[axes.form.'of another kind']
model.feed_forward = "gleu"
[quick]
axes.windw = ["full"]
axes.form = ["plian"]
"""
    )
    assert [line.split(":")[0] for line in mistakes(path).splitlines()] == [
        "there is no measure 'trainng'  (bad.toml, line 5)",
        "there is no setting model.dmi  (bad.toml, line 7)",
        "there is no setting measure.prompt  (bad.toml, line 8)",
        "model.feed_forward is 'gleu'",
        "model.window is -8",
        "model.dim is 'x'",
    ]
    lines = ["(bad.toml, line 17)", "(bad.toml, line 12)", "(bad.toml, line 13)"]
    assert all(line in told for line, told in zip(lines, mistakes(path).splitlines()[3:], strict=True))
    quick = mistakes(path, quick=True)
    assert "axis form has no 'plian'  (bad.toml, line 21): plain" in quick
    assert "there is no axis 'windw'  (bad.toml, line 20): window" in quick


def test_what_is_no_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content, told in ((b"\xff\xfe", "must be UTF-8"), (b"title = ", "not valid TOML"), (b"", "lacks title")):
        Path("a.toml").write_bytes(content)
        assert told in mistakes(Path("a.toml"))
    Path("a.txt").write_text("text")
    assert "a.txt is no study" in refusal(lambda: load_study("a.txt"))
    assert "there is no study 'nothere.toml'" in refusal(lambda: load_study("nothere.toml"))
