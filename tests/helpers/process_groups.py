"""The program of the processes of tests/training/test_distributed.py.

    torchrun --nproc-per-node 2 tests/helpers/process_groups.py FOLDER ANSWER CASES

Small runs are trained one after the other in one group, because starting processes takes longer. CASES is a JSON list; the first
process writes the results to FOLDER/ANSWER. Values that must be equal in all processes are compared here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from helpers.small_runs import small_config
from lilliput.training.events import Evaluated, Stepped
from lilliput.training.loop import Trainer
from lilliput.training.process_group import World, exit_process, open_world
from lilliput.training.session import open_session


def train_case(world: World, folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Train a small run with `changes`; `resume` it; `stop` it after a step, requested in the last process only."""
    config = small_config(folder, case["name"], **case["changes"])
    losses, figures = {}, []
    with open_session(config, resume=case.get("resume", False), world=world) as session:
        gradients = watch_gradients(session.trainer)
        for event in session.events([]):
            if isinstance(event, Stepped):
                losses[event.step] = event.loss
                if event.step == case.get("stop") and world.rank == world.processes - 1:
                    session.trainer.stop()
            if isinstance(event, Evaluated):
                figures.append([event.step, event.loss, event.tokens, event.accuracy or 0.0])
        sample = session.write_sample() if case["changes"].get("model__task") != "classifier" else None
    heard = {"losses": losses, "figures": figures, "sample": sample}
    assert json.loads(json.dumps(heard)) == world.share(heard), "the processes heard different things"
    return heard | {"notes": session.notes, "bytes": local_bytes(session.trainer) | {"gradients": max(gradients)}}


def watch_gradients(trainer: Trainer[Any]) -> list[int]:
    """Record the bytes of all gradients of this process before each optimizer step."""
    found: list[int] = []
    one = getattr(trainer.optimizer, "optimizers", [trainer.optimizer])[0]
    parameters = list(trainer.model.parameters())
    one.register_step_pre_hook(lambda *_: found.append(sum(size(p.grad) for p in parameters if p.grad is not None)))
    return found


def local_bytes(trainer: Trainer[Any]) -> dict[str, int]:
    """Return the bytes of weights and moments in this process."""
    groups = trainer.optimizer.state_dict()
    states = [one["state"] for one in groups.get("optimizers", [groups])]
    moments = [value for state in states for values in state.values() for value in values.values() if value.dim()]
    return {"weights": sum(map(size, trainer.model.parameters())), "moments": sum(map(size, moments))}


def size(tensor: Tensor) -> int:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.numel() * local.element_size()


if __name__ == "__main__":
    place, answer, cases = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    with open_world() as processes:
        result = [train_case(processes, place, case) for case in cases]
        if processes.first:
            (place / answer).write_text(json.dumps(result))
    exit_process(0)
