"""Kinds of TOML files, and errors in their syntax."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.user_errors import refused
from lilliput.settings.loading import load_config
from lilliput.settings.recipes import shipped, shipped_recipes
from lilliput.studies.reproduction_files import read_reproduction, shipped_reproductions
from lilliput.studies.study_files import read_study, shipped_studies


def test_a_file_of_another_kind_names_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = Path("two.toml")
    recipe.write_text("[model]\ndim = 64\n")
    study, reproduction = shipped_studies()["window"], shipped_reproductions()["gpt2"]
    for call, command in (
        (lambda: read_study(recipe), "train two.toml"),
        (lambda: read_reproduction(recipe), "train two.toml"),
        (lambda: load_config(str(study)), f"study {study}"),
        (lambda: read_reproduction(study), f"study {study}"),
        (lambda: load_config(str(reproduction)), f"reproduce {reproduction}"),
        (lambda: read_study(reproduction), f"reproduce {reproduction}"),
    ):
        error = refused(call)
        assert (error.code, error.fix) == ("file.kind", f"run lilliput {command}")


def test_shipped_files_are_of_their_kind() -> None:
    for name in shipped_recipes():
        load_config(name)
    for path in shipped("shipped_studies", "studies").values():
        read_study(path)
    for path in shipped_reproductions().values():
        read_reproduction(path)


def test_invalid_syntax_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[model]\ndim = 64\nlayers = = 3\n")
    error = refused(lambda: load_config(str(path)))
    assert error.code == "file.syntax" and "line 3" in (error.where or "") and "line 3" in error.fix
