"""Preparing text: speed beside the tokenizers library alone, memory whatever the size, and reading back.

    python benchmarks/preparing.py --json

The text: stories of ../shared/data/tinystories drawn with numbers put into them, 100 MB and 1 GB, with GPT-2's tokens. It is made
in a temporary folder and removed (`--small`, `--large` in megabytes for other sizes).
(a) `prepare` from the file to the sealed folder (reading, hashing the source, workers, writing, flushing, exact duplicates, all
    figures) beside `encode_batch` of the library on all cores, which is given the same documents in memory, 1,000 at a time, and
    whose tokens go nowhere. They take turns; medians.
(b) The most memory of the whole command with its workers: the sum of RssAnon (pages of their own, not of files) over all
    processes, looked at every 50 ms. It is highest while workers load the tokenizer; how these moments meet differs by some
    percent from run to run, so that the smaller text has the median of several.
(c) Batches of 16 x 256 tokens from the prepared file, beside the tokens that the net of benchmarks/training.py learns from.
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

FOLDER = "PREPARING_FOLDER"  # environment variable by which a contestant finds the texts
DATA = Path(os.environ.get("LILLIPUT_DATA") or Path(__file__).parents[2] / "shared" / "data")
MARK = "<|endoftext|>"
BATCH, CONTEXT = 16, 256


def write_text(path: Path, size: int) -> None:
    """Stories with numbers in them: as many different documents as there are, of words that the tokenizer has met."""
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
    next(batches)  # the order of the first epoch is drawn
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
    """Bytes of their own that the command and its workers had at most, together."""
    cache = tempfile.mkdtemp(dir=os.environ[FOLDER])
    command = [sys.executable, "-m", "lilliput", "prepare", *settings(text, cache), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        most = max(most, sum(own_memory(one) for one in family(process.pid)))
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"preparing failed with code {process.returncode}")
    print(f"  memory of {text}: {most / 1e6:.0f} MB", file=sys.stderr, flush=True)
    return most


def family(parent: int) -> Iterator[int]:
    yield parent
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # it ended meanwhile
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
    parser.add_argument("--json", action="store_true", help="a JSON list on stdout")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each contestant [3]")
    parser.add_argument("--small", type=int, default=100, help="megabytes of the smaller text [100]")
    parser.add_argument("--large", type=int, default=1000, help="megabytes of the larger text [1000]")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.contestant:
        print(json.dumps(CONTESTANTS[asked.contestant]()))
        return
    folder = tempfile.mkdtemp(prefix="preparing-")
    os.environ[FOLDER] = folder
    try:
        write_text(Path(folder) / "small.txt", asked.small * 1_000_000)
        found = contest(__file__, ["lilliput", "encode_batch"], asked.repeats)
        reading = contest(__file__, ["reading"], 1)["reading"]
        small = statistics.median(peak_memory("small") for _ in range(asked.repeats))
        write_text(Path(folder) / "large.txt", asked.large * 1_000_000)
        large = peak_memory("large")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    speed = {name: median(outcomes, "speed") for name, outcomes in found.items()}
    sizes = f"{asked.large:,} MB"
    show(
        [
            row("preparing (a)", speed["lilliput"], speed["encode_batch"], "encode_batch", "bytes/s"),
            row(f"memory of preparing {sizes} (b)", large, 1e9, "1 GB", "bytes"),
            row(f"memory of preparing {sizes} (b)", large, small, f"{asked.small:,} MB", "bytes"),
            row(
                "reading batches back (c)", median(reading, "read"), median(reading, "learned"), "training", "tokens/s"
            ),
        ],
        asked.json,
    )


if __name__ == "__main__":
    main()
