"""Tests of `lilliput train`: targets, dry runs, output, resume."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from helpers.labelled_corpora import labelled_changes, write_labelled
from helpers.shared_data import DATA, needs_data
from helpers.small_runs import FLAGS, SETTINGS, TEXT, lilliput, write_text
from lilliput.settings.loading import SIZES
from lilliput.settings.recipes import shipped_recipes
from lilliput.storage.run_folders import RunFolder
from torture import outcome

TRAIN_ONLY = [
    word
    for name, value in SETTINGS.items()
    if not name.startswith(("model.", "tokenizer."))
    for word in (f"--{name}", value)
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    return tmp_path


def as_json(*argv: str) -> Any:
    code, out, err = lilliput(*argv, "--json")
    assert code == 0, err
    return json.loads(out)


# ---- targets


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("mytext.txt", "mytext"),
        ("texts", "texts"),
        ("lines.jsonl", "lines"),
        ("mine.toml", "recipe"),
        ("storybook", "storybook"),
    ],
)
def test_targets_of_training(here: Path, target: str, name: str) -> None:
    (here / "texts").mkdir()
    for number, text in enumerate(TEXT.split("<|endoftext|>")):
        (here / "texts" / f"{number}.txt").write_text(text)
    (here / "lines.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXT.split("<|endoftext|>")))
    (here / "mine.toml").write_text('name = "recipe"\n[data]\nsource = "mytext.txt"\n[optimizer]\nlr = 1e-3\n')
    code, out, err = lilliput("train", target, *FLAGS, "--data.documents", "12")
    assert code == 0, err
    assert f"run folder: runs/{name};" in out
    assert "validation loss" in out and "bits per byte" in out
    assert ("floor " in out) == (target == "storybook") == ("valid stories" in out)
    (command,) = re.findall(rf"lilliput generate {name} (.*)  #", out)
    (prompt,) = shlex.split(command)
    assert 1 <= len(prompt.split()) <= 4
    words = (here / "mytext.txt").read_text("utf-8").split() if name != "storybook" else prompt.split()
    assert set(prompt.split()) <= {*words}, "words of the run's own text"
    for command in [line.strip() for line in out.splitlines() if line.startswith("  lilliput ")][:2]:
        assert lilliput(*shlex.split(command.partition("  # ")[0])[1:]).code == 0
    assert "parameters" in err and "validation loss" in err


def test_a_shipped_recipe_by_name_and_a_size() -> None:
    summary = as_json("train", "demo", "--size", "nano", "--dry-run")
    assert {key: summary["config"]["model"][key] for key in SIZES["nano"]} == SIZES["nano"]
    assert summary["config"]["name"] == "demo"


def test_flags_override_the_size() -> None:
    summary = as_json("train", "demo", "--size", "nano", "--model.layers", "7", "--dry-run")
    assert summary["config"]["model"]["layers"] == 7


# ---- dry runs


def test_the_keys_of_a_dry_run() -> None:
    summary = as_json("train", "mytext.txt", "--dry-run")
    assert summary.keys() >= {"config", "parameters", "flops_per_token", "memory_bytes", "seconds_estimate"}
    assert list(summary["parameters"]) == ["embedding", "blocks", "norm", "head", "total", "trainable"]
    assert summary["seconds_estimate"] == 60 * summary["config"]["train"]["minutes"]
    assert os.listdir() == ["mytext.txt"], "nothing is made"


@pytest.mark.parametrize(
    ("recipe", "parameters"),
    [
        ("published-gpt2", {"embedding": 25_731_584, "blocks": 18_905_088, "head": 25_781_841, "total": 70_419_537}),
        ("speech-lm", {"total": 863_243}),
        ("speech-classifier", {"total": 576_467}),
    ],
)
def test_published_parameter_counts(recipe: str, parameters: dict[str, int]) -> None:
    summary = as_json("train", recipe, "--dry-run")["parameters"]
    assert {key: summary[key] for key in parameters} == parameters


def test_printed_output_of_a_dry_run() -> None:
    code, out, err = lilliput("train", "mytext.txt", "--size", "nano", "--train.minutes", "7", "--dry-run")
    assert (code, err) == (0, "")
    assert "model.dim" not in out
    assert "\ntime        about 7.0 minutes\n" in out


def test_a_dry_run_uses_an_existing_tokenizer(here: Path) -> None:
    assert lilliput("train", "mytext.txt", *FLAGS, "--name", "bytes").code == 0
    tokenizer = str(here / "runs" / "bytes" / "checkpoints" / "step-000008" / "tokenizer.json")
    summary = as_json("train", "mytext.txt", "--tokenizer.path", tokenizer, "--dry-run")
    assert summary["config"]["model"]["vocab_size"] == 257


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ("--tokenizer.kind gpt2", 50_257),
        ("--tokenizer.kind word --tokenizer.max_vocabulary 700", 700),
        ("--tokenizer.kind word --tokenizer.vocabulary words.txt", 4),
    ],
)
def test_a_dry_run_estimates_the_vocabulary(here: Path, flags: str, size: int) -> None:
    (here / "words.txt").write_text("<pad>\n<unk>\nthe\nbee\n")
    summary = as_json("train", "mytext.txt", "--data.source", "absent.txt", *flags.split(), "--dry-run")
    assert summary["config"]["model"]["vocab_size"] == size


def test_a_dry_run_uses_the_vocabulary_of_the_text(here: Path) -> None:
    summary = as_json("train", "mytext.txt", "--tokenizer.kind", "word", "--dry-run")
    words = as_json("prepare", "mytext.txt", "--tokenizer.kind", "word")
    assert summary["config"]["model"]["vocab_size"] == words["vocab_size"] < 100
    assert as_json("train", "mytext.txt", "--tokenizer.kind", "word", "--dry-run") == summary | {"memory_bytes": ANY}, (
        "the same from prepared data"
    )


def test_a_dry_run_of_a_word_tokenizer_requires_a_vocabulary_size() -> None:
    result = lilliput("train", "mytext.txt", "--data.source", "absent.txt", "--tokenizer.kind", "word", "--dry-run")
    assert (result.code, result.out) == (2, "")
    assert [(error.code, error.setting) for error in result.errors] == [("setting.value", "model.vocab_size")]


def test_a_dry_run_uses_the_width_of_vectors(here: Path) -> None:
    (here / "words.vec").write_text("2 3\nbee 1 2 3\nthe 4 5 6\n")
    flags = [
        "mytext.txt",
        "--tokenizer.kind",
        "word",
        "--tokenizer.max_vocabulary",
        "700",
        "--model.dim",
        "64",
        "--data.source",
        "absent.txt",
        "--dry-run",
    ]
    summary = as_json("train", *flags, "--vectors.source", "words.vec")
    assert summary["parameters"]["embedding"] == 700 * 3 + 3 * 64
    assert as_json("train", *flags, "--vectors.source", "train")["parameters"]["embedding"] == 700 * 100 + 100 * 64


# ---- labels and tests


def test_a_classifier_from_end_to_end(here: Path) -> None:
    """A classifier has accuracies instead of samples and bits per byte."""
    flags = [word for name, value in labelled_changes(here).items() for word in (f"--{name.replace('__', '.')}", value)]
    code, out, err = lilliput("train", "said.tsv", *FLAGS, *flags, "--log.sample_seconds", "1e-9")
    assert code == 0, err
    assert "32 training documents with 3 labels" in err and "a sample after" not in err
    assert "bits" not in out + err and "perplexity" not in out + err
    lines = out.splitlines()
    assert any(line.startswith("validation loss") and "nats/document (8 documents" in line for line in lines)
    assert any(line.startswith("test set heard    accuracy ") and line.endswith("%  (11 documents)") for line in lines)
    assert "lilliput generate" not in out
    summary = as_json("info", "said")
    assert summary["validation"]["bits_per_byte"] is None
    assert summary["tests"]["heard"]["documents"] == 11
    assert "test        heard: loss " in lilliput("info", "said").out
    assert "accuracy" in lilliput("info").out
    result = lilliput("generate", "said", "--prompt", "the honey")
    assert (result.code, result.out) == (2, "")
    assert [error.code for error in result.errors] == ["model.task"]
    write_labelled(here, "more.tsv")
    assert lilliput("train", "more.tsv", "--from", "said", *TRAIN_ONLY).code == 0
    assert lilliput("train", "mytext.txt", *FLAGS).code == 0
    assert [row.split()[3:] for row in lilliput("info").out.splitlines()[:1]] == [["loss", "bits/byte", "accuracy"]]
    assert "validation accuracy" in lilliput("info", "said", "mytext").out


def test_the_perplexity_of_each_test(here: Path) -> None:
    other = write_text(here, "other.txt", "xyz " * 50)
    flags = ["--data.tests", f"mine=mytext.txt,other={other}", "--data.windows", "overlapping"]
    code, out, err = lilliput("train", "mytext.txt", *FLAGS, *flags)
    assert code == 0, err
    summary = as_json("info", "mytext")["tests"]
    assert list(summary) == ["mine", "other"]
    for name, found in summary.items():
        assert (
            f"test set {name:<8} perplexity {found['perplexity']:,.2f}  {found['bits_per_byte']:.4f} bits/byte  ("
            in out
        )
    assert "accuracy" not in lilliput("info").out


@needs_data
@pytest.mark.parametrize(("recipe", "documents"), [("speech-lm", None), ("speech-classifier", 750)])
def test_the_speech_recipes_run(recipe: str, documents: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LILLIPUT_DATA", str(DATA))
    summary = as_json("train", recipe, "--train.steps", "3")
    assert summary["parameters"]["total"] == {"speech-lm": 863_243, "speech-classifier": 576_467}[recipe]
    assert all(found["documents"] == documents for found in summary["tests"].values())
    if recipe == "speech-lm":
        assert {name: found["tokens"] for name, found in summary["tests"].items()} == {
            "obama": 5_534,
            "wbush": 4_780,
            "hbush": 4_728,
        }


# ---- output


def test_json_is_one_object_on_stdout_and_nothing_else() -> None:
    code, out, err = lilliput("train", "mytext.txt", *FLAGS, "--json")
    assert code == 0
    summary = json.loads(out)
    assert summary["steps"] == 8
    assert summary["validation"].keys() >= {"loss", "perplexity", "bits_per_byte"}
    assert "mytext" in err
    assert "\x1b" not in out + err


def test_names_are_not_parsed_as_markup() -> None:
    code, out, err = lilliput("train", "mytext.txt", *FLAGS, "--name", "[red]x[/]"[:6])
    assert code == 0, err
    assert "[red]x" in out and "[red]x" in err
    assert "[red]x" in lilliput("info").out
    assert "[red]x" in lilliput("info", "[red]x").out


# ---- resume


def test_an_existing_run_is_an_error_with_three_fixes() -> None:
    assert lilliput("train", "mytext.txt", *FLAGS).code == 0
    result = lilliput("train", "mytext.txt", *FLAGS)
    assert (result.code, result.out) == (2, "")
    (error,) = result.errors
    assert (error.code, error.where) == ("run.exists", "runs/mytext")
    assert all(flag in str(error.fix) for flag in ("--resume", "--name NEW", "--overwrite"))
    before = outcome(Path("runs/mytext"))
    assert lilliput("train", "mytext.txt", *FLAGS, "--name", "second").code == 0
    assert lilliput("train", "mytext.txt", *FLAGS, "--overwrite").code == 0
    assert outcome(Path("runs/mytext")) == outcome(Path("runs/second")) == before


@pytest.mark.parametrize(
    "words", [["runs/mytext"], ["mytext"], ["mytext.txt"], ["mytext.txt", *FLAGS], ["runs/mytext/"]]
)
def test_resuming_by_folder_name_or_command(words: list[str]) -> None:
    assert lilliput("train", "mytext.txt", *FLAGS).code == 0
    before = outcome(Path("runs/mytext"))
    run = RunFolder(Path("runs/mytext"))
    assert run.last
    shutil.rmtree(run.last.folder)  # as after a kill before the last save
    code, _, err = lilliput("train", *words, "--resume")
    assert code == 0, err
    assert "from step 6" in err
    assert outcome(Path("runs/mytext")) == before


def test_resuming_a_finished_run_prints_a_note() -> None:
    assert lilliput("train", "mytext.txt", *FLAGS).code == 0
    before = outcome(Path("runs/mytext"))
    code, _, err = lilliput("train", "mytext", "--resume")
    assert code == 0
    assert "note: the run has used up its budget" in err
    assert outcome(Path("runs/mytext")) == before


def test_a_resumed_run_keeps_its_settings_but_not_its_recipe(here: Path) -> None:
    recipe = here / "mine.toml"
    recipe.write_text('[data]\nsource = "mytext.txt"\n')
    assert lilliput("train", "mine.toml", *FLAGS, "--size", "nano").code == 0
    recipe.write_text('[data]\nsource = "mytext.txt"\n[optimizer]\nlr = 0.5\n')
    assert lilliput("train", "mine.toml", "--resume").code == 0, "what a recipe says by now does not matter"
    for change in (["--optimizer.lr", "0.4"], ["--size", "tiny"]):
        result = lilliput("train", "mine.toml", "--resume", *change)
        assert result.code == 2
        (error,) = result.errors
        assert error.code == "setting.changed"
        assert error.setting is not None and (change[0] == "--size" or change[0] == f"--{error.setting}")
    assert lilliput("train", "mine.toml", "--resume", "--size", "nano").code == 2, (
        "a smaller model was asked for by FLAGS"
    )


@pytest.mark.parametrize("target", ["mytext", "runs/mytext"])
def test_a_resumed_run_named_by_itself_keeps_its_settings(target: str) -> None:
    assert lilliput("train", "mytext.txt", *FLAGS).code == 0
    for change in (["--optimizer.average", "0.5"], ["--size", "tiny"]):
        result = lilliput("train", target, "--resume", *change)
        assert result.code == 2
        (error,) = result.errors
        assert (error.code, error.where) == ("setting.changed", "runs/mytext")
        assert "--name NEW --from runs/mytext" in str(error.fix)
    result = lilliput("train", target, "--resume", "--train.parallel", "bogus")
    assert result.code == 2
    assert [(error.code, error.setting) for error in result.errors] == [("setting.choice", "train.parallel")]


def test_a_recipe_that_has_the_name_of_its_run_is_resumed_by_its_command() -> None:
    """A recipe has precedence over a run of the same name; flags equal to the run's settings are not changes."""
    command = ["train", "storybook", *FLAGS, "--data.documents", "12"]
    assert lilliput(*command).code == 0
    assert lilliput(*command, "--resume").code == 0


def test_a_warm_up_longer_than_the_run_prints_a_note() -> None:
    code, _, err = lilliput("train", "mytext.txt", *FLAGS, "--schedule.warmup", "50")
    assert code == 0
    note = "note: the warm-up (50 steps) is longer than the run (8 steps)"
    assert note in err
    assert "warmup" not in lilliput("train", "mytext.txt", *FLAGS, "--name", "other").err


def test_fine_tuning(here: Path) -> None:
    assert lilliput("train", "mytext.txt", *FLAGS, "--name", "base").code == 0
    (here / "letters.txt").write_text("The bees are well. " * 100)
    summary = as_json("train", "letters.txt", "--from", "base", *TRAIN_ONLY)
    base, tuned = RunFolder(Path("runs/base")), RunFolder(Path("runs/letters"))
    assert summary["config"]["model"] == base.config()["model"]
    assert base.best and tuned.best
    assert tuned.best.tokenizer_json() == base.best.tokenizer_json()
    # It starts with the loss of the other run, far below ln(257) of a new model.
    first = next(event for event in tuned.metrics() if event["event"] == "step")
    assert first["loss"] < 5.5
    assert lilliput("train", "letters", "--resume").code == 0
    assert as_json("train", "letters.txt", "--from", "base", "--dry-run")["config"]["model"]["dim"] == 16


def test_the_data_folder_variable(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "recipes").mkdir()
    (here / "data").mkdir()
    shutil.move("mytext.txt", "data/mytext.txt")
    (here / "recipes" / "mine.toml").write_text('[data]\nsource = "$LILLIPUT_DATA/mytext.txt"\n')
    monkeypatch.setenv("LILLIPUT_DATA", str(here / "data"))
    assert lilliput("train", "recipes/mine.toml", *FLAGS).code == 0
    monkeypatch.delenv("LILLIPUT_DATA")
    code, _, err = lilliput("train", "recipes/mine.toml", *FLAGS, "--name", "other")
    assert code == 2
    assert "LILLIPUT_DATA" in err


def test_the_error_of_an_unknown_recipe_lists_the_shipped_ones() -> None:
    assert set(shipped_recipes()) >= {"demo", "speech-classifier", "speech-lm", "published-gpt2"}


def test_a_wrong_flag_is_located_on_the_command_line() -> None:
    (error,) = lilliput("train", "mytext.txt", "--model.nrm", "rms").errors
    assert (error.code, error.setting, error.where) == ("setting.unknown", "model.nrm", "command line")
    assert "model.norm" in str(error.fix)
