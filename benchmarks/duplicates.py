"""Near-duplicate search compared with datasketch: speed, number of pairs found, and memory per document.

    python benchmarks/duplicates.py --json

Text: documents of random storybook sentences; 3% are copies of an earlier document with a few words changed. 10 MB for the
comparison; 50 and 200 MB for speed and memory of Lilliput alone. Both do the same work on one core: words, five-word shingles,
224 MinHash values, 28 bands of 8, exact similarity of the pairs that share a band. The time of Lilliput includes reading the
file twice and the start of numba (half a second); datasketch gets its texts in memory. Install it with `pip install datasketch`;
without it, Lilliput is compared with its targets only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import tempfile
import time
from itertools import islice
from pathlib import Path

from contest import arguments, contest, median, row, show

FOLDER = "DUPLICATES_FOLDER"  # environment variable with the folder of the texts
SIZES = {"small": 10_000_000, "middle": 50_000_000, "large": 200_000_000}
MARK = "\n<|endoftext|>\n"
THRESHOLD, SHINGLE, BANDS, ROWS = 0.8, 5, 28, 8
WANTED_SPEED, WANTED_BYTES = 10.0, 300.0  # MB/s on one core, bytes per document


def write_text(path: Path, size: int) -> None:
    from lilliput.data.storybook import stories

    chance = random.Random(1)
    sentences = [part for story in islice(stories("train", 1), 1500) for part in re.split(r"(?<=[.!?]) ", story)]
    recent: list[str] = []
    written = 0
    with open(path, "w", encoding="utf-8") as file:
        while written < size:
            text = " ".join(chance.choices(sentences, k=chance.randrange(10, 22)))
            if recent and chance.random() < 0.03:
                words = chance.choice(recent).split(" ")
                for _ in range(chance.randrange(1, 8)):
                    words[chance.randrange(len(words))] = chance.choice(("moon", "bell", "blue"))
                text = " ".join(words)
            recent = [*recent[-49:], text]
            written += file.write(text + MARK)


def ours(name: str) -> dict[str, float]:
    from lilliput.data.corpora import open_corpus
    from lilliput.data.duplicates import find_near
    from lilliput.settings.tree import DataSettings

    corpus = open_corpus(DataSettings(source=str(Path(os.environ[FOLDER]) / f"{name}.txt")))
    documents = sum(1 for _ in corpus.stream())
    found = find_near(corpus, THRESHOLD)
    metrics = {"speed": found.megabytes_per_second, "pairs": len(found.pairs), "documents": documents}
    return metrics | {"memory": float(found.memory_bytes or 0)}


def datasketch() -> dict[str, float]:
    from datasketch import MinHash, MinHashLSH

    text = (Path(os.environ[FOLDER]) / "small.txt").read_text("utf-8")
    documents = text.removesuffix(MARK).split(MARK)
    began = time.perf_counter()
    index = MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
    sets: list[set[bytes]] = []
    pairs = 0
    for number, document in enumerate(documents):
        words = re.findall(rb"\w+", document.lower().encode())
        shingles = {b" ".join(words[at : at + SHINGLE]) for at in range(max(1, len(words) - SHINGLE + 1))}
        sketch = MinHash(num_perm=BANDS * ROWS)
        sketch.update_batch(shingles)
        pairs += sum(
            len(shingles & sets[other]) >= THRESHOLD * len(shingles | sets[other]) for other in index.query(sketch)
        )
        index.insert(number, sketch, check_duplication=False)
        sets.append(shingles)
    return {"speed": len(text) / (time.perf_counter() - began) / 1e6, "pairs": pairs, "documents": len(documents)}


CONTESTANTS = {
    "ours, small": lambda: ours("small"),
    "ours, middle": lambda: ours("middle"),
    "ours, large": lambda: ours("large"),
    "datasketch": datasketch,
}

if __name__ == "__main__":
    options = arguments(__doc__ or "", repeats=3)
    if options.contestant:
        print(json.dumps(CONTESTANTS[options.contestant]()))
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.environ[FOLDER] = folder
            for name, size in SIZES.items():
                write_text(Path(folder) / f"{name}.txt", size)
            names = [name for name in CONTESTANTS if name != "datasketch" or importlib.util.find_spec(name)]
            found = contest(__file__, names, options.repeats)
        small, middle, large = (found[f"ours, {name}"] for name in SIZES)
        more = median(large, "documents") - median(middle, "documents")
        slope = (median(large, "memory") - median(middle, "memory")) / more
        rows = [
            row("near duplicates, 200 MB", median(large, "speed"), WANTED_SPEED, "target", "MB/s"),
            row("near duplicates, memory per document", slope, WANTED_BYTES, "limit", "bytes"),
        ]
        if peer := found.get("datasketch"):
            rows += [
                row("near duplicates, 10 MB", median(small, "speed"), median(peer, "speed"), "datasketch", "MB/s"),
                row(
                    "near duplicates found, 10 MB", median(small, "pairs"), median(peer, "pairs"), "datasketch", "pairs"
                ),
            ]
        show(rows, options.json)
