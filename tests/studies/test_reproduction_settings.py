"""Settings of reproductions: every stated setting is compared with the recipe, and a difference needs a reason."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch

from helpers.user_errors import refused
from lilliput.settings.loading import load_config
from lilliput.studies.reproduction_files import read_reproduction, shipped_reproductions
from lilliput.studies.reproduction_settings import compare_settings, settings_table

ROOT = Path(__file__).parents[2]
FILE = """
title = "A report"
report = "S9"
recipe = "{recipe}"

[[settings]]
name = "width"
stated = "{stated}"
setting = "{setting}"
reason = "{reason}"
"""


def write(folder: Path, **values: str) -> str:
    path = folder / "mine.toml"
    defaults = {"recipe": "speech-lm", "stated": "64", "setting": "model.dim", "reason": ""}
    path.write_text(FILE.format(**defaults | values))
    return str(path)


@pytest.mark.parametrize("name", sorted(shipped_reproductions()))
def test_shipped_files_state_the_settings_of_their_recipes(name: str) -> None:
    reproduction = read_reproduction(name)
    compared = compare_settings(reproduction)
    assert len({row.stated.name for row in compared}) == len(compared) >= 20
    for row in compared:
        section, field = row.stated.setting.split(".")
        config = load_config(row.stated.recipe or reproduction.recipe)
        value = getattr(getattr(config, section), field)
        assert row.ours == (list(value) if isinstance(value, tuple) else value)
    assert len(settings_table(reproduction).rows) == len(compared)


@pytest.fixture(scope="module")
def page() -> ModuleType:
    source = ROOT / "docs" / "make_settings_tables.py"
    spec = importlib.util.spec_from_file_location("make_settings_tables", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_of_the_docs_is_current(page: ModuleType) -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.write_page()


def test_positions_of_the_page(page: ModuleType) -> None:
    """Ours are the formula; the exponent applied twice gives the numbers that report S3 prints, to its five digits."""
    ours, printed = page.positions_by_formula(), page.positions_as_printed()
    assert ours.dtype is printed.dtype is torch.float64
    for at in range(page.POSITIONS):
        for column in range(page.WIDTH):
            angle = at / 10_000 ** (2 * (column // 2) / page.WIDTH)
            assert ours[at, column].item() == pytest.approx(
                math.cos(angle) if column % 2 else math.sin(angle), abs=1e-12
            )
    assert printed[1, :7].tolist() == pytest.approx(
        [0.84147, 0.5403, 0.099833, 0.995, 0.0099998, 0.99995, 1e-3], rel=1e-4
    )
    assert printed[3, :7].tolist() == pytest.approx(
        [0.14112, -0.98999, 0.29552, 0.95534, 0.029996, 0.99955, 3e-3], rel=1e-4
    )
    assert printed[2, 14].item() == pytest.approx(2e-7, rel=1e-6)


def test_parameters_of_the_page(page: ModuleType) -> None:
    """The recipe, counted by hand; no combination of the open choices has the stated number of parameters."""
    attention = 3 * (300 * 296 + 296) + 296 * 300 + 300
    feed_forward = 300 * 2048 + 2048 + 2048 * 300 + 300
    blocks = 3 * (attention + feed_forward + 2 * 600)
    head = 10_004 * 300 + 10_004
    found = page.course_parameters({})
    assert (found.total, found.trainable) == (blocks + 600 + head + 10_004 * 300, blocks + 600 + head)
    square = 4 * (300 * 300 + 300)  # the printed projections
    assert page.course_parameters(page.PRINTED).total == found.total + 3 * (square - attention)
    counts = page.all_course_counts()
    assert {found.total, found.trainable} < set(counts) and max(counts) < 11_000_000 < page.STATED_PARAMETERS


@pytest.mark.parametrize(
    ("stated", "setting", "equal"),
    [
        ("64", "model.dim", True),
        ("64.0", "model.dim", True),
        ("65", "model.dim", False),
        ("1e-3", "optimizer.lr", True),
        ("learned", "model.positions", True),
        ("none", "model.window", True),
        ("true", "model.tied", False),
        ("false", "model.tied", True),
        ("", "model.dim", False),
    ],
)
def test_equality_of_a_stated_value(tmp_path: Path, stated: str, setting: str, equal: bool) -> None:
    path = write(tmp_path, stated=stated, setting=setting, reason="chosen")
    assert [row.equal for row in compare_settings(read_reproduction(path))] == [equal]


def test_difference_without_a_reason_is_refused(tmp_path: Path) -> None:
    for values, code in (
        ({"stated": "65"}, "reproduction.reason"),
        ({"stated": ""}, "reproduction.reason"),
        ({"setting": "model.dime"}, "setting.unknown"),
    ):
        reproduction = read_reproduction(write(tmp_path, **values))
        error = refused(lambda: compare_settings(reproduction))  # noqa: B023
        assert (error.code, error.setting) == (code, values.get("setting", "model.dim"))
