"""Tests of `info` and of the keys of `prepare`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers.small_runs import FLAGS, SETTINGS, copy_of_trained, lilliput, trained
from lilliput.settings.recipes import recipe_schema
from lilliput.storage.run_folders import RunFolder


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained())
    return trained()


def as_json(*argv: str) -> Any:
    code, out, err = lilliput(*argv, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


# ---- info


def test_json_of_a_run() -> None:
    output = as_json("info", "mine")
    keys = "config parameters flops_per_token steps tokens_seen seconds validation checkpoints"
    assert output.keys() >= set(keys.split())
    assert output["validation"].keys() >= {"loss", "perplexity", "bits_per_byte"}
    assert (output["steps"], output["tokens_seen"]) == (8, 8 * 4 * 32)
    assert output["parameters"]["total"] == sum(
        output["parameters"][part] for part in ("embedding", "blocks", "norm", "head")
    )
    assert [checkpoint["verified"] for checkpoint in output["checkpoints"]] == [True] * len(output["checkpoints"])
    whole = next(event for event in RunFolder(Path("runs/mine")).metrics() if event.get("whole"))
    assert output["validation"]["loss"] == whole["loss"]


def test_printed_output_of_a_run() -> None:
    code, out, err = lilliput("info", "runs/mine")
    assert (code, err) == (0, "")
    assert "8, 1.02k tokens" in out
    assert "checkpoint  step-000008" in out and "best last" in out


def test_minutes_exclude_the_final_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluation of the whole split after training is not counted."""
    monkeypatch.chdir(copy_of_trained(tmp_path))
    run = RunFolder(Path("runs/mine"))
    times = {"step": 60.0, "finished": 600.0}
    events = [
        event | ({"seconds": times[event["event"]]} if event["event"] in times else {}) for event in run.metrics()
    ]
    run.metrics_path.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert "tokens, 1.0 minutes of training" in lilliput("info", "mine").out
    assert as_json("info", "mine")["seconds"] == 60.0


def test_info_accepts_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = as_json("info", "mine")["steps"]
    assert as_json("info", "runs/mine/checkpoints/step-000008")["steps"] == expected
    monkeypatch.chdir("runs/mine/checkpoints")
    assert as_json("info", "step-000008")["steps"] == expected


def test_all_runs(tmp_path: Path) -> None:
    (output,) = [run for run in as_json("info") if run["name"] == "mine"]
    assert (output["state"], output["steps"]) == ("finished", 8)
    assert "mine" in lilliput("info").out
    assert as_json("info", "--folder", str(tmp_path)) == []
    assert "lilliput train demo" in lilliput("info", "--folder", str(tmp_path)).out


def test_comparing_two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy_of_trained(tmp_path)
    monkeypatch.chdir(folder)
    changes = ["--name", "other", "--model.window", "8,none", "--optimizer.lr", "0.01"]
    assert lilliput("train", "mytext.txt", *FLAGS, *changes).code == 0
    output = as_json("info", "mine", "other")
    assert output["optimizer.lr"] == [0.002, 0.01]
    assert output["model.window"] == [None, [8, None]]
    assert "model.dim" not in output
    out = lilliput("info", "mine", "other").out
    assert "[8, None]" in out and "validation loss" in out


def test_removed_settings_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If they were off, they are ignored; if used, the error names the setting."""
    monkeypatch.chdir(copy_of_trained(tmp_path))
    shutil.copytree("runs/mine", "runs/older")
    path = Path("runs/older/config.json")
    config = json.loads(path.read_text())
    config["model"] |= {"pairs": None, "mix_embedding": False}
    path.write_text(json.dumps(config))
    assert as_json("info", "mine", "older") == {}
    config["model"]["mix_embedding"] = True
    path.write_text(json.dumps(config))
    for command in (["info", "older"], ["info", "mine", "older"], ["train", "runs/older", "--resume"]):
        result = lilliput(*command)
        assert result.code == 2
        (error,) = result.errors
        assert (error.code, error.setting) == ("setting.removed", "model.mix_embedding")
        assert error.where is not None and "older/config.json" in error.where


def test_a_damaged_checkpoint_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy_of_trained(tmp_path))
    (Path("runs/mine/checkpoints/step-000008") / "model.safetensors").write_bytes(b"")
    assert "damaged" in lilliput("info", "mine").out
    assert [c["verified"] for c in as_json("info", "mine")["checkpoints"]].count(False) == 1


def test_the_shipped_schema_is_current() -> None:
    code, out, _ = lilliput("info", "--schema")
    assert code == 0
    assert json.loads(out) == recipe_schema()
    shipped = Path(__file__).parents[2] / "recipes" / "recipe.schema.json"
    assert shipped.read_text("utf-8") == out, "make schema"


def test_info_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys; from lilliput.cli import main; main(['info', 'mine']); main(['info']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# ---- prepare


def test_the_keys_of_a_preparation(tmp_path: Path) -> None:
    flags = ["--tokenizer.kind", SETTINGS["tokenizer.kind"], "--data.cache", str(tmp_path)]
    output = as_json("prepare", "mytext.txt", *flags)
    keys = "documents bytes tokens vocab_size bytes_per_token unknown_rate duplicates"
    assert output.keys() >= set(keys.split())
    assert output["documents"] == {"train": 11, "validation": 1}
    assert output["duplicates"] == {"within": {"train": 0, "validation": 0}, "across": {"validation": 0}}
    code, out, err = lilliput("prepare", "mytext.txt", *flags)
    assert (code, err) == (0, "")
    assert "vocabulary 257" in out
    assert len([name for name in os.listdir(tmp_path) if not name.endswith(".lock")]) == 1


def test_several_runs_in_one_table() -> None:
    """More than two runs, also checkpoints of runs."""
    one, two, three = as_json("info", "mine", "runs/mine", "runs/mine/checkpoints/step-000008")
    assert one["name"] == two["name"] == three["name"] == "mine"
    assert one["loss"] == three["loss"] and one["steps"] == 8
    code, out, err = lilliput("info", "mine", "mine", "mine")
    assert (code, err) == (0, "")
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [["mine", "finished", "8"]] * 3
