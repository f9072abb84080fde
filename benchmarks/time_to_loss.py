"""Training time of recipes/stories.toml to the validation loss of a plain GPT.

    python benchmarks/time_to_loss.py --folder FOLDER [--json]

The peer is a GPT-2-style model of the same dim, layers, heads, tokenizer and batch, trained with AdamW and a cosine schedule for
15 minutes, with the best of five learning rates. The recipe is then trained from scratch for 1.5, 2, 3, ... minutes, each time
with its complete schedule, until it reaches the same loss. The ratio of the two times is printed.

The runs are trained one after the other in separate processes with the same number of threads. The loss is that of the whole
validation split. A finished run in FOLDER with the same settings is not trained again, so the hour and a half can be split.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from contest import THREADS, show
from lilliput.settings.loading import config_to_dict, load_config, without_removed
from lilliput.storage.run_folders import differences

ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "recipes" / "stories.toml"
LEARNING_RATES = (5e-4, 1e-3, 2e-3, 3e-3, 6e-3)
PEER_MINUTES = 15.0
MINUTES = (1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0)
# Radford et al. 2019, with the usual betas, decay and warm-up of small GPTs.
PLAIN = {
    "model.norm": "layer",
    "model.hidden": "none",  # 4 x dim
    "model.positions": "learned",
    "model.feed_forward": "gelu",
    "model.qk_norm": "false",
    "model.tied": "true",
    "model.soft_cap": "none",
    "model.value_embeddings": "none",
    "model.window": "none",
    "model.dropout": "0",
    "model.bias_attention_input": "true",
    "model.bias_attention_output": "true",
    "model.bias_feed_forward": "true",
    "model.initialisation": "gpt2",
    "optimizer.kind": "adamw",
    "optimizer.embedding_lr": "none",
    "optimizer.head_lr": "none",
    "optimizer.betas": "0.9,0.95",
    "optimizer.epsilon": "1e-8",
    "optimizer.weight_decay": "0.1",
    "optimizer.clip": "1.0",
    "optimizer.average": "none",
    "schedule.kind": "cosine",
    "schedule.decay": "1.0",
    "schedule.warmup": "50",
    "schedule.final": "0.05",
    "train.pair_updates": "0",
}


def trained(folder: Path, name: str, minutes: float, settings: dict[str, str]) -> dict[str, Any]:
    """Return the metrics of a run on the whole validation split. Train it unless it exists with the same settings."""
    run = folder / "runs" / name
    places = {"log.folder": str(folder / "runs"), "data.cache": str(folder / "prepared"), "name": name}
    wanted = {"train.minutes": str(minutes), "train.threads": str(THREADS), **places, **settings}
    metrics = run / "metrics.jsonl"
    finished = metrics.exists() and '"event": "finished"' in metrics.read_text()
    if not finished or changed(run, config_to_dict(load_config(str(RECIPE), wanted))):
        flags = [word for key, value in wanted.items() for word in (f"--{key}", value)]
        command = [sys.executable, "-m", "lilliput", "train", str(RECIPE), "--overwrite", "--json", *flags]
        outcome = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if outcome.returncode:
            sys.exit(f"{name} failed:\n{outcome.stderr[-2000:]}")
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    found: dict[str, Any] = next(event for event in events if event["event"] == "evaluation" and event["whole"])
    steps = [event for event in events if event["event"] == "step"]
    found |= {"tokens_seen": steps[-1]["tokens"], "seconds": steps[-1]["seconds"]}
    print(
        f"  {name:20} {minutes:4g} minutes  loss {found['loss']:.4f}  {found['bits_per_byte']:.4f} bits/byte  "
        f"{found['tokens_seen']:,} tokens in {found['seconds']:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    return found


def changed(run: Path, wanted: dict[str, Any]) -> bool:
    """Return whether the settings of the run differ, except for the vocabulary size, which it has found itself."""
    saved = json.loads((run / "config.json").read_text())
    return bool(differences(without_removed(saved, str(run)), wanted).keys() - {"model.vocab_size"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    arguments = parser.parse_args()
    peers = {
        lr: trained(arguments.folder, f"plain-{lr:g}", PEER_MINUTES, PLAIN | {"optimizer.lr": str(lr)})["loss"]
        for lr in LEARNING_RATES
    }
    best = min(peers, key=lambda lr: peers[lr])
    work = f"minutes of training to a validation loss of {peers[best]:.4f}"
    rows = []
    for minutes in MINUTES:
        if trained(arguments.folder, f"stories-{minutes:g}", minutes, {})["loss"] <= peers[best]:
            times = {"ours": minutes, "peer": PEER_MINUTES, "ratio": PEER_MINUTES / minutes}
            rows = [{"work": work, **times, "peer_name": f"plain GPT, AdamW {best:g}", "unit": "minutes"}]
            break
    show(rows, arguments.json)
    if not rows:
        sys.exit(f"the recipe did not reach a loss of {peers[best]:.4f} within {MINUTES[-1]:g} minutes")


if __name__ == "__main__":
    main()
