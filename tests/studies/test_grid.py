"""Cells and settings of a study, and the errors of its file."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from helpers.small_runs import SETTINGS
from helpers.small_studies import write_study
from helpers.user_errors import refused
from lilliput.errors import UserError, UserErrors
from lilliput.settings.loading import load_config
from lilliput.studies.grid import budget_of, cell_config, cells, load_study, study_from_dict

TWO = {
    "window": {"full": {}, "4 tokens": {"model.window": 4}, "pattern": {"model.window": [4, "none"]}},
    "rate": {"low": {"optimizer.lr": 1e-4}, "high": {"optimizer.lr": 1e-2, "model.dim": 32}},
}


def errors_of(path: Path, quick: bool = False) -> list[UserError]:
    with pytest.raises(UserErrors) as found:
        load_study(path, quick)
    return found.value.errors


def test_cells_are_the_product_of_the_axes(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path, TWO))
    expected = []
    for (window, w), (rate, r) in itertools.product(TWO["window"].items(), TWO["rate"].items()):
        expected.append(({"window": window, "rate": rate}, {"budget.steps": 8} | study.settings | w | r))
    assert [tuple(cell) for cell in cells(study)] == expected
    assert [axis.compare for axis in study.axes] == ["full", "low"]
    assert len(cells(load_study(write_study(tmp_path, {})))) == 1, "no axis: the recipe alone"


def test_settings_of_a_cell_equal_those_of_flags(tmp_path: Path) -> None:
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
        expected: dict[str, str] = flags | dict(more[0]) | dict(more[1])
        assert cell_config(study, cell.settings) == load_config(str(tmp_path / "mytext.txt"), expected)


def test_compare_names_the_reference(tmp_path: Path) -> None:
    axes = {"window": {"full": {}, "4": {"model.window": 4}, "compare": "4"}}
    (axis,) = load_study(write_study(tmp_path, axes)).axes
    assert (axis.compare, list(axis.values)) == ("4", ["full", "4"])


def test_quick_form_replaces_keys_and_labels(tmp_path: Path) -> None:
    quick = """[quick]\nseeds = [7]\nbudget = { tokens = 256 }\nsettings = { model.dim = 8 }
axes.window = ["full", "pattern"]"""
    path = write_study(tmp_path, TWO, seeds=[1, 2, 3], extra=quick)
    full, short = load_study(path), load_study(path, quick=True)
    assert (full.folder_name, short.folder_name) == ("small", "small-quick")
    assert (short.seeds, short.budget, short.settings["model.dim"]) == ((7,), {"tokens": 256}, 8)
    assert [list(axis.values) for axis in short.axes] == [["full", "pattern"], ["low", "high"]]
    assert (full.seeds, full.settings["model.dim"], len(cells(full))) == ((1, 2, 3), 16, 6)
    assert load_study(path, quick=True, seeds=[4, 5]).seeds == (4, 5)
    error = refused(lambda: load_study(write_study(tmp_path, TWO), quick=True))
    assert (error.code, error.setting) == ("study.file", "quick")


def test_axis_with_budgets(tmp_path: Path) -> None:
    axes = {"tokens": {"few": {"budget.tokens": 128}, "as all": {}, "compute": {"budget.flops": 1e9}}}
    study = load_study(write_study(tmp_path, axes))
    assert [budget_of(cell) for cell in cells(study)] == [("tokens", 128), ("steps", 8), ("flops", 1e9)]
    assert [cell_config(study, cell.settings).train.steps for cell in cells(study)] == [None, 8, None]


def test_study_survives_as_dict_and_back(tmp_path: Path) -> None:
    plots = '[[plots]]\nkind = "scatter"\nx = "train.seconds"\ny = "validation.loss"'
    study = load_study(write_study(tmp_path, TWO, extra=plots, published=["0.88 bits per byte"]))
    assert study.plots[0].x == "train.seconds"
    assert study_from_dict(study.as_dict()) == study


def test_paths_are_relative_to_the_study_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_study(tmp_path, {"data": {"mine": {}, "other": {"data.source": "other.txt"}}})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    study = load_study(path)
    sources = [cell_config(study, cell.settings).data.source for cell in cells(study)]
    assert sources == [str(tmp_path / "mytext.txt"), str(tmp_path / "other.txt")]


# Errors that the settings package raises; they name the setting in their text.
OF_SETTINGS = ""
WRONG: list[tuple[str, dict[str, Any], str, str | None, list[str]]] = [
    ("no title", {"title": None}, "study.file", "title", []),
    ("misspelled key", {"sedes": [1]}, "study.file", "sedes", ["line 8", "seeds"]),
    ("no seeds", {"seeds": []}, "study.file", "seeds", ["line 4"]),
    ("repeated seed", {"seeds": [1, 1]}, "study.file", "seeds", ["line 4"]),
    ("seed not a number", {"seeds": ["x"]}, "study.file", "seeds.0", ["'x'"]),
    ("unknown recipe", {"recipe": "deno"}, "recipe.missing", None, ["deno", "line 3", "demo"]),
    ("no budget", {"budget": None}, "study.file", "budget", []),
    ("two budgets", {"budget": {"steps": 1, "tokens": 2}}, "study.file", "budget", ["line 5", "2"]),
    ("unknown unit", {"budget": {"hours": 1}}, "study.file", "budget.hours", ["steps", "tokens", "minutes", "flops"]),
    ("budget of zero", {"budget": {"steps": 0}}, "study.file", "budget.steps", ["0"]),
    ("half a step", {"budget": {"steps": 0.5}}, OF_SETTINGS, "train.steps", ["0.5"]),
    ("unknown measure", {"measure": ["likelyhood"]}, "study.file", "measure", ["likelyhood", "likelihood"]),
    ("unknown metric", {"show": ["validation.los"]}, "study.file", "show", ["validation.los", "validation.loss"]),
    ("metric without its measure", {"show": ["bleu.4"]}, "study.file", "show", ["overlap", '["training", "overlap"]']),
    (
        "plot of an unknown metric",
        {"extra": '[[plots]]\nkind = "bars"\ny = "train.los"'},
        "study.file",
        "plots",
        ["train.loss"],
    ),
    ("plot without x", {"extra": '[[plots]]\nkind = "fit"\ny = "train.loss"'}, "study.file", "plots", ["fit"]),
    ("misspelled setting", {"settings": {"model.dmi": 3}}, OF_SETTINGS, "model.dmi", ["model.dim"]),
    (
        "misspelled setting of a measure",
        {"settings": {"measure.prompt": 3}},
        "setting.unknown",
        "measure.prompt",
        ["measure.prompts"],
    ),
    ("seed as a setting", {"settings": {"seed": 3}}, "study.cell", "seed", ["seeds ="]),
    ("budget as a setting", {"settings": {"train.steps": 3}}, "study.cell", "train.steps", ["budget ="]),
    ("label without a table", {"axes": {"a": {"x": "8"}}}, "study.file", "axes.a", ["'8'"]),
    ("unknown label", {"axes": {"a": {"x": {}, "compare": "y"}}}, "study.file", "axes.a.compare", ["'y'", "x"]),
    ("axis without labels", {"axes": {"a": {}}}, "study.file", "axes.a", []),
    ("reserved axis name", {"axes": {"seed": {"x": {}}}}, "study.file", "axes.seed", []),
    ("data.seed on an axis", {"axes": {"a": {"x": {"data.seed": 2}}}}, "study.cell", "data.seed", []),
    ("conflicting settings", {"axes": {"a": {"x": {"model.heads": 3}}}}, OF_SETTINGS, "model.heads", ["16", "3"]),
    (
        "conflicting generation settings",
        {"axes": {"a": {"x": {"generate.beams": 2, "generate.top_k": 3}}}},
        OF_SETTINGS,
        "generate.top_k",
        [],
    ),
    (
        "unknown unit on an axis",
        {"axes": {"a": {"x": {"budget.hours": 2}}}, "budget": None},
        "study.cell",
        "budget.hours",
        [],
    ),
]


@pytest.mark.parametrize(
    ("change", "code", "setting", "facts"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
def test_error_names_setting_and_line(
    tmp_path: Path, change: dict[str, Any], code: str, setting: str | None, facts: list[str]
) -> None:
    path = write_study(tmp_path, **change)
    (error, *_) = errors_of(path)
    if code == OF_SETTINGS:
        assert setting is not None and setting in error.what
    else:
        assert (error.code, error.setting) == (code, setting)
    assert all(fact in str(error) for fact in facts), error


def test_all_errors_are_reported_with_their_lines(tmp_path: Path) -> None:
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
    found = [("trainng", 5), ("model.dmi", 7), ("measure.prompt", 8)]
    found += [("model.feed_forward", 17), ("model.window", 12), ("model.dim", 13)]
    for error, (name, line) in zip(errors_of(path), found, strict=True):
        assert name in error.what and f"bad.toml, line {line}" in (error.where or "")
    quick = {error.setting: error for error in errors_of(path, quick=True)}
    assert quick["quick.axes.form"].where == "bad.toml, line 21" and "plain" in (quick["quick.axes.form"].fix or "")
    assert quick["quick.axes.windw"].where == "bad.toml, line 20"
    assert "window" in (quick["quick.axes.windw"].fix or "")


def test_files_that_are_not_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content, fact in ((b"\xff\xfe", "UTF-8"), (b"title = ", "TOML")):
        Path("a.toml").write_bytes(content)
        assert fact in refused(lambda: load_study("a.toml")).what
    Path("a.toml").write_bytes(b"")
    assert [error.setting for error in errors_of(Path("a.toml"))] == ["title", "recipe", "seeds", "measure"]
    Path("a.txt").write_text("text")
    assert refused(lambda: load_study("a.txt")).code == "study.file"
    assert refused(lambda: load_study("nothere.toml")).code == "study.missing"


TECHNIQUE = """[technique]
name = "A window"
with_it = {{ window = "{label}" }}
without = {{ window = "full" }}
use = "never"
quality = "{metric}"
"""


@pytest.mark.parametrize(
    ("label", "metric", "setting"),
    [
        ("5 tokens", "validation.loss", "technique.with_it"),
        ("4 tokens", "validation.los", "technique"),
        ("4 tokens", "bleu.4", "technique"),
    ],
)
def test_errors_of_a_technique(tmp_path: Path, label: str, metric: str, setting: str) -> None:
    path = write_study(tmp_path, extra=TECHNIQUE.format(label=label, metric=metric))
    (error,) = errors_of(path)
    assert (error.code, error.setting) == ("study.file", setting)


def test_technique_of_a_quick_form_may_lack_its_cell(tmp_path: Path) -> None:
    quick = '[quick]\naxes.window = ["full"]\n'
    path = write_study(tmp_path, extra=quick + TECHNIQUE.format(label="4 tokens", metric="validation.loss"))
    study = load_study(path, quick=True)
    assert study.technique is not None and study.technique.with_it == {"window": "4 tokens"}
    assert study_from_dict(study.as_dict()) == study


def test_curves_are_drawn_against_known_metrics_only(tmp_path: Path) -> None:
    plot = '[[plots]]\nkind = "curves"\nx = "{}"\n'
    assert load_study(write_study(tmp_path, extra=plot.format("micro_batches"))).plots[0].x == "micro_batches"
    (error,) = errors_of(write_study(tmp_path, extra=plot.format("validation.loss")))
    assert (error.code, error.setting) == ("study.file", "plots")
