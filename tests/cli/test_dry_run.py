"""Tests of `lilliput train RECIPE --dry-run`: estimates of memory and time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
    assert output(flags)["memory_bytes"] - plain["memory_bytes"] == 4 * numbers * trainable


def test_muon_stores_one_moment_per_matrix_weight() -> None:
    matrices = 2 * (4 * 64 * 64 + 2 * 64 * 256)
    assert output()["memory_bytes"] - output("--optimizer.kind muon")["memory_bytes"] == 4 * matrices


@pytest.mark.parametrize(("kind", "every"), [("block", 1), ("block", 2), ("feed-forward", 1)])
def test_memory_and_time_follow_recomputation(kind: Any, every: int) -> None:
    flags = f"--model.layers 6 --train.recompute {kind} --train.recompute_every {every}"
    plain, again = output("--model.layers 6"), output(flags)
    model = load_config("mytext.txt", {"model.layers": "6"}, "nano").model
    less = 6 * activations(model).whole[0] - activations(model, kind, every).most
    assert less > 0
    assert plain["memory_bytes"] - again["memory_bytes"] == 4 * TOKENS * less
    ratio = 1 + again["recomputed_flops_per_token"] / plain["flops_per_token"]
    assert 1.05 < ratio < 1.34
    assert again["seconds_estimate"] / plain["seconds_estimate"] == pytest.approx(ratio, rel=1e-12)
    assert again["flops_per_token"] == plain["flops_per_token"]


def test_recomputed_blocks_store_their_inputs_and_one_full_block() -> None:
    """6 layers of width 64: one is stored in full, of five the input."""
    spared = (
        output("--model.layers 6")["memory_bytes"] - output("--model.layers 6 --train.recompute block")["memory_bytes"]
    )
    whole = activations(load_config("mytext.txt", {}, "nano").model).whole[0]
    assert spared == 4 * TOKENS * 5 * (whole - 64)


def test_float64_doubles_the_memory() -> None:
    flags = "--optimizer.kind muon --optimizer.average 0.9 --train.recompute block"
    assert output(flags + " --train.precision float64")["memory_bytes"] == 2 * output(flags)["memory_bytes"]


def test_the_chosen_precision_is_printed() -> None:
    assert output()["notes"] == []
    (note,) = output("--train.precision auto")["notes"]
    assert note.startswith(("using bfloat16: ", "using float32: "))
    code, out, err = lilliput("train", "mytext.txt", *FLAGS, "--train.precision", "auto", "--dry-run")
    assert (code, err) == (0, "")
    assert out.endswith(f"\nnote        {note}\n")


def test_a_warm_up_longer_than_the_run_prints_a_note() -> None:
    (note,) = output("--schedule.warmup 101")["notes"]
    assert "schedule.warmup" in note and "101" in note and "100" in note


def test_recomputed_flops_are_printed() -> None:
    out = lilliput("train", "mytext.txt", *FLAGS, "--train.recompute", "block", "--dry-run").out
    assert " to recompute; 2,048 tokens per step\n" in out
    assert "to recompute;" not in lilliput("train", "mytext.txt", *FLAGS, "--dry-run").out


def test_dry_run_and_find_lr_cannot_be_combined() -> None:
    result = lilliput("train", "mytext.txt", *FLAGS, "--dry-run", "--find-lr")
    assert (result.code, result.out) == (2, "")
    assert [error.code for error in result.errors] == ["flag.conflict"]


def test_frozen_vectors_have_no_moments(here: Path) -> None:
    (here / "words.vec").write_text("2 3\nbee 1 2 3\nthe 4 5 6\n")
    words = "--tokenizer.kind word --tokenizer.max_vocabulary 700 --vectors.source words.vec"
    frozen, tuned = output(words), output(f"{words} --vectors.frozen false")
    assert tuned["memory_bytes"] - frozen["memory_bytes"] == 4 * 3 * 700 * 3


def test_the_memory_of_dropout_is_noted_but_not_counted() -> None:
    for dropout, noted in (("0", False), ("0.1", True)):
        code, out, _ = lilliput("train", "mytext.txt", *FLAGS, "--model.dropout", dropout, "--dry-run")
        assert code == 0 and ("masks of dropout\n" in out) == noted
