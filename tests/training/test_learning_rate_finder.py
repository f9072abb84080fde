"""The learning-rate finder: its suggestion is good, follows from the curve, and the command changes no run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from helpers.labelled_corpora import labelled_changes
from helpers.small_runs import FLAGS, copy_of_trained, lilliput, small_config, train_small, write_text
from helpers.user_errors import refused
from lilliput.cli.find_lr import print_rates
from lilliput.settings.tree import Config, OptimizerSettings
from lilliput.training import learning_rate_finder as finder
from lilliput.training.events import Stepped
from lilliput.training.learning_rate_finder import (
    FACTORS,
    UPDATES,
    Trial,
    find_learning_rate,
    plot_trial,
    scaled_rates,
    smooth,
)
from lilliput.training.muon import Muon
from lilliput.training.process_group import World

PNG = b"\x89PNG\r\n\x1a\n"


def curve(*losses: float, diverged: bool = False) -> Trial:
    return Trial([10.0**n for n in range(len(losses))], losses[0], list(losses), diverged)


def logistic(fastest: int, updates: int = 60) -> list[float]:
    """Return losses that fall from 8 to 2, fastest at step `fastest`."""
    return [2.0 + 6.0 / (1.0 + math.exp((n - fastest) / 4.0)) for n in range(updates)]


# ---- a real trial


def test_the_suggestion_trains_far_better_than_a_hundredth_of_it(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    trial = find_learning_rate(config)
    suggestion = scaled_rates(config, trial.factors[trial.steepest])["optimizer.lr"]
    assert 1e-3 < suggestion < 1e-1  # AdamW and a model of dim 16
    assert len(trial.factors) == len(trial.losses) == UPDATES
    assert trial.factors[0] == FACTORS[0] and trial.factors[-1] == pytest.approx(FACTORS[1])

    def train_at(lr: float) -> float:
        changes = {"optimizer__lr": str(lr), "train__steps": "40", "evaluate__every": "100", "train__save_every": "100"}
        _, events = train_small(small_config(tmp_path, name=f"at-{lr}", **changes))
        losses = [event.loss for event in events if isinstance(event, Stepped)]
        return sum(losses[-10:]) / 10

    good, hundredth = train_at(suggestion), train_at(suggestion / 100)
    assert good < hundredth - 1.0
    assert good < trial.start - 2.0


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer__kind": "sgd", "optimizer__lr": "0.1", "train__accumulate": "2"},
        {"optimizer__kind": "adam"},
        {"optimizer__kind": "muon", "optimizer__embedding_lr": "0.02", "schedule__kind": "inverse-sqrt"},
        {"optimizer__average": "0.9", "model__dropout": "0.1", "train__minutes": "3"},
        {"model__task": "classifier"},
    ],
    ids=lambda changes: next(iter(changes.values())),
)
def test_it_works_with_every_optimizer_and_task(
    changes: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "UPDATES", 30)
    if "model__task" in changes:
        changes = labelled_changes(tmp_path) | {"train__batch": "16", "optimizer__lr": "0.01"}
    config = small_config(tmp_path, **changes)
    trial = find_learning_rate(config)
    assert 0 < trial.steepest <= trial.lowest < len(trial.factors) <= 30
    assert trial.smoothed[trial.lowest] < trial.start
    assert 1e-3 < trial.factors[trial.steepest] < 1e2


def test_a_trial_is_reproducible_and_its_first_loss_is_that_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses the recipe's own weights, batches and dropout."""
    monkeypatch.setattr(finder, "UPDATES", 30)
    config = small_config(tmp_path, model__dropout="0.2", train__steps="2")
    one, other = find_learning_rate(config), find_learning_rate(config)
    assert one == other
    _, events = train_small(config)
    assert one.start == next(event.loss for event in events if isinstance(event, Stepped))


def test_each_step_scales_all_groups_by_its_factor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from the optimizers, also with a warm-up in the recipe."""
    monkeypatch.setattr(finder, "UPDATES", 25)
    seen: dict[float, list[float]] = {0.004: [], 0.03: []}

    def look(optimizer: torch.optim.Optimizer, *_: object) -> None:
        peak = 0.03 if isinstance(optimizer, Muon) else 0.004
        (rate,) = {group["lr"] for group in optimizer.param_groups}
        seen[peak].append(rate / peak)

    rates = {"optimizer__lr": "0.004", "optimizer__matrix_lr": "0.03", "schedule__warmup": "9"}
    hook = register_optimizer_step_pre_hook(look)
    try:
        trial = find_learning_rate(small_config(tmp_path, optimizer__kind="muon", **rates))
    finally:
        hook.remove()
    for factors in seen.values():
        assert factors[: len(trial.factors)] == pytest.approx(trial.factors, rel=1e-12)


# ---- the suggestion


def test_steepest_fall_and_minimum() -> None:
    trial = curve(*logistic(30), *[2.0 + n for n in range(5)])
    assert abs(trial.steepest - 30) <= 1
    assert 50 <= trial.lowest <= 60
    trial.check()


def test_a_fall_after_the_minimum_is_ignored() -> None:
    """After a rate that was too high, the loss can fall again from a high value."""
    trial = curve(*logistic(30), *[30.0] * 6, *[3.0] * 6)
    assert abs(trial.steepest - 30) <= 1


def test_noise_moves_the_suggestion_by_a_few_steps_only() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        noise = (0.15 * torch.randn(60, generator=generator)).tolist()
        trial = curve(*(loss + off for loss, off in zip(logistic(30), noise, strict=True)))
        assert abs(trial.steepest - 30) <= 6


def test_smoothing_keeps_a_line_and_does_not_lag() -> None:
    line = [0.5 * n for n in range(40)]
    assert smooth(line)[15:25] == pytest.approx(line[15:25])
    assert smooth([3.0] * 7) == pytest.approx([3.0] * 7)


@pytest.mark.parametrize(
    ("losses", "diverged", "direction"),
    [
        ([3.0, 3.1] * 20, False, "higher"),
        ([3.0 + 0.1 * n for n in range(40)], False, "lower"),
        ([3.0, 3.1, 3.05, 90.0], True, "lower"),
    ],
)
def test_noise_and_rising_losses_are_errors(losses: list[float], diverged: bool, direction: str) -> None:
    error = refused(lambda: curve(*losses, diverged=diverged).check())
    assert (error.code, error.setting) == ("learning-rate.not-found", "optimizer.lr")
    assert error.fix and direction in error.fix


@pytest.mark.parametrize(("lr", "direction"), [("1e-12", "higher"), ("1e9", "lower"), ("1e300", "lower")])
def test_the_error_names_the_direction_of_better_rates(lr: str, direction: str, tmp_path: Path) -> None:
    changes = {"optimizer__kind": "sgd", "optimizer__lr": lr, "optimizer__clip": "none", "model__final_norm": "false"}
    error = refused(lambda: find_learning_rate(small_config(tmp_path, **changes)))
    assert error.setting == "optimizer.lr" and error.fix and direction in error.fix


def test_a_trial_ends_when_the_loss_is_far_above_its_best() -> None:
    falling = logistic(10, 30)
    assert not finder.is_far_above(falling)
    assert not finder.is_far_above([*falling, 5.0])  # one bad batch
    assert finder.is_far_above([*falling, *[9.0] * 8])


def test_a_diverged_trial_still_gives_a_suggestion(tmp_path: Path) -> None:
    config = small_config(tmp_path, optimizer__kind="sgd", optimizer__lr="30", optimizer__clip="none")
    trial = find_learning_rate(config)
    assert trial.diverged
    assert len(trial.factors) == len(trial.losses) < UPDATES
    assert all(map(math.isfinite, trial.losses))
    assert trial.factors[trial.steepest] < 0.5


def test_only_the_rates_in_use_are_scaled() -> None:
    config = Config(optimizer=OptimizerSettings(kind="muon", lr=0.01, matrix_lr=0.02, head_lr=0.004))
    scaled = {"optimizer.lr": 0.0034, "optimizer.matrix_lr": 0.0067, "optimizer.head_lr": 0.0013}
    assert scaled_rates(config, 1 / 3 + 0.003) == scaled
    assert scaled_rates(Config(), 0.5) == {"optimizer.lr": 1e-3}


# ---- the command


def test_the_command_changes_no_run_and_writes_a_plot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(finder, "UPDATES", 30)
    folder = copy_of_trained(tmp_path)
    monkeypatch.chdir(folder)

    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

    command = ["train", "mytext.txt", *FLAGS, "--name", "mine", "--data.cache", "prepared", "--find-lr"]
    found = lilliput(*command, "--json")
    assert found.code == 0, found.err
    answer = json.loads(found.out)
    assert answer.keys() == {"learning_rates", "losses", "smoothed", "suggestion", "settings", "diverged", "plot"}
    assert len(answer["learning_rates"]) == len(answer["losses"]) == len(answer["smoothed"])
    assert answer["settings"] == {"optimizer.lr": answer["suggestion"]}
    picture = Path(answer["plot"])
    assert picture == Path("runs") / "mine-lr.png"
    assert picture.read_bytes().startswith(PNG)
    picture.unlink()

    before = files()
    plain = lilliput(*command)
    assert plain.code == 0, plain.err

    assert f"--optimizer.lr {answer['suggestion']:g}" in plain.out
    assert str(picture) in plain.out
    picture.unlink()
    assert files() == before
    own = ["--train.batch", "4", "--train.precision", "float64", "--train.threads", "1", "--data.cache", "prepared"]
    tuned = lilliput("train", "mytext.txt", "--from", "mine", *own, "--name", "next", "--find-lr")
    assert tuned.code == 0, tuned.err
    assert "--from mine" in tuned.out


@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
def test_flags_about_existing_runs_are_errors(flag: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(copy_of_trained(tmp_path))
    target = "runs/mine" if flag == "--resume" else "mytext.txt"
    found = lilliput("train", target, "--find-lr", flag)
    assert found.code == 2
    assert [error.code for error in found.errors] == ["flag.conflict"]


def test_several_processes_are_an_error() -> None:
    world = World()
    world.processes = 2
    assert refused(lambda: print_rates(None, None, world)).code == "flag.conflict"  # type: ignore[arg-type]


@pytest.mark.parametrize("as_json", [True, False])
def test_the_results_are_printed_even_if_the_plot_cannot_be_written(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(finder, "UPDATES", 30)
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    write_text(tmp_path, "runs", "a file where the folder should be")
    flags = [*FLAGS, "--train.precision", "auto", "--find-lr"]
    code, out, err = lilliput("train", "mytext.txt", *flags, *(["--json"] if as_json else []))
    assert code == 2
    assert "mytext-lr.png" in err
    if as_json:
        answer = json.loads(out)
        assert answer["plot"] is None and answer["suggestion"] > 0.0
    else:
        assert "optimizer.lr" in out and "-lr.png" not in out
    assert "note: " in err and "float32" in err


def test_a_plot_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    write_text(tmp_path, "runs", "a file where the folder should be")
    assert "mine-lr.png" in str(refused(lambda: plot_trial(curve(*logistic(30)), config)))
