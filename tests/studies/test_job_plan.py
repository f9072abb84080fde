"""Jobs of a study: shared runs, order, command lines, and FLOPs as tokens."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from helpers.small_studies import write_study
from helpers.user_errors import refused
from lilliput.cli import COMMANDS
from lilliput.cli import train as cli_train
from lilliput.cli.parsing import parse
from lilliput.model.counting import count
from lilliput.settings.loading import load_config, replace
from lilliput.studies.grid import load_study
from lilliput.studies.job_plan import (
    LILLIPUT,
    Measurement,
    Training,
    measure_command,
    plan,
    preparation_key,
    prepare_command,
    resume_command,
    tokens_for,
    train_command,
)

BOTH = {
    "window": {"full": {}, "4 tokens": {"model.window": 4}},
    "strategy": {
        "greedy": {"generate.temperature": 0.0},
        "beam": {"generate.beams": 3},
        "more": {"generate.tokens": 9, "measure.prompts": 9},
    },
}


def trainings(path: Path) -> list[Training]:
    return [job for job in plan(load_study(path)) if isinstance(job, Training)]


def test_cells_that_differ_only_in_measurement_share_a_run(tmp_path: Path) -> None:
    work = plan(load_study(write_study(tmp_path, BOTH, seeds=[3, 5])))
    runs = [job.run for job in work if isinstance(job, Training)]
    assert runs == ["full-seed3", "4-tokens-seed3", "4-tokens-seed5", "full-seed5"], "reversed for the second seed"
    measured = [(job.run, job.seed, *job.cell.values()) for job in work if isinstance(job, Measurement)]
    assert measured == [
        (f"{run}-seed{seed}", seed, label, strategy)
        for seed, direction in ((3, 1), (5, -1))
        for run, label in (("full", "full"), ("4-tokens", "4 tokens"))[::direction]
        for strategy in [*BOTH["strategy"]][::direction]
    ]
    for number, job in enumerate(work):
        if isinstance(job, Measurement):
            assert job.run in [one.run for one in work[:number] if isinstance(one, Training)]


def test_measurement_gets_only_generate_and_measure_settings(tmp_path: Path) -> None:
    own = {"generate.tokens": 12, "generate.engine": "torch"}
    found = [job.settings for job in plan(load_study(write_study(tmp_path, BOTH))) if isinstance(job, Measurement)]
    special = [{"generate.temperature": 0.0}, {"generate.beams": 3}, {"generate.tokens": 9, "measure.prompts": 9}]
    assert found == [own | one for one in special] * 2


def test_equal_settings_in_different_forms_share_a_run(tmp_path: Path) -> None:
    axes = {"window": {"full": {}, "none": {"model.window": "none"}, "4": {"model.window": 4}}}
    assert [job.run for job in trainings(write_study(tmp_path, axes))] == ["full-seed1", "4-seed1"]
    budgets = {"budget": {"a": {"budget.flops": 1e9}, "b": {"budget.flops": 2e9}}}
    assert [job.run for job in trainings(write_study(tmp_path, budgets))] == ["a-seed1", "b-seed1"]


def test_order_favours_no_cell_on_a_machine_that_becomes_slower(tmp_path: Path) -> None:
    axes = {"window": {str(window): {"model.window": window} for window in (2, 3, 4, 5)}}
    work = [job for job in plan(load_study(write_study(tmp_path, axes, seeds=[7, 8, 9, 10]))) if job.kind == "training"]
    turns = {label: [at for at, job in enumerate(work) if job.name.startswith(f"{label}-")] for label in axes["window"]}
    assert {sum(turn) for turn in turns.values()} == {30}, "the same mean position for every cell"


def test_decoding_study_has_one_run_per_seed(tmp_path: Path) -> None:
    path = write_study(tmp_path, {"strategy": BOTH["strategy"]}, seeds=[1, 2])
    assert [job.run for job in trainings(path)] == ["seed1", "seed2"]


def test_invalid_run_names(tmp_path: Path) -> None:
    same = {"window": {"a b": {"model.window": 4}, "A/b": {"model.window": 5}}}
    assert refused(lambda: trainings(write_study(tmp_path, same))).code == "run.name"
    long = {"window": {"x" * 100: {"model.window": 4}}}
    assert refused(lambda: trainings(write_study(tmp_path, long))).code == "run.name"


def test_train_command_sets_all_settings(tmp_path: Path) -> None:
    axes = {
        "all": {
            "kinds": {
                "model.window": [4, "none"],
                "optimizer.betas": [0.9, 0.95],
                "optimizer.clip": "none",
                "model.tied": True,
                "data.tests": [f"again={tmp_path / 'mytext.txt'}"],
                "optimizer.lr": 3e-4,
                "generate.stop": ["The end"],
            }
        }
    }
    study = load_study(write_study(tmp_path, axes))
    (job,) = (job for job in plan(study) if isinstance(job, Training))
    words = train_command(study, job, Path("runs/small"))
    assert tuple(words[:3]) == LILLIPUT
    arguments = parse("train", COMMANDS["train"], cli_train, words[4:])
    there = load_config(arguments.target, arguments.settings)
    changed = {"seed": 1, "name": "kinds-seed1", "log.folder": "runs/small", "log.sample_seconds": None}
    assert there == replace(job.config, changed)
    assert shlex.join(resume_command(job, Path("runs/small"))[3:]) == "train runs/small/kinds-seed1 --resume --json"
    assert prepare_command(study, job)[3:5] == ["prepare", str(tmp_path / "mytext.txt")]


def test_setting_that_no_flag_can_express(tmp_path: Path) -> None:
    path = write_study(tmp_path, {}, settings={"generate.stop": ["one, two"]})
    error = refused(lambda: trainings(path))
    assert (error.code, error.setting) == ("study.cell", "generate.stop")


def test_measure_command(tmp_path: Path) -> None:
    job = Measurement({"a": "b"}, 3, "b-seed3", {"generate.stop": ["é"]}, ("training", "overlap"))
    *_, run, flag, spec = measure_command(job, Path("runs/x"))
    assert (run, flag) == ("runs/x/b-seed3", "--spec")
    assert json.loads(spec) == {"measures": ["training", "overlap"], "settings": {"generate.stop": ["é"]}, "seed": 3}


def test_runs_on_the_same_data_share_preparation(tmp_path: Path) -> None:
    axes = {"a": {"x": {}, "wide": {"model.dim": 32}, "words": {"tokenizer.kind": "word"}}}
    keys = [preparation_key(job) for job in trainings(write_study(tmp_path, axes))]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("flops", [1e9, 7.5e10])
def test_budget_in_flops_becomes_tokens(tmp_path: Path, flops: float) -> None:
    axes = {"dim": {"narrow": {"model.dim": 16}, "wide": {"model.dim": 64}}}
    study = load_study(write_study(tmp_path, axes, budget={"flops": flops}))
    for job in plan(study):
        if isinstance(job, Training):
            each = count(replace(job.config, {"model.vocab_size": 257}).model, job.config.vectors).flops_per_token
            tokens = tokens_for(job.config, flops, 257, None)
            assert abs(tokens * each - flops) <= each / 2
            assert f"--train.tokens={tokens}" in train_command(study, job, Path("runs"), tokens)
            assert not any(word.startswith("--budget") for word in train_command(study, job, Path("runs"), tokens))
