"""Shared by all benchmarks: contestants run in turn in separate processes; medians are printed as a table or JSON list.

A benchmark calls `contest(__file__, names, repeats)`, which runs `python FILE --contestant NAME` for each name, and prints rows
of `{work, ours, peer, peer_name, ratio, unit}` with `show`. Absolute values depend on the machine and its load; compare the
ratios of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

THREADS = min(2, os.cpu_count() or 1)


def arguments(about: str, repeats: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--repeats", type=int, default=repeats, help=f"number of processes per contestant [{repeats}]")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    return parser.parse_args()


def contest(file: str, names: list[str], repeats: int) -> dict[str, list[dict[str, float]]]:
    """Return the metrics of every process of every contestant, in order. They run in turn, so that load affects all equally."""
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(repeats):
        for name in names if turn % 2 == 0 else reversed(names):
            command = [sys.executable, file, "--contestant", name]
            outcome = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
            found[name].append(json.loads(outcome.stdout.splitlines()[-1]))
            print(f"  {name} {turn + 1}/{repeats} {found[name][-1]}", file=sys.stderr, flush=True)
    return found


def median(found: list[dict[str, float]], metric: str) -> float:
    return statistics.median(outcome[metric] for outcome in found)


def row(work: str, ours: float, peer: float, peer_name: str, unit: str) -> dict[str, Any]:
    return {"work": work, "ours": ours, "peer": peer, "peer_name": peer_name, "ratio": ours / peer, "unit": unit}


def show(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for found in rows:
        print(
            f"{found['work']:44} {found['ours']:12,.4g}  {found['peer_name']:32} {found['peer']:12,.4g} {found['unit']:10} "
            f"ratio {found['ratio']:.3f}"
        )
