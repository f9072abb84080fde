"""Kill a real training process at random moments and compare with an uninterrupted run.

    python tests/torture.py --kills 100

For each setting, a reference run is trained without interruption. Then the same run is trained by processes that are killed at
random moments (SIGKILL, SIGTERM or SIGINT; in start-up, steps, saves and evaluations) and resumed. The last two settings use two
processes of torchrun, one of which is killed at a time: after SIGKILL torchrun restarts both, after SIGTERM both save and end.
Compared are every tensor of the last checkpoint and of the optimizer, the state, the names of `best` and `last`, and the log
without times, speeds, warnings about speed, and memory. The last line is `N kills, M differences`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lilliput.training.events import TIMES

SETTINGS: dict[str, dict[str, str]] = {
    "modern": {
        "tokenizer.vocab_size": "400",
        "model.dim": "32",
        "model.layers": "2",
        "model.heads": "2",
        "model.dropout": "0.1",
        "model.window": "16,none",
    },
    "classic": {
        "tokenizer.kind": "byte",
        "model.dim": "32",
        "model.layers": "2",
        "model.heads": "4",
        "model.norm": "layer",
        "model.norm_placement": "post",
        "model.positions": "sinusoidal",
        "model.feed_forward": "relu",
        "model.initialisation": "xavier",
        "model.tied": "true",
        "train.accumulate": "3",
    },
    "tokens": {
        "tokenizer.vocab_size": "300",
        "model.dim": "24",
        "model.layers": "3",
        "model.heads": "2",
        "model.kv_heads": "1",
        "model.feed_forward": "swiglu",
        "model.positions": "learned",
        "schedule.kind": "constant",
        "train.tokens": "150000",
    },
    "overlapping": {
        "tokenizer.kind": "word",
        "data.windows": "overlapping",
        "model.dim": "32",
        "model.layers": "2",
        "model.heads": "2",
        "model.dropout": "0.1",
        "data.tests": "again=storybook",
    },
}
TOGETHER: dict[str, dict[str, str]] = {
    "replicate": {
        "tokenizer.vocab_size": "400",
        "model.dim": "32",
        "model.layers": "2",
        "model.heads": "2",
        "model.dropout": "0.1",
        "train.accumulate": "2",
        "optimizer.average": "0.95",
    },
    "shard": {
        "tokenizer.kind": "byte",
        "model.dim": "32",
        "model.layers": "2",
        "model.heads": "2",
        "model.dropout": "0.1",
        "optimizer.kind": "muon",
        "train.parallel": "shard",
    },
}
COMMON = {
    "data.documents": "300",
    "model.context": "64",
    "train.batch": "4",
    "train.steps": "400",
    "train.save_every": "7",
    "evaluate.every": "20",
    "evaluate.rows": "8",
    "log.every": "1",
    "train.threads": "1",
}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# Valid exit codes; torchrun restarts its processes and exits with 0.
ENDS = ((0, 130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT), (0,))


RESTARTS = 3  # of torchrun; after a SIGTERM it ends and is started again


def command(name: str, setting: str, resume: bool) -> list[str]:
    settings = COMMON | (SETTINGS | TOGETHER)[setting]
    if "train.tokens" in settings:
        del settings["train.steps"]
    # A resumed run needs only its folder.
    target = [f"runs/{name}", "--resume"] if resume else ["storybook", "--name", name]
    flags = [] if resume else [word for key, value in settings.items() for word in (f"--{key}", value)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", str(RESTARTS)]
    return [
        sys.executable,
        *(launcher if setting in TOGETHER else []),
        "-m",
        "lilliput",
        "train",
        *target,
        *flags,
        "--json",
    ]


def outcome(run: Path) -> dict[str, Any]:
    """Return what must be equal in a resumed and an uninterrupted run."""
    last = (run / "last").read_text().strip()
    folder = run / "checkpoints" / last
    state = json.loads((folder / "state.json").read_text())
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "last": last,
        "best": (run / "best").read_text().strip(),
        "weights": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "optimizer": hashlib.sha256((folder / "state.safetensors").read_bytes()).hexdigest(),
        "state": [item for item in state["dict"] if item[0] not in TIMES],
        "log": [
            {key: value for key, value in line.items() if key not in TIMES}
            for line in log
            if line["event"] != "session" and line.get("kind") != "speed"
        ],
    }


def ranks(agent: int) -> list[int]:
    """Return the processes that torchrun has started (Linux only)."""
    children = Path(f"/proc/{agent}/task/{agent}/children")
    return [int(word) for word in children.read_text().split()] if children.exists() else []


def disturb(setting: str, folder: Path, kills: int, chance: random.Random, longest: float) -> int:
    """Train to the end with `kills` kills; return the number of differences to the reference."""
    reference, killed, differences, attempt = outcome(folder / "runs" / f"{setting}-reference"), 0, 0, 0
    kill_some = kill_ranks if setting in TOGETHER else kill_process
    while killed < kills:
        attempt += 1
        name = f"{setting}-{attempt}"
        while not ended(folder / "runs" / name):
            resume = (folder / "runs" / name / "config.json").exists()
            with (folder / "errors.txt").open("w+") as errors:  # an unread pipe would fill and block them
                process = subprocess.Popen(
                    command(name, setting, resume), cwd=folder, stdout=subprocess.DEVNULL, stderr=errors
                )
                killed += kill_some(process, kills - killed, chance, longest)
                errors.seek(0)
                if process.returncode not in ENDS[setting in TOGETHER]:
                    print(f"{name}: ended with {process.returncode}:\n{errors.read()}", file=sys.stderr)
                    return differences + 1
        differences += print_differences(name, reference, outcome(folder / "runs" / name))
        print(f"{name}: {killed} kills so far, {differences} differences", file=sys.stderr, flush=True)
    return differences


def kill_process(process: subprocess.Popen[bytes], most: int, chance: random.Random, longest: float) -> int:
    """Kill once, unless the process ends before; wait for its end and return the number of kills."""
    sent = 0
    if most:
        try:
            process.wait(chance.uniform(0.0, longest))
        except subprocess.TimeoutExpired:
            process.send_signal(chance.choice(SIGNALS))
            sent = 1
    process.wait()
    return sent


def kill_ranks(agent: subprocess.Popen[bytes], most: int, chance: random.Random, longest: float) -> int:
    """Kill one of the two processes of torchrun at a time, as often as it restarts them."""
    sent = 0
    while agent.poll() is None:
        time.sleep(chance.uniform(0.0, longest))
        found = ranks(agent.pid)
        if sent < min(most, RESTARTS) and len(found) == 2:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(found), chance.choice((signal.SIGKILL, signal.SIGTERM)))
                sent += 1
    return sent


def print_differences(name: str, expected: dict[str, Any], found: dict[str, Any]) -> int:
    parts = [part for part, value in expected.items() if found[part] != value]
    for part in parts:
        print(f"{name}: {part} differs from the uninterrupted run", file=sys.stderr)
    return len(parts)


def ended(run: Path) -> bool:
    log = run / "metrics.jsonl"
    return log.exists() and '"event": "finished"' in log.read_text()


def torture(kills: int, seed: int, folder: Path) -> int:
    chance, differences = random.Random(seed), 0
    everything = SETTINGS | TOGETHER
    for index, setting in enumerate(everything):
        began = time.monotonic()
        subprocess.run(command(f"{setting}-reference", setting, False), cwd=folder, check=True, capture_output=True)
        longest = 0.4 * (time.monotonic() - began)  # so that a run is killed several times
        share = kills // len(everything) + (index < kills % len(everything))
        differences += disturb(setting, folder, share, chance, longest)
    return differences


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ["LILLIPUT_TIME_STEPS"] = "0"  # the run and its reference must choose the same precision
    with tempfile.TemporaryDirectory() as place:
        found = torture(arguments.kills, arguments.seed, Path(place))
    print(f"{arguments.kills} kills, {found} differences")
    sys.exit(1 if found else 0)
