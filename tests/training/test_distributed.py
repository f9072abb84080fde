"""Several processes give the losses, weights and metrics of one, also after kills, signals and other numbers of processes.

The processes are real, on the CPU with gloo. Starting them takes seconds, so each launch runs many cases.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.labelled_corpora import labelled_changes
from helpers.small_runs import FLAGS, MEMORY, small_config, write_text
from lilliput.model.counting import count
from lilliput.settings.loading import config_from_dict
from lilliput.settings.tree import ModelSettings, VectorSettings
from lilliput.storage.run_folders import RunFolder
from lilliput.training.events import Evaluated, Stepped
from lilliput.training.session import open_session
from torture import outcome

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="torchrun and signals of a POSIX system")

TESTS = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{TESTS.parent / 'src'}:{TESTS}"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
PATIENCE = 240.0
STEPS = 20
COMMON = {"train__steps": str(STEPS), "train__save_every": "50", "evaluate__every": "7", "optimizer__lr": "0.01"}
# Cases that must be equal in two processes and in one. Batches of 5 rows are split unevenly.
CASES: dict[str, dict[str, str]] = {
    "replicate": {"train__accumulate": "3", "train__batch": "5", "model__tied": "true"},
    "shard": {"train__parallel": "shard", "train__accumulate": "3", "train__batch": "5", "model__tied": "true"},
    "replicate-muon": {"optimizer__kind": "muon", "optimizer__average": "0.9", "model__value_embeddings": "ends"},
    "shard-muon": {"train__parallel": "shard", "optimizer__kind": "muon", "optimizer__average": "0.9"},
    "shard-pairs": {"train__parallel": "shard", "train__pair_updates": "3", "model__initialisation": "zero-residual"},
    "shard-labels": {"train__parallel": "shard", "train__recompute": "block", "optimizer__kind": "sgd"},
    "replicate-labels": {"model__final_norm": "false", "model__positions": "none"},
    "both-labels": {"model__task": "both", "train__accumulate": "3", "train__batch": "5"},
}
# A run that is resumed with other numbers of processes (one, two, four, one), replicated and sharded, until these steps.
HANDS = {2: [("replicate", 6), ("shard", 9)], 4: [("replicate", 12), ("shard", 15)]}
PASSED_ON = COMMON | {"optimizer__kind": "muon", "optimizer__average": "0.8", "train__save_every": "1"}
# A run of four processes that is stopped and resumed, compared with one that is not.
CUT = COMMON | {"train__steps": "6", "evaluate__every": "3", "model__dropout": "0.1"}


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        write_text(Path(folder))
        yield Path(folder)


def changes_of(place: Path, case: str) -> dict[str, str]:
    return COMMON | (labelled_changes(place) if case.endswith("labels") else {}) | CASES[case]


def launch(place: Path, processes: int, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the cases in this number of processes; return the results of the first one."""
    words = [
        *TORCHRUN,
        "--nproc-per-node",
        str(processes),
        str(TESTS / "helpers" / "process_groups.py"),
        str(place),
        "answer.json",
    ]
    done = subprocess.run(
        [*words, json.dumps(cases)], env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    found: list[dict[str, Any]] = json.loads((place / "answer.json").read_text())
    return found


def handed_on(processes: int) -> list[dict[str, Any]]:
    return [
        {"name": "passed-on", "changes": PASSED_ON | {"train__parallel": kind}, "resume": True, "stop": stop}
        for kind, stop in HANDS[processes]
    ]


def alone(place: Path, name: str, resume: bool = False, stop: int | None = None, **changes: str) -> dict[str, Any]:
    losses, figures = {}, []
    with open_session(small_config(place, name, **changes), resume=resume) as session:
        for event in session.events([]):
            if isinstance(event, Stepped):
                losses[event.step] = event.loss
                if event.step == stop:
                    session.trainer.stop()
            if isinstance(event, Evaluated):
                figures.append([event.step, event.loss, event.tokens, event.accuracy or 0.0])
        sample = session.write_sample() if changes.get("model__task") != "classifier" else None
    return {"losses": losses, "figures": figures, "sample": sample}


@pytest.fixture(scope="module")
def of_two(place: Path) -> dict[str, Any]:
    """The results of two processes, by case, and those of the run that they resume."""
    alone(place, "passed-on", stop=3, **PASSED_ON)
    cases = [{"name": f"{case}-2", "changes": changes_of(place, case)} for case in CASES]
    *found, first, second = launch(place, 2, [*cases, *handed_on(2)])
    return dict(zip(CASES, found, strict=True)) | {"passed-on": [first, second]}


@pytest.fixture(scope="module")
def of_four(place: Path, of_two: dict[str, Any]) -> dict[str, Any]:
    straight, cut = {"name": "straight", "changes": CUT}, {"name": "cut", "changes": CUT}
    *_, first, second = launch(place, 4, [straight, cut | {"stop": 4}, cut | {"resume": True}, *handed_on(4)])
    return {"passed-on": [first, second]}


# ---- equality


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(place: Path, of_two: dict[str, Any], case: str) -> None:
    """Losses of 20 steps, metrics, a generated text, and the checkpoint."""
    expected, found = alone(place, f"{case}-1", **changes_of(place, case)), of_two[case]
    assert [int(step) for step in found["losses"]] == list(range(1, STEPS + 1))
    assert list(found["losses"].values()) == pytest.approx(list(expected["losses"].values()), rel=0, abs=1e-12)
    for figures, reference in zip(found["figures"], expected["figures"], strict=True):
        assert figures == pytest.approx(reference, rel=0, abs=1e-12)
    assert found["sample"] == expected["sample"]
    one, two = (RunFolder(place / "runs" / f"{case}-{n}").last for n in (1, 2))
    assert one and two
    assert_close_checkpoints(one, two)
    assert found["losses"]["1"] != found["losses"]["20"], "the loss did not change"


def assert_close_checkpoints(one: Any, two: Any) -> None:
    """Names, shapes and values do not depend on the number of processes."""
    for load in ("load_model", "load_state"):
        expected, found = getattr(one, load)(), getattr(two, load)()
        assert expected.keys() == found.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-11, msg=name)


def test_a_run_is_resumed_with_other_numbers_of_processes(
    place: Path, of_two: dict[str, Any], of_four: dict[str, Any]
) -> None:
    """One, two, four and one again, replicated and sharded: the losses equal those of one uninterrupted process."""
    expected = alone(place, "kept", **PASSED_ON)
    last = alone(place, "passed-on", True, **PASSED_ON)
    hands = [*of_two["passed-on"], *of_four["passed-on"], last]
    found = {int(step): loss for result in hands for step, loss in result["losses"].items()}
    assert list(found) == list(range(4, STEPS + 1))
    assert list(found.values()) == pytest.approx(list(expected["losses"].values())[3:], rel=0, abs=1e-12)
    assert last["figures"][-1] == pytest.approx(expected["figures"][-1], rel=0, abs=1e-12)
    notes = [note for result in hands[:-1] for note in result["notes"] if "processes" in note]
    assert [[int(n) for n in re.findall(r"\d+", note)] for note in notes] == [[1, 2], [2, 4]]


def test_four_resumed_processes_are_bit_identical(place: Path, of_four: dict[str, Any]) -> None:
    """Sums of four numbers depend on their order, which must be the same after a restart."""
    assert outcome(place / "runs" / "cut") == outcome(place / "runs" / "straight")


# ---- memory of a process


def test_each_process_holds_its_part(place: Path, of_two: dict[str, Any]) -> None:
    """As in docs/scale.md: sharded over P processes, each has 1/P of the rows of weights, gradients and moments, rounded up in
    the first; replicated, each has all."""
    for case, processes, moments in (("replicate", 1, 2), ("shard", 2, 2), ("shard-labels", 2, 1)):
        last, held = RunFolder(place / "runs" / f"{case}-2").last, of_two[case]["bytes"]
        assert last
        weights = [8 * -(-len(t) // processes) * math.prod(t.shape[1:]) for t in last.load_model().values()]
        assert (held["weights"], held["gradients"]) == (sum(weights), sum(weights)), case
        assert held["moments"] == moments * sum(weights), case
        counted = small_model_size(place, case)
        assert sum(weights) == pytest.approx(8 * counted / processes, rel=0.02), case


def small_model_size(place: Path, case: str) -> int:
    config = config_from_dict(RunFolder(place / "runs" / f"{case}-2").config(), case)
    return count(config.model, config.vectors).parameters.total


# ---- commands


LONG = [*FLAGS, "--train.steps", "120", "--train.save_every", "7", "--evaluate.every", "20", "--model.dropout", "0.1"]


def command(name: str, *flags: str) -> list[str]:
    return ["-m", "lilliput", "train", "mytext.txt", *LONG, "--name", name, *flags]


def torchrun(place: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*TORCHRUN, "--nproc-per-node", "2", *words],
        cwd=place,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers(agent: subprocess.Popen[str]) -> list[int]:
    """Return the process ids that torchrun has started, by rank."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(agent.pid)], capture_output=True, text=True)
    pids = [int(word) for word in found.stdout.split()]
    ranks = {}
    for pid in pids:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        ranks |= {int(word[5:]): pid for word in variables if word.startswith(b"RANK=")}
    return [ranks[rank] for rank in sorted(ranks)]


def wait_for_line(path: Path, line: int) -> None:
    until = time.monotonic() + PATIENCE
    while not path.exists() or path.read_bytes().count(b"\n") < line:
        assert time.monotonic() < until, "the processes did not train"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def undisturbed(place: Path) -> dict[str, Any]:
    agent = torchrun(place, *command("undisturbed"))
    out, err = agent.communicate(timeout=PATIENCE)
    assert agent.returncode == 0, err
    assert out.count("validation loss") == 1, "one summary"
    assert err.count("on cpu x 2") == 1, "one console"
    return outcome(place / "runs" / "undisturbed")


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks of processes in /proc")


@on_linux
def test_a_killed_process_is_replaced_without_a_trace(place: Path, undisturbed: dict[str, Any]) -> None:
    """After kill -9 of each rank, torchrun restarts both processes, which resume the run, even with --overwrite."""
    agent = torchrun(place, "--max-restarts", "3", *command("killed", "--overwrite"))
    log = place / "runs" / "killed" / "metrics.jsonl"
    for rank, line in ((1, 20), (0, 60)):
        wait_for_line(log, line)
        os.kill(workers(agent)[rank], signal.SIGKILL)
        time.sleep(0.5)
    _, err = agent.communicate(timeout=PATIENCE)
    assert agent.returncode == 0, err
    assert "Traceback" not in err
    assert outcome(place / "runs" / "killed") == undisturbed


@on_linux
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_process_saves_and_ends_all(place: Path, undisturbed: dict[str, Any], rank: int) -> None:
    name = f"stopped-{rank}"
    agent = torchrun(place, *command(name))
    wait_for_line(place / "runs" / name / "metrics.jsonl", 20)
    began = time.monotonic()
    os.kill(workers(agent)[rank], signal.SIGTERM)
    _, err = agent.communicate(timeout=PATIENCE)
    assert time.monotonic() - began < 60
    assert agent.returncode == 0, err
    last = RunFolder(place / "runs" / name).last
    assert last and last.step < 120
    assert f"step {last.step}" in err and "--resume" in err
    agent = torchrun(place, "-m", "lilliput", "train", f"runs/{name}", "--resume")
    _, err = agent.communicate(timeout=PATIENCE)
    assert agent.returncode == 0, err
    assert outcome(place / "runs" / name) == undisturbed


# ---- errors


def stderr_of_failure(place: Path, *words: str) -> str:
    """Run a command that fails in torchrun; return what it prints on stderr."""
    agent = torchrun(place, *words)
    _, err = agent.communicate(timeout=PATIENCE)
    assert agent.returncode != 0
    assert re.search(r"exitcode\s*: 2 ", err), err
    assert err.count("Traceback") <= 1, err  # torchrun's own, of a worker that failed
    return err


def test_an_error_is_printed_once(place: Path) -> None:
    for name, value in (("train.stepz", "7"), ("train.batch", "1"), ("generate.mix_ngram", "0.5")):
        printed = stderr_of_failure(place, "--max-restarts", "1", *command("mistaken", f"--{name}", value))
        reports = [line for line in printed.splitlines() if line.startswith("error: ")]
        assert len(reports) == 1 and name in reports[0]
    assert not (place / "runs" / "mistaken").exists()


def test_incomplete_environment_of_a_group_is_an_error(place: Path) -> None:
    words = [sys.executable, *command("groupless")]
    alone_with = functools.partial(subprocess.run, cwd=place, capture_output=True, text=True, timeout=PATIENCE)
    done = alone_with(words, env=ENVIRONMENT | {"WORLD_SIZE": "2"})
    assert done.returncode == 2
    first, *rest = done.stderr.splitlines()
    assert all(name in first for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT")) and len(rest) == 2
    done = alone_with(words, env=ENVIRONMENT | {"WORLD_SIZE": "two"})
    assert done.returncode == 2 and "WORLD_SIZE" in done.stderr and "'two'" in done.stderr
    assert not (place / "runs" / "groupless").exists()
    shutil.rmtree(place / "runs" / "groupless", ignore_errors=True)


# ---- docs/scale.md


def rows_of(text: str, heading: str) -> dict[str, list[float]]:
    """Return the numbers of each model from the table whose first cell starts with `heading`."""
    table = text[text.index(f"| {heading}") :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip().replace(",", "") for cell in row.strip("| ").split("|")] for row in table]
    return {name: [float(number) for number in numbers] for name, *numbers in cells}


def test_the_tables_of_docs_scale_are_correct() -> None:
    text = (TESTS.parent / "docs" / "scale.md").read_text("utf-8")
    models = rows_of(text, "model |")
    assert list(models) == ["100M", "1B", "10B"]
    for name, (dim, layers, *sizes) in models.items():
        width, depth = int(dim), int(layers)
        heads = width // (64 if width < 2000 else 128)
        shape = {"dim": width, "layers": depth, "heads": heads, "kv_heads": heads, "hidden": 4 * width, "context": 1024}
        counted = count(ModelSettings(vocab_size=32768, **shape), VectorSettings())
        parts, kept = counted.parameters, counted.activation_bytes_per_token
        size, block, ends = parts.total, parts.blocks // depth, parts.embedding + parts.norm + parts.head
        assert sizes == [size, block, ends, kept]
        states = [16 * size / processes + 4 * (3 * block + 2 * ends) for processes in (8, 64)]
        tokens = 8 * 1024
        activations = [tokens * kept, tokens * (4 * width * depth + kept / depth)]
        sent = [n * (p - 1) / p for n in (8 * size, 12 * size - 4 * ends) for p in (8, 64)]
        for heading, numbers in (("states", [16 * size, *states]), ("activations", activations), ("sent", sent)):
            found = rows_of(text, f"{heading}, GB")[name]
            assert found == pytest.approx([number / 1e9 for number in numbers], rel=0.01), (heading, name)
