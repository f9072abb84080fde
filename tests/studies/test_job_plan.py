"""Which processes a study needs: shared runs, their order, their command lines, and FLOPs as tokens."""

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


def test_cells_that_are_only_measured_in_other_ways_share_a_run(tmp_path: Path) -> None:
    work = plan(load_study(write_study(tmp_path, BOTH, seeds=[3, 5])))
    runs = [job.run for job in work if isinstance(job, Training)]
    assert runs == ["full-seed3", "4-tokens-seed3", "4-tokens-seed5", "full-seed5"], "there, and back again"
    measured = [(job.run, job.seed, *job.cell.values()) for job in work if isinstance(job, Measurement)]
    assert measured == [
        (f"{run}-seed{seed}", seed, label, strategy)
        for seed, way in ((3, 1), (5, -1))
        for run, label in (("full", "full"), ("4-tokens", "4 tokens"))[::way]
        for strategy in [*BOTH["strategy"]][::way]
    ]
    for number, job in enumerate(work):
        if isinstance(job, Measurement):
            assert job.run in [one.run for one in work[:number] if isinstance(one, Training)]


def test_a_measurement_is_told_only_what_concerns_it(tmp_path: Path) -> None:
    own = {"generate.tokens": 12, "generate.engine": "torch"}
    found = [job.settings for job in plan(load_study(write_study(tmp_path, BOTH))) if isinstance(job, Measurement)]
    special = [{"generate.temperature": 0.0}, {"generate.beams": 3}, {"generate.tokens": 9, "measure.prompts": 9}]
    assert found == [own | one for one in special] * 2


def test_equal_settings_are_one_run_however_they_are_said(tmp_path: Path) -> None:
    axes = {"window": {"full": {}, "none": {"model.window": "none"}, "4": {"model.window": 4}}}
    assert [job.run for job in trainings(write_study(tmp_path, axes))] == ["full-seed1", "4-seed1"]
    budgets = {"budget": {"a": {"budget.flops": 1e9}, "b": {"budget.flops": 2e9}}}
    assert [job.run for job in trainings(write_study(tmp_path, budgets))] == ["a-seed1", "b-seed1"]


def test_a_machine_that_grows_slower_favours_no_cell(tmp_path: Path) -> None:
    axes = {"window": {str(window): {"model.window": window} for window in (2, 3, 4, 5)}}
    work = [job for job in plan(load_study(write_study(tmp_path, axes, seeds=[7, 8, 9, 10]))) if job.kind == "training"]
    turns = {label: [at for at, job in enumerate(work) if job.name.startswith(f"{label}-")] for label in axes["window"]}
    assert {sum(turn) for turn in turns.values()} == {30}, "each comes as late as any other, on average"


def test_nothing_but_decoding_is_one_run_a_seed(tmp_path: Path) -> None:
    path = write_study(tmp_path, {"strategy": BOTH["strategy"]}, seeds=[1, 2])
    assert [job.run for job in trainings(path)] == ["seed1", "seed2"]


def test_names_of_runs_that_cannot_be(tmp_path: Path) -> None:
    same = {"window": {"a b": {"model.window": 4}, "A/b": {"model.window": 5}}}
    assert refused(lambda: trainings(write_study(tmp_path, same))).code == "run.name"
    long = {"window": {"x" * 100: {"model.window": 4}}}
    assert refused(lambda: trainings(write_study(tmp_path, long))).code == "run.name"


def test_command_lines_say_all_of_it(tmp_path: Path) -> None:
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


def test_what_no_flag_can_say_is_refused(tmp_path: Path) -> None:
    path = write_study(tmp_path, {}, settings={"generate.stop": ["one, two"]})
    error = refused(lambda: trainings(path))
    assert (error.code, error.setting) == ("study.cell", "generate.stop")


def test_the_command_of_a_measurement(tmp_path: Path) -> None:
    job = Measurement({"a": "b"}, 3, "b-seed3", {"generate.stop": ["é"]}, ("training", "overlap"))
    *_, run, flag, spec = measure_command(job, Path("runs/x"))
    assert (run, flag) == ("runs/x/b-seed3", "--spec")
    assert json.loads(spec) == {"measures": ["training", "overlap"], "settings": {"generate.stop": ["é"]}, "seed": 3}


def test_data_are_prepared_once_for_all_who_share_them(tmp_path: Path) -> None:
    axes = {"a": {"x": {}, "wide": {"model.dim": 32}, "words": {"tokenizer.kind": "word"}}}
    keys = [preparation_key(job) for job in trainings(write_study(tmp_path, axes))]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("flops", [1e9, 7.5e10])
def test_flops_are_tokens_times_those_of_a_token(tmp_path: Path, flops: float) -> None:
    axes = {"dim": {"narrow": {"model.dim": 16}, "wide": {"model.dim": 64}}}
    study = load_study(write_study(tmp_path, axes, budget={"flops": flops}))
    for job in plan(study):
        if isinstance(job, Training):
            each = count(replace(job.config, {"model.vocab_size": 257}).model, job.config.vectors).flops_per_token
            tokens = tokens_for(job.config, flops, 257, None)
            assert abs(tokens * each - flops) <= each / 2
            assert f"--train.tokens={tokens}" in train_command(study, job, Path("runs"), tokens)
            assert not any(word.startswith("--budget") for word in train_command(study, job, Path("runs"), tokens))
