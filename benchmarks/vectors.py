"""Word vectors from files of a gigabyte and more: memory and time compared with gensim.

    python benchmarks/vectors.py --json

Two files are written to a temporary folder (2.5 GB): FastText's binary format with 400,000 words and 600,000 rows of n-grams,
and its text format with 420,000 words, both of width 300. Each contestant returns the vectors of the same 30,000 words, a
thousand of which are not in the files. Memory is RssAnon (Linux), sampled every 10 ms, minus its value at the start; it excludes
pages of mapped files, which the system can free at any time. gensim loads the whole file.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from contest import arguments, contest, median, row, show

WIDTH, BINARY_WORDS, BUCKET, TEXT_WORDS, WANTED, ABSENT = 300, 400_000, 600_000, 420_000, 30_000, 1_000
FOLDER = "LILLIPUT_BENCHMARK_VECTORS"  # environment variable with the folder of the files
FILES = {"binary": "large.bin", "text": "large.vec"}


def word(number: int) -> str:
    return f"word{number}"


def wanted(kind: str) -> list[str]:
    known = BINARY_WORDS if kind == "binary" else TEXT_WORDS
    step = known // (WANTED - ABSENT)
    return [word(number * step) for number in range(WANTED - ABSENT)] + [f"absent{n}" for n in range(ABSENT)]


def write_binary(path: Path) -> None:
    from lilliput.data.vectors.fasttext_format import MAGIC

    generator = np.random.default_rng(0)
    with open(path, "wb") as file:
        file.write(struct.pack("<ii12id", MAGIC, 12, WIDTH, 5, 5, 1, 5, 1, 2, 2, BUCKET, 3, 6, 100, 1e-4))
        file.write(struct.pack("<iiiqq", BINARY_WORDS, BINARY_WORDS, 0, BINARY_WORDS, -1))
        file.writelines(word(number).encode() + b"\0" + struct.pack("<qb", 1, 0) for number in range(BINARY_WORDS))
        file.write(struct.pack("<?qq", False, BINARY_WORDS + BUCKET, WIDTH))
        for _ in range((BINARY_WORDS + BUCKET) // 10_000):
            file.write(generator.standard_normal((10_000, WIDTH), dtype=np.float32).tobytes())


def write_text(path: Path) -> None:
    generator = np.random.default_rng(1)
    rows = [" ".join(f"{number:.5f}" for number in generator.normal(size=WIDTH)) for _ in range(1_000)]
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{TEXT_WORDS} {WIDTH}\n")
        file.writelines(f"{word(number)} {rows[number % len(rows)]}\n" for number in range(TEXT_WORDS))


def ours(path: Path, words: list[str]) -> None:
    from lilliput.data.progress import silent
    from lilliput.data.vectors.lookup import look_up
    from lilliput.data.vectors.vector_files import open_vectors
    from lilliput.settings.tree import VectorSettings

    found = look_up(open_vectors(path), list(words), VectorSettings(), silent)
    assert found.covered.sum() == len(words) - (0 if path.suffix == ".bin" else ABSENT)


def gensim(path: Path, words: list[str]) -> None:
    from gensim.models import KeyedVectors
    from gensim.models.fasttext import load_facebook_vectors

    load = load_facebook_vectors if path.suffix == ".bin" else KeyedVectors.load_word2vec_format
    known = load(str(path))
    table = np.stack([known[one] for one in words if path.suffix == ".bin" or one in known])
    assert len(table) >= WANTED - ABSENT


CONTESTANTS: dict[str, Callable[[Path, list[str]], None]] = {"ours": ours, "gensim": gensim}


def own_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def measure(name: str) -> dict[str, float]:
    """Run one contestant in this process. Return its seconds and its peak memory in MB."""
    contestant, kind = name.split()
    path = Path(os.environ[FOLDER]) / FILES[kind]
    before, most, done = own_memory(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.01):
            most = max(most, own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    CONTESTANTS[contestant](path, wanted(kind))
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    return {"seconds": seconds, "memory": (max(most, own_memory()) - before) / 1e6}


if __name__ == "__main__":
    options = arguments(__doc__ or "", repeats=1)
    if options.contestant:
        print(json.dumps(measure(options.contestant)))
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.environ[FOLDER] = folder
            write_binary(Path(folder) / FILES["binary"])
            write_text(Path(folder) / FILES["text"])
            sizes = {kind: (Path(folder) / name).stat().st_size / 1e6 for kind, name in FILES.items()}
            found = contest(
                __file__, [f"{contestant} {kind}" for kind in FILES for contestant in CONTESTANTS], options.repeats
            )
        rows = []
        for kind, size in sizes.items():
            mine, theirs = found[f"ours {kind}"], found[f"gensim {kind}"]
            memory, seconds = median(mine, "memory"), median(mine, "seconds")
            rows.append(row(f"{kind}: memory", memory, size, "size of the file", "MB"))
            rows.append(row(f"{kind}: memory", memory, median(theirs, "memory"), "gensim", "MB"))
            rows.append(row(f"{kind}: time", seconds, median(theirs, "seconds"), "gensim", "s"))
        show(rows, options.json)
