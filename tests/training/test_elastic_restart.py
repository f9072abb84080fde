"""Restarts by torchrun: only the job that trained a run resumes it. Real processes: test_distributed.py."""

from __future__ import annotations

from pathlib import Path

from helpers.small_runs import small_config
from helpers.user_errors import refused
from lilliput.storage.run_folders import RunFolder
from lilliput.training.elastic_restart import torchrun_name
from lilliput.training.events import Stepped
from lilliput.training.process_group import World
from lilliput.training.session import open_session


def test_a_job_has_a_unique_name() -> None:
    """The same after a restart, and another for the next job with the same id."""
    assert torchrun_name({}) is None
    begun, again, other = (
        torchrun_name({"TORCHELASTIC_RUN_ID": "mine", "TORCHELASTIC_ERROR_FILE": f"/logs/{path}/error.json"})
        for path in ("mine_k3/attempt_0/0", "mine_k3/attempt_2/0", "mine_z9/attempt_0/0")
    )
    assert begun is not None
    assert begun == again != other
    assert torchrun_name({"TORCHELASTIC_RUN_ID": "mine", "TORCHELASTIC_ERROR_FILE": ""}) not in (None, begun, other)


class Machines(World):
    """The first process of several machines, each with its torchrun."""

    def __init__(self, *launches: str) -> None:
        super().__init__(launches[0] if launches else None)
        self.all = set(launches)

    def launches(self) -> set[str]:
        return self.all


def train_job(folder: Path, *launches: str, overwrite: bool = False, stop: int = 3) -> list[str]:
    """Train until step `stop` as a job of torchrun; return the notes on the run and its first and last step.

    The note on the small text is left out.
    """
    world, steps = Machines(*launches), list[int]()
    with open_session(small_config(folder), overwrite=overwrite, world=world) as session:
        for event in session.events([]):
            steps += [event.step] if isinstance(event, Stepped) else []
            if event.step == stop:
                session.trainer.stop()
    notes = [note for note in session.notes if "bytes of training text" not in note]
    return [*notes, f"steps {steps[0]} to {steps[-1]}"]


def test_only_the_job_that_created_a_run_resumes_it(tmp_path: Path) -> None:
    """If a run exists before the job, the error makes torchrun restart the processes; they must not resume that run."""
    assert train_job(tmp_path, "one") == ["steps 1 to 3"]
    for other in (["two"], []):
        assert refused(lambda other=other: train_job(tmp_path, *other)).code == "run.exists"  # type: ignore[misc]
    assert train_job(tmp_path, "one", stop=5) == ["steps 4 to 5"]


def test_a_job_overwrites_a_run_once(tmp_path: Path) -> None:
    """After a restart with the same --overwrite, it resumes its own run."""
    assert train_job(tmp_path, "one", stop=5) == ["steps 1 to 5"]
    assert train_job(tmp_path, "two", overwrite=True) == ["steps 1 to 3"]
    assert train_job(tmp_path, "two", overwrite=True, stop=5) == ["steps 4 to 5"]
    steps = [event["step"] for event in RunFolder(tmp_path / "runs" / "mine").metrics() if event["event"] == "step"]
    assert steps == [1, 2, 3, 4, 5]


def test_a_job_stays_the_same_when_machines_join_and_leave(tmp_path: Path) -> None:
    """Also after the first machine has left, and then all machines that started the job."""
    assert train_job(tmp_path, "a", "b", overwrite=True, stop=2) == ["steps 1 to 2"]
    assert train_job(tmp_path, "b", "c", overwrite=True, stop=4) == ["steps 3 to 4"]
    assert train_job(tmp_path, "d", "c", overwrite=True, stop=6) == ["steps 5 to 6"]
    assert refused(lambda: train_job(tmp_path, "a", "e")).code == "run.exists"


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    with open_session(small_config(tmp_path), world=World("job")) as session:
        next(session.events([]))
    note, steps = train_job(tmp_path, "job")
    assert "checkpoint" in note and steps == "steps 1 to 3"
