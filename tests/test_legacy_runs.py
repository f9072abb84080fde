"""Runs of an earlier version load, resume, and generate the same text.

The runs and the expected values of their version are in `data_files/legacy`, with the script that made them. The tests use
only the command line and the files of a run, so that they do not depend on the names of modules.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers.small_runs import lilliput

LEGACY = Path(__file__).parent / "data_files" / "legacy"
RUNS = sorted(path.parent.name for path in LEGACY.glob("*/expected.json"))
EXPECTED = {name: json.loads((LEGACY / name / "expected.json").read_text("utf-8")) for name in RUNS}
INTERRUPTED = [name for name in RUNS if EXPECTED[name]["interrupted"]]
LEFT_OUT = ("seconds", "tokens_per_second", "share_of_peak", "memory_bytes", "text")  # of the log: times and messages

every_run = pytest.mark.parametrize("name", RUNS)


@pytest.fixture
def run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Copy the run and its data to the current folder; return the path of the run."""
    shutil.copytree(LEGACY / name, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return f"saved/{name}"


def call(*argv: str) -> dict[str, Any]:
    ended = lilliput(*argv, "--json")
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


def assert_holds(actual: Any, expected: Any, where: str) -> None:
    """Check all expected keys, floats to 1e-9; keys that are newer than the run are ignored."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert key in actual, f"{where}.{key}"
            assert_holds(actual[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_holds(one, other, f"{where}[{index}]")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=1e-9, abs=1e-12), where
    else:
        assert actual == expected, where


def log_of(run: str) -> list[dict[str, Any]]:
    events = map(json.loads, Path(run, "metrics.jsonl").read_text("utf-8").splitlines())
    kept = [event for event in events if event["event"] != "session"]  # newer than the runs
    return [{key: value for key, value in event.items() if key not in LEFT_OUT} for event in kept]


def assert_info(run: str, expected: dict[str, Any]) -> None:
    info = call("info", run)
    figures = dict(expected["info"])
    assert set(figures.pop("keys")) <= info.keys()
    assert set(figures.pop("sections")) <= info["config"].keys()
    assert_holds(info, figures, "info")
    assert all(checkpoint["verified"] for checkpoint in info["checkpoints"])


def assert_texts(run: str, expected: dict[str, Any]) -> None:
    for text in expected["texts"]:
        prompt = text["sample"]["prompt"]
        (found,) = call("generate", run, "--device", "cpu", "--prompt", prompt, *text["flags"])["samples"]
        assert_holds(found, text["sample"], " ".join(text["flags"]))


def assert_figures(run: str, expected: dict[str, Any]) -> None:
    for name, figures in expected["evaluate"].items():
        figures = with_interval_of_accuracy(figures)
        assert_holds(call("evaluate", run, "--device", "cpu", "--on", name), figures, name)
    call("evaluate", run, "--device", "cpu", "--csv", "documents.csv")
    with open("documents.csv", encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert_holds([as_numbers(row) for row in found], [as_numbers(row) for row in expected["documents"]], "documents")


def with_interval_of_accuracy(found: dict[str, Any]) -> dict[str, Any]:
    """Replace the interval of the accuracy, which was bootstrapped, by Wilson's (1927), which it is now."""
    if "accuracy" not in found["interval"]:
        return found
    n, share, z = found["documents"], found["accuracy"], 1.959963984540054
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return found | {"interval": found["interval"] | {"accuracy": [centre - reach, centre + reach]}}


def as_numbers(row: dict[str, str]) -> dict[str, Any]:
    return {name: as_number(text) for name, text in row.items()}


def as_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def test_the_runs_cover_the_choices() -> None:
    """The runs must not be replaced by runs with fewer choices."""
    configs = [json.loads((LEGACY / name / "saved" / name / "config.json").read_text("utf-8")) for name in RUNS]
    covered = {
        ("model", "task"): {"language", "classifier", "both"},
        ("model", "norm"): {"layer", "rms"},
        ("model", "norm_placement"): {"pre", "post"},
        ("model", "positions"): {"sinusoidal", "learned", "rotary", None},
        ("model", "feed_forward"): {"relu", "gelu", "relu2", "swiglu"},
        ("model", "initialisation"): {"xavier", "gpt2", "zero-residual", "copying"},
        ("model", "value_embeddings"): {None, "ends", "alternate", "all"},
        ("model", "qk_norm"): {False, True},
        ("model", "tied"): {False, True},
        ("tokenizer", "kind"): {"bpe", "character", "word"},
        ("vectors", "source"): {None, "words.vec"},
        ("optimizer", "kind"): {"sgd", "adam", "adamw", "muon"},
        ("schedule", "kind"): {"constant", "cosine", "linear", "inverse-sqrt"},
        ("train", "recompute"): {None, "block", "feed-forward"},
        ("data", "windows"): {"aligned", "overlapping"},
    }
    assert {choice: {config[choice[0]][choice[1]] for config in configs} for choice in covered} == covered
    assert {"language", "classifier", "both"} <= set(RUNS)
    assert {"language", "classifier"} <= set(INTERRUPTED)


@every_run
def test_info_of_a_legacy_run(run: str, name: str) -> None:
    assert_info(run, EXPECTED[name])


@every_run
def test_a_legacy_run_generates_the_same_text(run: str, name: str) -> None:
    if EXPECTED[name]["texts"]:
        assert_texts(run, EXPECTED[name])
    else:
        assert lilliput("generate", run).code == 2  # a classifier


@every_run
def test_a_legacy_run_has_the_same_metrics(run: str, name: str) -> None:
    assert_figures(run, EXPECTED[name])


@pytest.mark.parametrize("name", INTERRUPTED)
def test_a_legacy_run_resumes_bit_for_bit(run: str, name: str) -> None:
    expected = EXPECTED[name]["resumed"]
    call("train", run, "--resume")
    assert_holds(log_of(run), expected["log"], "log")
    assert_info(run, expected)
    assert_texts(run, expected)
    assert_figures(run, expected)


@pytest.mark.parametrize("name", [name for name in RUNS if name not in INTERRUPTED])
def test_a_finished_legacy_run_only_repeats_its_evaluation(run: str, name: str) -> None:
    before = log_of(run)
    call("train", run, "--resume")
    assert_holds(log_of(run), before, "log")
    assert_info(run, EXPECTED[name])


@every_run
def test_a_new_run_starts_from_legacy_weights(run: str, name: str) -> None:
    expected = EXPECTED[name]["from"]
    call("train", expected["source"], "--from", run, "--name", "new", *expected["flags"])
    assert_holds(log_of("saved/new"), expected["log"], "log")


# ---- Settings that were deleted after these runs were made. These fail with any version that still has the settings.

DELETED: dict[str, tuple[Any, Any]] = {  # the value that turned it off, and one that did not
    "train.naive_bayes": (None, 1.0),
    "model.pairs": (None, 50),
    "model.mix_embedding": (False, True),
}


def change_config(path: Path, setting: str, value: Any) -> None:
    section, _, name = setting.partition(".")
    config = json.loads(path.read_text("utf-8"))
    config[section][name] = value
    path.write_text(json.dumps(config, indent=2), "utf-8")


def change_run(run: str, setting: str, value: Any) -> None:
    """Change a setting in the run and in its checkpoints, and update their manifests."""
    change_config(Path(run, "config.json"), setting, value)
    for folder in Path(run, "checkpoints").iterdir():
        change_config(folder / "config.json", setting, value)
        data = (folder / "config.json").read_bytes()
        manifest = json.loads((folder / "manifest.json").read_bytes())
        del manifest["this_sha256"]
        manifest["files"]["config.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        body = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode("ascii")
        seal = f',"this_sha256":"{hashlib.sha256(body).hexdigest()}"}}'.encode("ascii")
        (folder / "manifest.json").write_bytes(body[:-1] + seal)


def contents(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file() and path.name != ".lock"}


@every_run
def test_a_deleted_setting_that_was_off_is_dropped(run: str, name: str) -> None:
    """All legacy runs have these settings with the off value; a new run does not have them."""
    for path in Path(run).rglob("config.json"):
        config = json.loads(path.read_text("utf-8"))
        for setting, (off, _) in DELETED.items():
            section, _, inner = setting.partition(".")
            assert config[section][inner] == off
    expected = EXPECTED[name]["from"]
    call("train", expected["source"], "--from", run, "--name", "new", *expected["flags"])
    new = json.loads(Path("saved/new/config.json").read_text("utf-8"))
    assert not [setting for setting in DELETED if setting.partition(".")[2] in new[setting.partition(".")[0]]]


@pytest.mark.parametrize("setting", DELETED)
@pytest.mark.parametrize("name", ["classifier", "language"])
def test_a_run_that_used_a_deleted_setting_is_an_error_with_its_name(run: str, name: str, setting: str) -> None:
    change_run(run, setting, DELETED[setting][1])
    source, flags = EXPECTED[name]["from"]["source"], EXPECTED[name]["from"]["flags"]
    before = contents("saved")
    for argv in (
        ["generate", run],
        ["evaluate", run],
        ["train", run, "--resume"],
        ["train", source, "--from", run, "--name", "new", *flags],
    ):
        ended = lilliput(*argv)
        assert ended.code == 2, argv
        assert setting in ended.err, argv
    assert contents("saved") == before
