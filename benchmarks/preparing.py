"""`lilliput prepare`: speed compared with the tokenizers library alone, peak memory, and speed of reading batches.

    python benchmarks/preparing.py --json

Text: random TinyStories of `$LILLIPUT_DATA` with numbers inserted, 100 MB and 1 GB (`--small`, `--large` in megabytes), GPT-2
tokenizer. The text is written to a temporary folder and removed.
(a) `prepare` from the file to the complete folder (reading, hashing the source, workers, writing, flushing, exact duplicates,
    statistics), compared with `encode_batch` of the library on all cores, which gets the same documents in memory, 1,000 at a
    time, and whose tokens are discarded. They run in turn; medians.
(b) Peak memory of the command with its workers: the sum of RssAnon (without file pages) over all processes, sampled every
    50 ms. The peak is at the start, while workers load the tokenizer, and varies by some percent between runs; so the
    smaller text has the median of several runs.
(c) Reading batches of 16 x 256 tokens from the prepared file, compared with the speed of training in benchmarks/training.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from contest import contest, median, row, show

FOLDER = "PREPARING_FOLDER"  # environment variable with the folder of the texts
DATA = Path(os.environ.get("LILLIPUT_DATA") or Path(__file__).parents[2] / "shared" / "data")
MARK = "<|endoftext|>"
BATCH, CONTEXT = 16, 256


def write_text(path: Path, size: int) -> None:
    """Write stories with random numbers inserted: all documents differ, and their words are known to the tokenizer."""
    stories = [text.strip() for text in (DATA / "tinystories" / "mixed-train.txt").read_text("utf-8").split(MARK)]
    chance, written = random.Random(1), 0
    with open(path, "w", encoding="utf-8") as file:
        while written < size:
            words = chance.choice(stories).split(" ")
            words[chance.randrange(len(words))] += f" {chance.randrange(10_000)}"
            written += file.write(f"{' '.join(words)}\n{MARK}\n")


def settings(text: str, cache: str) -> list[str]:
    flags = ["--data.cache", cache, "--tokenizer.kind", "gpt2", "--tokenizer.path", str(DATA / "gpt2-bpe")]
    return [str(Path(os.environ[FOLDER]) / f"{text}.txt"), *flags]


def prepare_text() -> dict[str, float]:
    from lilliput.data.prepare import prepare
    from lilliput.settings.loading import load_config

    source, *flags = settings("small", str(Path(os.environ[FOLDER]) / "speed"))
    named = {name.removeprefix("--"): value for name, value in zip(flags[::2], flags[1::2], strict=True)}
    config = load_config(source, named)
    began = time.perf_counter()
    found = prepare(config, rebuild=True)
    seconds = time.perf_counter() - began
    return {"speed": sum(found.report()["bytes"].values()) / seconds, "seconds": seconds}


def encode_text() -> dict[str, float]:
    from lilliput.data.corpora import open_corpus
    from lilliput.data.tokenizers import make_tokenizer
    from lilliput.settings.tree import DataSettings, TokenizerSettings

    path = Path(os.environ[FOLDER])
    tokenizer = make_tokenizer(TokenizerSettings(kind="gpt2", path=str(DATA / "gpt2-bpe")), ())
    tokenizer.save(path / "raw.json")
    import tokenizers

    raw = tokenizers.Tokenizer.from_file(str(path / "raw.json"))
    texts = [document.text for _, document in open_corpus(DataSettings(source=str(path / "small.txt"))).stream()]
    size, batches = sum(len(text.encode()) for text in texts), iter(texts)
    began = time.perf_counter()
    while batch := list(islice(batches, 1000)):
        raw.encode_batch(batch)
    seconds = time.perf_counter() - began
    return {"speed": size / seconds, "seconds": seconds}


def read_back() -> dict[str, float]:
    import training
    from lilliput.data.batches import Batches, PackedRows
    from lilliput.data.prepare.token_files import Prepared, unseal

    (manifest,) = Path(os.environ[FOLDER], "speed").glob("*/manifest.json")
    prepared = Prepared(manifest.parent, unseal(manifest.read_bytes()))
    batches = Batches(PackedRows(prepared.split("train"), CONTEXT, prepared.tokenizer.start), BATCH, seed=1)
    next(batches)  # draws the order of the first epoch
    tokens, began = 0, time.perf_counter()
    while (seconds := time.perf_counter() - began) < 3:
        tokens += next(batches).tokens
    step = training.ours()
    times = []
    for _ in range(6):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    learned = training.BATCH * training.CONTEXT / statistics.median(times[1:])
    return {"read": tokens / seconds, "learned": learned}


CONTESTANTS = {"lilliput": prepare_text, "encode_batch": encode_text, "reading": read_back}


def peak_memory(text: str) -> int:
    """Return the largest sum of RssAnon of the command and its workers, in bytes."""
    cache = tempfile.mkdtemp(dir=os.environ[FOLDER])
    command = [sys.executable, "-m", "lilliput", "prepare", *settings(text, cache), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        most = max(most, sum(own_memory(one) for one in family(process.pid)))
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"lilliput prepare failed with exit code {process.returncode}")
    print(f"  memory of {text}: {most / 1e6:.0f} MB", file=sys.stderr, flush=True)
    return most


def family(parent: int) -> Iterator[int]:
    yield parent
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # the process has ended
            continue
        for child in children:
            yield from family(int(child))


def own_memory(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--repeats", type=int, default=3, help="number of processes per contestant [3]")
    parser.add_argument("--small", type=int, default=100, help="megabytes of the smaller text [100]")
    parser.add_argument("--large", type=int, default=1000, help="megabytes of the larger text [1000]")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        print(json.dumps(CONTESTANTS[options.contestant]()))
        return
    folder = tempfile.mkdtemp(prefix="preparing-")
    os.environ[FOLDER] = folder
    try:
        write_text(Path(folder) / "small.txt", options.small * 1_000_000)
        found = contest(__file__, ["lilliput", "encode_batch"], options.repeats)
        reading = contest(__file__, ["reading"], 1)["reading"]
        small = statistics.median(peak_memory("small") for _ in range(options.repeats))
        write_text(Path(folder) / "large.txt", options.large * 1_000_000)
        large = peak_memory("large")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    speed = {name: median(outcomes, "speed") for name, outcomes in found.items()}
    size = f"{options.large:,} MB"
    show(
        [
            row("preparing (a)", speed["lilliput"], speed["encode_batch"], "encode_batch", "bytes/s"),
            row(f"memory of preparing {size} (b)", large, 1e9, "1 GB", "bytes"),
            row(f"memory of preparing {size} (b)", large, small, f"{options.small:,} MB", "bytes"),
            row("reading batches (c)", median(reading, "read"), median(reading, "learned"), "training", "tokens/s"),
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
