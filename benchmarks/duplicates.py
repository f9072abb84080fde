"""Finding near duplicates: speed beside datasketch, what both find, and memory for each document.

    python benchmarks/duplicates.py --json

The text: sentences of the storybook drawn into new documents, of which 3% are an earlier one with a few words changed; 10 MB for
the contest, 50 and 200 MB for the speed and memory of ours alone. Both contestants do the same work on one core: words, five-word
shingles, 224 minima, 28 bands of 8, and the exact similarity of what met in a band. Ours reads the file (twice, and starts numba:
half a second that is in its figure); the peer is given its texts in memory. `pip install datasketch` for the peer; without it
only our own figures are told, beside what they must be.
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

FOLDER = "DUPLICATES_FOLDER"  # environment variable by which a contestant finds the texts
SIZES = {"small": 10_000_000, "middle": 50_000_000, "large": 200_000_000}
MARK = "\n<|endoftext|>\n"
THRESHOLD, SHINGLE, BANDS, ROWS = 0.8, 5, 28, 8
WANTED_SPEED, WANTED_BYTES = 10.0, 300.0  # MB/s on one core, bytes for each document


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
    figures = {"speed": found.megabytes_per_second, "pairs": len(found.pairs), "documents": documents}
    return figures | {"memory": float(found.memory_bytes or 0)}


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
    asked = arguments(__doc__ or "", repeats=3)
    if asked.contestant:
        print(json.dumps(CONTESTANTS[asked.contestant]()))
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.environ[FOLDER] = folder
            for name, size in SIZES.items():
                write_text(Path(folder) / f"{name}.txt", size)
            names = [name for name in CONTESTANTS if name != "datasketch" or importlib.util.find_spec(name)]
            found = contest(__file__, names, asked.repeats)
        small, middle, large = (found[f"ours, {name}"] for name in SIZES)
        more = median(large, "documents") - median(middle, "documents")
        slope = (median(large, "memory") - median(middle, "memory")) / more
        rows = [
            row("near duplicates, 200 MB", median(large, "speed"), WANTED_SPEED, "what is asked for", "MB/s"),
            row("near duplicates, memory of a document", slope, WANTED_BYTES, "the most allowed", "bytes"),
        ]
        if peer := found.get("datasketch"):
            rows += [
                row("near duplicates, 10 MB", median(small, "speed"), median(peer, "speed"), "datasketch", "MB/s"),
                row(
                    "near duplicates found, 10 MB", median(small, "pairs"), median(peer, "pairs"), "datasketch", "pairs"
                ),
            ]
        show(rows, asked.json)
