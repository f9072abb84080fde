"""`lilliput train RECIPE --dry-run`: every technique that costs or spares memory or time is in the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.small_runs import lilliput, write_text
from helpers.tiny_models import draw_ids, tiny_model
from lilliput.model.counting import activations
from lilliput.settings.loading import load_config
from lilliput.settings.tree import Config, OptimizerSettings
from lilliput.training.choices import OPTIMIZERS
from lilliput.training.optimizers import build_optimizer

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


def told(flags: str = "") -> Any:
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
    """In numbers for each trainable weight beside those of AdamW."""
    plain = told()
    trainable = plain["parameters"]["trainable"]
    assert told(flags)["memory_bytes"] - plain["memory_bytes"] == 4 * numbers * trainable


def test_muon_keeps_one_number_for_each_of_the_matrices_of_the_blocks() -> None:
    matrices = 2 * (4 * 64 * 64 + 2 * 64 * 256)
    assert told()["memory_bytes"] - told("--optimizer.kind muon")["memory_bytes"] == 4 * matrices


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "muon"])
def test_moments_are_those_that_the_optimizer_has(kind: Any, momentum: float) -> None:
    model = tiny_model(feed_forward="swiglu", kv_heads=2, biases="all")
    settings = OptimizerSettings(kind=kind, momentum=momentum)
    optimizer = build_optimizer(settings, model)
    model(draw_ids(2, 5)).sum().backward()
    optimizer.step()
    states = [one.state for one in getattr(optimizer, "optimizers", [optimizer])]
    kept = [tensor for state in states for of_one in state.values() for tensor in of_one.values() if tensor is not None]
    config = Config(model=model.settings, optimizer=settings)
    assert OPTIMIZERS[kind].moments(config, model.count().parameters) == sum(t.numel() for t in kept if t.dim())


@pytest.mark.parametrize(("kind", "every"), [("block", 1), ("block", 2), ("feed-forward", 1)])
def test_memory_and_time_follow_recomputation(kind: Any, every: int) -> None:
    flags = f"--model.layers 6 --train.recompute {kind} --train.recompute_every {every}"
    plain, again = told("--model.layers 6"), told(flags)
    model = load_config("mytext.txt", {"model.layers": "6"}, "nano").model
    less = 6 * activations(model).whole[0] - activations(model, kind, every).most
    assert less > 0
    assert plain["memory_bytes"] - again["memory_bytes"] == 4 * TOKENS * less
    ratio = 1 + again["recomputed_flops_per_token"] / plain["flops_per_token"]
    assert 1.05 < ratio < 1.34
    assert again["seconds_estimate"] / plain["seconds_estimate"] == pytest.approx(ratio, rel=1e-12)
    assert again["flops_per_token"] == plain["flops_per_token"]


def test_blocks_are_kept_as_their_inputs_and_one_of_them_whole() -> None:
    """6 layers of 64 numbers: one is whole, five are inputs."""
    spared = told("--model.layers 6")["memory_bytes"] - told("--model.layers 6 --train.recompute block")["memory_bytes"]
    whole = activations(load_config("mytext.txt", {}, "nano").model).whole[0]
    assert spared == 4 * TOKENS * 5 * (whole - 64)


def test_float64_is_twice_of_everything() -> None:
    flags = "--optimizer.kind muon --optimizer.average 0.9 --train.recompute block"
    assert told(flags + " --train.precision float64")["memory_bytes"] == 2 * told(flags)["memory_bytes"]


def test_which_precision_is_taken_is_told() -> None:
    assert told()["notes"] == []
    (note,) = told("--train.precision auto")["notes"]
    assert note.endswith(("using bfloat16", "using float32"))
    code, out, err = lilliput("train", "mytext.txt", *FLAGS, "--train.precision", "auto", "--dry-run")
    assert (code, err) == (0, "")
    assert out.endswith(f"\nnote        {note}\n")


def test_a_warm_up_that_is_too_long_is_told() -> None:
    (note,) = told("--schedule.warmup 101")["notes"]
    assert note == "schedule.warmup is 101 steps and train.steps 100: the learning rate never reaches its peak"


def test_recomputation_is_told_to_people() -> None:
    said = lilliput("train", "mytext.txt", *FLAGS, "--train.recompute", "block", "--dry-run").out
    assert " to recompute; 2,048 tokens a step\n" in said
    assert "to recompute;" not in lilliput("train", "mytext.txt", *FLAGS, "--dry-run").out


def test_it_does_not_try_learning_rates() -> None:
    code, out, err = lilliput("train", "mytext.txt", *FLAGS, "--dry-run", "--find-lr")
    assert (code, out) == (2, "")
    assert err.startswith("lilliput: --dry-run trains nothing, and --find-lr tries learning rates by training\n")


def test_a_frozen_table_has_no_moments(here: Path) -> None:
    (here / "words.vec").write_text("2 3\nbee 1 2 3\nthe 4 5 6\n")
    words = "--tokenizer.kind word --tokenizer.max_vocabulary 700 --vectors.source words.vec"
    frozen, tuned = told(words), told(f"{words} --vectors.frozen false")
    assert tuned["memory_bytes"] - frozen["memory_bytes"] == 4 * 3 * 700 * 3


def test_what_dropout_adds_is_not_counted_and_told_so() -> None:
    for dropout, said in (("0", False), ("0.1", True)):
        code, out, _ = lilliput("train", "mytext.txt", *FLAGS, "--model.dropout", dropout, "--dry-run")
        assert code == 0 and (", and more for dropout\n" in out) == said
