"""The folder of a study: writing, reading, resuming, and refusing another study."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from helpers.small_studies import AXES, write_study
from helpers.user_errors import refused
from lilliput.settings.loading import REMOVED
from lilliput.studies.grid import Study, load_study
from lilliput.studies.study_report import missing_warning
from lilliput.studies.study_results import (
    METRICS,
    STUDY,
    append_line,
    close_result,
    complete_settings,
    drop_tail,
    locked,
    open_result,
    read_lines,
    read_result,
    remove_study,
)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return load_study(write_study(tmp_path, seeds=[1, 2]))


def begin(study: Study, folder: Path, overwrite: bool = False) -> None:
    with open_result(study, folder, "lilliput study small", overwrite):
        pass


def row(label: str, seed: int, **figures: float) -> dict[str, object]:
    return {
        "cell": {"window": label},
        "seed": seed,
        "run": f"{label}-seed{seed}",
        "measures": ["m"],
        "figures": figures,
    }


def test_changed_versions_and_machines_are_reported(study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "small"
    begin(study, folder)
    begin(study, folder)
    assert read_result(folder).about["changed"] == {}
    content = json.loads((folder / STUDY).read_text())
    content["about"]["versions"]["torch"], content["about"]["machine"]["cores"] = "1.0", 99
    (folder / STUDY).write_text(json.dumps(content))
    begin(study, folder)
    begin(study, folder)
    result = read_result(folder)
    assert result.about["changed"] == {"torch": ["1.0"], "cores": ["99"]}
    assert "torch 1.0 and cores 99" in missing_warning(result)


def test_written_results_are_read_back(study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "small"
    begin(study, folder)
    for line in (row("4 tokens", 1, a=1.5), row("full", 2, a=0.1, b=2), row("full", 1, a=9), row("full", 1, a=3)):
        append_line(folder / METRICS, line)
    append_line(folder / METRICS, row("gone", 1, a=1))
    append_line(folder / METRICS, row("full", 7, a=1))
    result = close_result(folder, 12.5, [{"kind": "training", "name": "x", "what": "y"}])
    assert (result.study, result.folder) == (study, folder)
    found = [(one.cell["window"], one.seed, one.figures) for one in result.rows]
    assert found == [("full", 1, {"a": 3}), ("full", 2, {"a": 0.1, "b": 2}), ("4 tokens", 1, {"a": 1.5})]
    assert result.about["command"] == "lilliput study small"
    assert (result.about["seconds"], result.about["failed"][0]["what"]) == (12.5, "y")
    assert {"lilliput", "python", "torch"} <= result.about["versions"].keys()
    assert result.about["machine"]["cores"] > 0
    assert result.about["config"]["model.dim"] == 16
    with (folder / "table.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["window", "seed", "run", "a", "b"],
            ["full", "1", "full-seed1", "3", ""],
            ["full", "2", "full-seed2", "0.1", "2"],
            ["4 tokens", "1", "4 tokens-seed1", "1.5", ""],
        ]


def test_truncated_last_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_line(path, {"a": 1})
    append_line(path, {"a": 2})
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        kept = [line["a"] for line in read_lines(path)]
        assert kept == [1, 2][: whole[:cut].count(b"\n")]
        drop_tail(path)
        append_line(path, {"a": 3})
        assert [line["a"] for line in read_lines(path)] == [*kept, 3]
    path.write_bytes(b'{"a": 1}\n{"a"\n{"a": 2}\n')
    error = refused(lambda: read_lines(path))
    assert (error.code, error.where) == ("file.damaged", f"{path}, line 2")


def test_cells_seeds_and_texts_of_a_study_may_change(study: Study, tmp_path: Path) -> None:
    """Another title, question or note does not make finished runs void."""
    folder = tmp_path / "runs" / "small"
    begin(study, folder)
    append_line(folder / METRICS, row("full", 1, a=3))
    began = read_result(folder).about["began"]
    more = AXES | {"window": AXES["window"] | {"8": {"model.window": 8}}}
    texts = {"title": "Another", "question": "Is it free to change?", "published": ["A note."]}
    begin(load_study(write_study(tmp_path, more, seeds=[1, 2, 3], **texts)), folder)
    result = read_result(folder)
    assert (len(result.rows), result.about["began"]) == (1, began)
    assert {name: result.study.as_dict()[name] for name in texts} == texts | {"published": ("A note.",)}


def test_setting_added_after_the_start_has_its_default(study: Study, tmp_path: Path) -> None:
    """A newer version of Lilliput does not make finished runs void."""
    folder = tmp_path / "runs" / "small"
    begin(study, folder)
    append_line(folder / METRICS, row("full", 1, a=3))
    content = json.loads((folder / STUDY).read_text())
    for cell in content["cells"]:
        del cell["settings"]["train.pair_updates"]
    (folder / STUDY).write_text(json.dumps(content))
    begin(study, folder)
    assert len(read_result(folder).rows) == 1
    (folder / STUDY).write_text(json.dumps(content))
    other = load_study(write_study(tmp_path, settings={"train.pair_updates": 2}))
    error = refused(lambda: begin(other, folder))
    assert (error.code, error.setting) == ("study.changed", "train.pair_updates")


def test_removed_settings_of_a_study(study: Study, tmp_path: Path) -> None:
    """With their default they are ignored; with another value the error names the setting."""
    folder = tmp_path / "runs" / "small"
    begin(study, folder)
    content = json.loads((folder / STUDY).read_text())
    for cell in content["cells"]:
        cell["settings"] |= REMOVED
    (folder / STUDY).write_text(json.dumps(content))
    begin(study, folder)
    for cell in content["cells"]:
        cell["settings"] |= {"model.mix_embedding": True}
    (folder / STUDY).write_text(json.dumps(content))
    error = refused(lambda: begin(study, folder))
    assert "model.mix_embedding" in error.what and str(folder / STUDY) in str(error)


@pytest.mark.parametrize(("setting", "before", "after"), [("model.dim", 16, 32), ("measure.prompts", None, 3)])
def test_study_with_other_settings_is_refused(
    study: Study, tmp_path: Path, setting: str, before: int | None, after: int
) -> None:
    folder = tmp_path / "runs" / "small"
    begin(study, folder)
    append_line(folder / METRICS, row("full", 1, a=3))
    content = (folder / STUDY).read_bytes()
    other = load_study(write_study(tmp_path, settings={setting: after}))
    error = refused(lambda: begin(other, folder))
    assert (error.code, error.setting) == ("study.changed", setting)
    assert all(fact in error.what for fact in ("full", str(before), str(after)))
    assert (folder / STUDY).read_bytes() == content
    begin(other, folder, overwrite=True)
    assert read_result(folder).rows == []


def test_study_with_another_budget_or_axis_is_refused(study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "small"
    begin(study, folder)
    longer = load_study(write_study(tmp_path, budget={"steps": 9}))
    error = refused(lambda: begin(longer, folder))
    assert (error.code, error.setting) == ("study.changed", "budget.steps")
    axes = load_study(write_study(tmp_path, {"norm": {"rms": {}, "layer": {"model.norm": "layer"}}}))
    error = refused(lambda: begin(axes, folder))
    assert (error.code, error.setting) == ("study.changed", None)


def test_other_folders_are_not_changed(study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "small"
    folder.mkdir(parents=True)
    (folder / "letter.txt").write_text("dear")
    error = refused(lambda: begin(study, folder, overwrite=True))
    assert (error.code, error.setting) == ("run.exists", "folder")
    assert (folder / "letter.txt").read_text() == "dear"
    (folder / "config.json").write_text("{}")
    error = refused(lambda: begin(study, folder, overwrite=True))
    assert (error.code, error.setting) == ("run.exists", "folder")
    assert (folder / "config.json").read_text() == "{}"
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused(lambda: begin(study, tmp_path / "file" / "small")).what
    assert refused(lambda: read_result(tmp_path)).code == "study.missing"


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 9}', '{"format": 1, "study": {}}', '{"format": 1}'])
def test_damaged_study_file_is_an_error(study: Study, tmp_path: Path, content: str) -> None:
    begin(study, tmp_path / "small")
    (tmp_path / "small" / STUDY).write_text(content)
    error = refused(lambda: read_result(tmp_path / "small"))
    assert (error.code, error.where) == ("file.damaged", str(tmp_path / "small" / STUDY))


def test_line_with_other_keys_is_an_error(study: Study, tmp_path: Path) -> None:
    begin(study, tmp_path / "small")
    append_line(tmp_path / "small" / METRICS, {"event": "step"})
    error = refused(lambda: read_result(tmp_path / "small"))
    assert (error.code, error.where) == ("file.damaged", f"{tmp_path / 'small' / METRICS}, line 1")


def test_study_folder_is_locked(study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    with open_result(study, folder, ""):
        assert refused(lambda: begin(study, folder)).code == "run.locked"
        assert refused(lambda: begin(study, folder, overwrite=True)).code == "run.locked"
    begin(study, folder)
    remove_study(folder)
    assert not folder.exists()
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".removing")] == []
    folder.mkdir()
    with locked(folder):
        pass


def test_settings_do_not_contain_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LILLIPUT_DATA", str(tmp_path))
    study = load_study(write_study(tmp_path))
    ((_, first), _) = complete_settings(study)
    assert first["data.source"] == "$LILLIPUT_DATA/mytext.txt"
    assert str(tmp_path) not in json.dumps(first)
