"""Training and generation next to other programs, and on a quiet machine: waiting threads that adapt, compared with others.

    python benchmarks/busy_machine.py --json

Works: training of the demo's model (624,000 parameters) and of the default model (4.2M), on stories of the storybook; one text
of the default model by the compiled engine. Each is measured alone and next to `--busy` processes that only count. Close all
other programs: they change the speeds, and only ratios of measurements in turns mean something.

`adapting` is Lilliput as it is. Its peers in training are libgomp's default (threads spin for milliseconds, chosen by
GOMP_SPINCOUNT=300000), short spinning (GOMP_SPINCOUNT=1000) and one thread (OMP_NUM_THREADS=1); in generation a fixed number
of threads. Every contestant is a process that waits between its turns of `--seconds` seconds. A turn begins with one second
that is not counted. The busy processes run for one turn at a time. Ratio: the median over the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from contest import show

SPINNING = {
    "adapting": {},
    "long spinning": {"GOMP_SPINCOUNT": "300000"},
    "short spinning": {"GOMP_SPINCOUNT": "1000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
THREADS = {"adapting": "", "all threads": "all", "one thread": "1"}
WORKS: dict[str, tuple[str, dict[str, dict[str, str]]]] = {
    "train the demo's model": ("demo", SPINNING),
    "train the default model": ("storybook", SPINNING),
    "generate with the default model": ("storybook", {name: {"THREADS": count} for name, count in THREADS.items()}),
}
COUNT = "while True: pass"
CHOSEN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")


# A contestant: a process that works for the seconds it reads from stdin, and prints its tokens/s. -----------------------


def training(target: str, folder: str) -> Iterator[int]:
    """Train forever; yield the tokens so far after each step."""
    from lilliput.settings.loading import load_config
    from lilliput.training.events import Stepped
    from lilliput.training.session import open_session

    rarely = dict.fromkeys(("evaluate.every", "train.save_every", "log.every"), "1000000")
    places = {"name": "busy", "log.folder": folder, "data.cache": f"{folder}/prepared"}
    with open_session(
        load_config(target, {"train.steps": "1000000", "data.documents": "2000", **rarely, **places})
    ) as session:
        for event in session.trainer.events():
            if isinstance(event, Stepped):
                yield event.tokens


def generating(target: str, folder: str) -> Iterator[int]:
    """Generate texts of 120 tokens forever; yield the tokens so far."""
    import torch

    from lilliput.decoding.engines.compiled_engine import NumbaEngine
    from lilliput.decoding.requests import Request
    from lilliput.decoding.stream import stream
    from lilliput.model.transformer import build_model
    from lilliput.settings.loading import load_config

    config = load_config(target, {"model.vocab_size": "2048"})
    count = {"": None, "all": torch.get_num_threads()}.get(os.environ["THREADS"], 1)
    engine, tokens = NumbaEngine(build_model(config.model, seed=1), threads=count), 0
    while True:
        for _ in stream(engine, [Request([1, 2, 3], 120)]):
            tokens += 1
            yield tokens


def contend(work: str) -> None:
    target, _ = WORKS[work]
    with tempfile.TemporaryDirectory() as folder:
        progress = (generating if "generate" in work else training)(target, folder)
        next(progress)
        print("ready", flush=True)
        for line in sys.stdin:
            advance(progress, 1.0)
            print(advance(progress, float(line)), flush=True)


def advance(progress: Iterator[int], seconds: float) -> float:
    """Work for some seconds; return the tokens/s."""
    first, began = next(progress), time.perf_counter()
    last, now = first, began
    while now - began < seconds:
        last, now = next(progress), time.perf_counter()
    return (last - first) / (now - began)


# The contest ------------------------------------------------------------------------------------------------------------


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", COUNT]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def contestants(work: str) -> Iterator[dict[str, Callable[[float], float]]]:
    """Start a process per contestant; each is called with seconds and returns tokens/s."""
    base = {name: value for name, value in os.environ.items() if name not in CHOSEN}
    processes: dict[str, subprocess.Popen[str]] = {}
    folder = tempfile.TemporaryDirectory()
    try:
        for name, variables in WORKS[work][1].items():
            processes[name] = subprocess.Popen(
                [sys.executable, __file__, "--contestant", work],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=base | variables | {"TMPDIR": folder.name},
            )
            ask(processes[name])  # one at a time: they share the compiled code
        yield {name: lambda seconds, one=one: float(ask(one, seconds)) for name, one in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        folder.cleanup()


def ask(process: subprocess.Popen[str], seconds: float | None = None) -> str:
    assert process.stdin is not None and process.stdout is not None
    if seconds is not None:
        process.stdin.write(f"{seconds}\n")
        process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        sys.exit("a contestant has ended")
    return answer


def measure(work: str, busy: int, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Return a row per number of busy processes and peer."""
    rows: list[dict[str, Any]] = []
    with contestants(work) as speeds:
        for number in dict.fromkeys((0, busy)):
            found: dict[str, list[float]] = {name: [] for name in speeds}
            for turn in range(rounds):
                for name in [*speeds] if turn % 2 == 0 else [*reversed([*speeds])]:
                    with busy_processes(number):
                        found[name].append(speeds[name](seconds))
            ours = found.pop("adapting")
            place = f"next to {number} busy processes" if number else "alone"
            for peer, theirs in found.items():
                ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
                value = {"ours": statistics.median(ours), "peer": statistics.median(theirs), "ratio": ratio}
                rows.append({"work": f"{work}, {place}", **value, "peer_name": peer, "unit": "tokens/s"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--busy", type=int, default=os.cpu_count() or 2, help="busy processes [number of CPUs]")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each contestant [6]")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of a turn [4]")
    parser.add_argument("--work", choices=[*WORKS], action="append", help="work to measure [all]")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        contend(options.contestant)
        return
    rows = [
        row for work in options.work or WORKS for row in measure(work, options.busy, options.rounds, options.seconds)
    ]
    show(rows, options.json)


if __name__ == "__main__":
    main()
