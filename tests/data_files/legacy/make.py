"""Make the runs of this folder. Run once, with the code of commit 638b609, and never again.

The runs are what that version wrote: later versions must load and resume them, and write the same text
(`tests/test_legacy_runs.py`). This script explains them. It imports modules by the names that they had then, so it does
not run with later versions.

Each folder has the data, `saved/NAME` (the run) and `expected.json` (what commit 638b609 computed from the run):
    interrupted  whether the run has steps left
    info         keys of `info --json`, parameter counts, steps, validation
    texts        of `generate --json`, greedy and sampled (no texts for a classifier)
    evaluate     the figures of `evaluate --json`, for each set
    documents    the rows of `evaluate --csv` (predicted labels and probabilities of a classifier)
    resumed      the log of the run after it was resumed to its end, and info, texts and evaluate of that
    from         the log of a new run that began from the weights
The resumed run was compared with a run that was never interrupted: the same log and the same tensors, bit for bit.

Usage: PYTHONPATH=src:tests python tests/data_files/legacy/make.py FOLDER
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from lilliput.config import load_config
from lilliput.runs import Run
from lilliput.training.session import open_session
from small import assert_equal_tensors, lilliput, timeless

COMMON = {
    "log.folder": "saved",
    "log.every": "1",
    "log.sample_seconds": "none",
    "data.validation_share": "0.25",
    "model.dim": "4",
    "model.layers": "2",
    "model.heads": "2",
    "model.context": "12",
    "schedule.warmup": "2",
    "train.batch": "4",
    "train.steps": "10",
    "train.save_every": "4",
    "train.keep": "1",
    "train.threads": "1",
    "train.device": "cpu",
    "train.precision": "float64",
    "evaluate.every": "4",
    "evaluate.rows": "6",
    "generate.tokens": "10",
    "generate.engine": "torch",
    "data.workers": "1",
}
RUNS: dict[str, dict[str, str]] = {
    "language": {
        "data.tests": "other=other.txt",
        "tokenizer.kind": "word",
        "model.hidden": "12",
        "model.norm": "rms",
        "model.positions": "rotary",
        "model.qk_norm": "true",
        "model.feed_forward": "relu2",
        "model.window": "4,none",
        "model.value_embeddings": "ends",
        "model.tied": "true",
        "model.soft_cap": "15",
        "optimizer.kind": "muon",
        "optimizer.average": "0.8",
        "optimizer.embedding_lr": "0.1",
        "schedule.kind": "cosine",
        "train.z_loss": "0.0001",
    },
    "classifier": {
        "data.labelled": "true",
        "data.tests": "other=other.tsv",
        "tokenizer.kind": "word",
        "tokenizer.lowercase": "true",
        "model.task": "classifier",
        "model.norm": "layer",
        "model.norm_placement": "post",
        "model.final_norm": "false",
        "model.positions": "sinusoidal",
        "model.feed_forward": "relu",
        "model.qk_norm": "false",
        "model.dropout": "0.1",
        "model.layers": "1",
        "model.hidden": "12",
        "model.classifier_hidden": "6",
        "model.initialisation": "xavier",
        "optimizer.kind": "adamw",
        "optimizer.lr": "0.02",
        "schedule.kind": "linear",
        "train.label_smoothing": "0.1",
        "train.balance_labels": "true",
    },
    "both": {
        "data.labelled": "true",
        "tokenizer.kind": "bpe",
        "tokenizer.vocab_size": "264",
        "model.task": "both",
        "model.norm": "layer",
        "model.norm_placement": "pre",
        "model.positions": "learned",
        "model.feed_forward": "gelu",
        "model.kv_heads": "1",
        "model.qk_norm": "false",
        "model.layers": "1",
        "model.hidden": "12",
        "model.tied": "true",
        "model.bias_attention_input": "true",
        "model.bias_attention_output": "true",
        "model.bias_feed_forward": "true",
        "model.bias_head": "true",
        "model.classifier_hidden": "6",
        "model.initialisation": "gpt2",
        "optimizer.kind": "adam",
        "optimizer.lr": "0.05",
        "optimizer.weight_decay": "0.001",
        "schedule.kind": "constant",
        "train.recompute": "block",
        "train.accumulate": "2",
        "train.steps": "12",
        "train.save_every": "12",
        "evaluate.every": "12",
        "train.label_weight": "0.5",
    },
    "characters": {
        "data.windows": "overlapping",
        "tokenizer.kind": "character",
        "model.positions": "none",
        "model.feed_forward": "swiglu",
        "model.hidden": "12",
        "model.window": "6",
        "model.value_embeddings": "alternate",
        "model.initialisation": "copying",
        "optimizer.kind": "sgd",
        "optimizer.lr": "0.1",
        "optimizer.momentum": "0.9",
        "optimizer.weight_decay": "0.001",
        "optimizer.clip": "none",
        "schedule.kind": "inverse-sqrt",
        "schedule.decay": "0.5",
        "train.recompute": "feed-forward",
    },
    "vectors": {
        "tokenizer.kind": "word",
        "tokenizer.punctuation": "strip",
        "vectors.source": "words.vec",
        "vectors.frozen": "true",
        "model.layers": "1",
        "model.hidden": "12",
        "model.value_embeddings": "all",
        "optimizer.kind": "sgd",
        "optimizer.lr": "0.2",
        "optimizer.head_lr": "0.1",
        "schedule.decay": "0.2",
    },
}
# How many updates were made when the run was left, and whether it was asked to stop (and saved) or was killed.
LEFT = {"language": (6, "killed"), "classifier": (7, "killed"), "characters": (6, "stopped"), "vectors": (5, "killed")}
PROMPTS = {"language": "the cat", "both": "the ", "characters": "the c", "vectors": "a boat"}
FROM = {"train.steps": "3", "train.save_every": "3", "evaluate.every": "3", "optimizer.kind": "adamw"}
TIMES = ("seconds", "tokens_per_second", "share_of_peak", "memory_bytes")

WHO = ("the cat", "a boat", "the old clock", "my sister", "Émile")
DOES = ("waits for", "follows", "forgets", "paints")
WHAT = ("the rain", "a red kite", "the harbour", "seven stones", "an orange moon", "nobody")
MOODS = {"glad": ("warm", "bright", "sweet"), "cross": ("cold", "late", "loud"), "calm": ("slow", "soft", "late")}


def sentence(number: int) -> str:
    return f"{WHO[number % 5]} {DOES[number * 3 % 4]} {WHAT[(number * number + number // 3) % 6]}."


def story(number: int) -> str:
    return " ".join(sentence(number * 7 + at) for at in range(2 + number % 3))


def mood(number: int) -> str:
    name = list(MOODS)[(number * number + number // 4) % 3]
    words = [
        MOODS[name][(number + at) % 3] if at % 2 else f"{WHO[(number + at) % 5]} is" for at in range(2 + number % 5)
    ]
    return f"{name}\t{' '.join(words)}"


def write_data(folder: Path, name: str) -> str:
    """The data of a run; the name of the file to train on."""
    if RUNS[name].get("data.labelled"):
        (folder / "moods.tsv").write_bytes("".join(f"{mood(n)}\n" for n in range(24)).encode())
        if name == "classifier":
            (folder / "other.tsv").write_bytes("".join(f"{mood(n)}\n" for n in range(31, 40)).encode())
        return "moods.tsv"
    (folder / "stories.txt").write_bytes("\n<|endoftext|>\n".join(story(n) for n in range(16)).encode())
    if name == "language":
        (folder / "other.txt").write_bytes("\n<|endoftext|>\n".join(story(n) for n in range(21, 25)).encode())
    if name == "vectors":
        words = ["the", "cat", "boat", "old", "clock", "my", "sister", "rain", "red", "kite", "stones", "moon"]
        rows = [f"{w} {' '.join(str((n * 5 + k * 3) % 7 / 4 - 0.75) for k in range(4))}" for n, w in enumerate(words)]
        (folder / "words.vec").write_bytes("".join(f"{row}\n" for row in [f"{len(words)} 4", *rows]).encode())
    return "stories.txt"


def train(name: str, source: str, folder: str, leave: tuple[int, str] | None = None) -> Run:
    config = load_config(source, {**COMMON, **RUNS[name], "name": name, "log.folder": folder})
    with open_session(config) as session:
        events = session.events([])
        for event in events:
            if leave is not None and (event.event, event.step) == ("step", leave[0]):
                if leave[1] == "killed":
                    break
                session.trainer.stop()
        events.close()  # type: ignore[attr-defined]
        return session.run


def call(*argv: str) -> dict[str, Any]:
    told = lilliput(*argv, "--json")
    assert told.code == 0, told.err
    found: dict[str, Any] = json.loads(told.out)
    return found


def numbers(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures of the whole set, with their intervals and a classifier's confusion; no figures of its parts, no prose."""
    kept = {"checkpoint", "interval", "confusion"}
    return {key: value for key, value in figures.items() if key in kept or isinstance(value, int | float)}


def facts(name: str, run: str) -> dict[str, Any]:
    """What every later version must find in this run."""
    info = call("info", run)
    found: dict[str, Any] = {"info": {"keys": sorted(info), "sections": sorted(info["config"])}}
    found["info"] |= {key: info[key] for key in ("parameters", "steps", "tokens_seen", "validation", "tests")}
    found["texts"] = [
        {
            "flags": flags,
            "sample": call("generate", run, "--device", "cpu", "--prompt", PROMPTS[name], *flags)["samples"][0],
        }
        for flags in (
            ["--temperature", "0"],
            ["--temperature", "1", "--seed", "7"],
            ["--temperature", "0.8", "--top-k", "5", "--seed", "11", "--tokens", "24"],
            ["--temperature", "0", "--engine", "uncached"],
            ["--beams", "3"],
        )
        if name in PROMPTS
    ]
    sets = ["validation", *(["other"] if "data.tests" in RUNS[name] else [])]
    found["evaluate"] = {each: numbers(call("evaluate", run, "--device", "cpu", "--on", each)) for each in sets}
    call("evaluate", run, "--device", "cpu", "--csv", "documents.csv")
    with open("documents.csv", encoding="utf-8", newline="") as file:
        found["documents"] = list(csv.DictReader(file))
    os.remove("documents.csv")
    return found


def log_of(run: str) -> list[dict[str, Any]]:
    """Without times, and without sentences for people."""
    lines = Path(run, "metrics.jsonl").read_text("utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in (*TIMES, "text")} for line in lines]


def resume(name: str) -> dict[str, Any]:
    run = f"saved/{name}"
    call("train", run, "--resume")
    whole, resumed = (
        train(name, "moods.tsv" if RUNS[name].get("data.labelled") else "stories.txt", "whole"),
        Run(Path(run)),
    )
    one, two = whole.last, resumed.last
    assert one is not None and two is not None and timeless(whole) == timeless(resumed)
    assert_equal_tensors(two.load_model(), one.load_model())
    assert_equal_tensors(two.load_state(), one.load_state())
    return {"log": log_of(run), **facts(name, run)}


def make(name: str, target: Path) -> None:
    target.mkdir(parents=True)
    os.chdir(target)
    source = write_data(target, name)
    train(name, source, "saved", LEFT.get(name))
    shutil.rmtree("prepared")
    os.remove(f"saved/{name}/.lock")
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(shutil.copytree(target, Path(temporary) / "copy"))
        os.chdir(copy)
        expected: dict[str, Any] = {"interrupted": name in LEFT, **facts(name, f"saved/{name}")}
        flags = [word for key, value in {**COMMON, **FROM}.items() for word in (f"--{key}", value)]
        flags = [word for at, word in enumerate(flags) if not flags[at - at % 2].startswith("--model.")]
        call("train", source, "--from", f"saved/{name}", "--name", "new", *flags)
        expected["from"] = {"source": source, "flags": flags, "log": log_of("saved/new")}
        if name in LEFT:
            expected["resumed"] = resume(name)
        os.chdir(target)
    (target / "expected.json").write_bytes(write_json(expected).encode())


def write_json(expected: dict[str, Any]) -> str:
    """A line for each fact."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in expected.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1]).absolute()
    for each in sys.argv[2:] or RUNS:
        make(each, place / each)
