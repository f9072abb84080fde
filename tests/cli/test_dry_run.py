"""Tests of `lilliput train RECIPE --dry-run`: estimates of length, memory and time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.small_runs import lilliput, write_text
from lilliput.model.counting import activations
from lilliput.settings.loading import load_config

SETTINGS = {
    "tokenizer.kind": "byte",
    "train.steps": "100",
    "schedule.warmup": "10",
    "train.precision": "float32",
}
FLAGS = ["--size", "nano", *(word for name, value in SETTINGS.items() for word in (f"--{name}", value))]
TOKENS = 16 * 128  # of a micro-batch
EPOCH = 7  # batches


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    return tmp_path


def output(flags: str = "") -> Any:
    code, out, err = lilliput("train", "mytext.txt", *FLAGS, *flags.split(), "--dry-run", "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize(
    ("flags", "numbers"),
    [
        ("--optimizer.kind adam", 0),
        ("--optimizer.kind sgd", -1),
        ("--optimizer.kind sgd --optimizer.momentum 0", -2),
        ("--optimizer.average 0.99", 1),
    ],
)
def test_memory_follows_the_optimizer(flags: str, numbers: int) -> None:
    """`numbers`: difference to AdamW in values per trainable weight."""
    plain = output()
    trainable = plain["parameters"]["trainable"]
    assert output(flags)["tensor_bytes"] - plain["tensor_bytes"] == 4 * numbers * trainable


def test_muon_stores_one_moment_per_matrix_weight() -> None:
    matrices = 2 * (4 * 64 * 64 + 2 * 64 * 256)
    assert output()["tensor_bytes"] - output("--optimizer.kind muon")["tensor_bytes"] == 4 * matrices


@pytest.mark.parametrize(("kind", "every"), [("block", 1), ("block", 2), ("feed-forward", 1)])
def test_memory_and_time_follow_recomputation(kind: Any, every: int) -> None:
    flags = f"--model.layers 6 --train.recompute {kind} --train.recompute_every {every}"
    plain, again = output("--model.layers 6"), output(flags)
    model = load_config("mytext.txt", {"model.layers": "6"}, "nano").model
    less = 6 * activations(model).whole[0] - activations(model, kind, every).most
    assert less > 0
    assert plain["tensor_bytes"] - again["tensor_bytes"] == 4 * TOKENS * less
    ratio = 1 + again["recomputed_flops_per_token"] / plain["flops_per_token"]
    assert 1.05 < ratio < 1.34
    assert again["seconds_estimate"] / plain["seconds_estimate"] == pytest.approx(ratio, rel=1e-12)
    assert again["flops_per_token"] == plain["flops_per_token"]


def test_recomputed_blocks_store_their_inputs_and_one_full_block() -> None:
    """6 layers of width 64: one is stored in full, of five the input."""
    spared = (
        output("--model.layers 6")["tensor_bytes"] - output("--model.layers 6 --train.recompute block")["tensor_bytes"]
    )
    whole = activations(load_config("mytext.txt", {}, "nano").model).whole[0]
    assert spared == 4 * TOKENS * 5 * (whole - 64)


def test_float64_doubles_the_memory() -> None:
    flags = "--optimizer.kind muon --optimizer.average 0.9 --train.recompute block"
    assert output(flags + " --train.precision float64")["tensor_bytes"] == 2 * output(flags)["tensor_bytes"]


def test_the_chosen_precision_is_printed() -> None:
    assert output()["notes"] == []
    (note,) = output("--train.precision auto")["notes"]
    assert note.startswith(("using bfloat16: ", "using float32: "))
    code, out, err = lilliput("train", "mytext.txt", *FLAGS, "--train.precision", "auto", "--dry-run")
    assert (code, err) == (0, "")
    assert out.endswith(f"\nnote: {note}\n")


@pytest.mark.parametrize(
    ("budget", "steps"), [("train.steps 70", 70), ("train.tokens 20480", 10), ("train.epochs 2", 2 * EPOCH)]
)
def test_the_length_of_the_run_in_all_units(budget: str, steps: int) -> None:
    found = output(f"--train.steps none --{budget}")
    assert found["steps"] == pytest.approx(steps, abs=1)
    assert found["epochs"] == pytest.approx(found["steps"] / EPOCH)
    assert 0.9 * TOKENS * found["steps"] < found["tokens"] <= TOKENS * found["steps"]
    assert found["seconds_estimate"] > 0.0


def test_minutes_become_steps() -> None:
    one, two = (output(f"--train.steps none --train.minutes {minutes}") for minutes in (1, 2))
    assert one["seconds_estimate"] == 60.0
    assert two["steps"] == pytest.approx(2 * one["steps"], rel=0.01) and one["steps"] > 1


def test_the_summary_is_short_unless_verbose() -> None:
    code, out, _ = lilliput("train", "mytext.txt", *FLAGS, "--dry-run")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines()]
    assert names == ["parameters", "FLOPs", "length", "memory", "time"]
    code, verbose, _ = lilliput("train", "mytext.txt", *FLAGS, "--dry-run", "--verbose")
    assert code == 0 and [line.split()[0] for line in verbose.splitlines()[:5]] == names
    assert "\nmodel.dim = 64\n" in verbose and "\nmodel.vocab_size = 257\n" in verbose


def test_a_missing_text_is_assumed_with_a_note() -> None:
    found = output("--data.source absent.txt")
    (note,) = found["notes"]
    assert "absent" in note or "does not exist" in note
    assert "257" in note
    assert (found["steps"], found["tokens"], found["epochs"]) == (100, 100 * TOKENS, None)
    absent = "--data.source absent.txt --train.steps none --train.epochs 2"
    epochs = output(absent)
    assert [epochs[name] for name in ("steps", "tokens", "epochs", "seconds_estimate")] == [None] * 4
    out = lilliput("train", "mytext.txt", *FLAGS, *absent.split(), "--dry-run").out
    assert out.count("depends on the length of the text\n") == 2


def test_real_steps_are_timed_and_nothing_is_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LILLIPUT_TIME_STEPS")
    threads = torch.get_num_threads()
    small = "--model.dim 16 --model.heads 2 --model.hidden 32 --model.context 32 --train.batch 4 --train.threads 1"
    found = output(small)
    assert 0.0 < found["evaluation_seconds"] < found["seconds_estimate"] < 600.0
    assert found["memory_bytes"] > 1e8 > found["tensor_bytes"], "Python and torch are counted"
    assert sorted(path.name for path in here.iterdir()) == ["mytext.txt"]
    assert torch.get_num_threads() == threads


def test_a_warm_up_longer_than_the_run_prints_a_note() -> None:
    (note,) = output("--schedule.warmup 101")["notes"]
    assert "schedule.warmup" in note and "101" in note and "100" in note


def test_recomputed_flops_are_printed() -> None:
    out = lilliput("train", "mytext.txt", *FLAGS, "--train.recompute", "block", "--dry-run").out
    assert " to recompute; 2,048 tokens per step, padding included\n" in out
    assert "to recompute;" not in lilliput("train", "mytext.txt", *FLAGS, "--dry-run").out


def test_dry_run_and_find_lr_cannot_be_combined() -> None:
    result = lilliput("train", "mytext.txt", *FLAGS, "--dry-run", "--find-lr")
    assert (result.code, result.out) == (2, "")
    assert [error.code for error in result.errors] == ["flag.conflict"]


def test_frozen_vectors_have_no_moments(here: Path) -> None:
    (here / "words.vec").write_text("2 3\nbee 1 2 3\nthe 4 5 6\n")
    words = "--tokenizer.kind word --tokenizer.max_vocabulary 700 --vectors.source words.vec"
    frozen, tuned = output(words), output(f"{words} --vectors.frozen false")
    size = frozen["config"]["model"]["vocab_size"]
    assert tuned["tensor_bytes"] - frozen["tensor_bytes"] == 4 * 3 * size * 3


def test_the_memory_of_dropout_is_noted_but_not_counted() -> None:
    for dropout, noted in (("0", False), ("0.1", True)):
        code, out, _ = lilliput("train", "mytext.txt", *FLAGS, "--model.dropout", dropout, "--dry-run")
        assert code == 0 and ("masks of dropout\n" in out) == noted
