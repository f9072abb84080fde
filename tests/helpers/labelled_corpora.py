"""Small labelled corpora: the label is a speaker with typical words."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lilliput.data.prepare.token_files import TokenFile

SPEAKERS = {"bee": "honey wax clover hive", "bear": "river salmon winter honey", "owl": "moon mouse winter night"}


def token_file(lengths: list[int], below: int = 15, seed: int = 0, ends: bool = True) -> TokenFile:
    """Return END d1 END d2 END ... with documents of these lengths and ids below a bound; END is 16; three classes in turn."""
    generator = np.random.default_rng(seed)
    tokens, offsets = [16], [1]
    for length in lengths:
        tokens += [*generator.integers(below, size=length).tolist(), 16]
        offsets.append(len(tokens))
    labels = np.arange(len(lengths), dtype=np.int32) % 3
    return TokenFile(np.array(tokens, np.uint16), np.array(offsets), np.array(lengths), labels=labels, ends=ends)


def write_labelled(folder: Path, name: str = "said.tsv", documents: int = 40, first: int = 0) -> Path:
    """Write `label TAB text` lines of different lengths, with typical words of each speaker in turn."""
    lines = []
    for number in range(first, first + documents):
        speaker = list(SPEAKERS)[number % 3]
        words = SPEAKERS[speaker].split()
        said = [words[(number + at) % 4] if at % 2 else "the" for at in range(2 + number % 9)]
        lines.append(f"{speaker}\t{' '.join(said)}")
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def labelled_changes(folder: Path) -> dict[str, str]:
    """Return changes of `small_config` for a classifier with a test set."""
    train, test = write_labelled(folder), write_labelled(folder, "heard.tsv", 11, first=50)
    return {
        "data__source": str(train),
        "data__labelled": "true",
        "data__validation_share": "0.2",
        "data__tests": f"heard={test}",
        "tokenizer__kind": "word",
        "model__task": "classifier",
        "model__classes": "3",
        "model__context": "8",
    }
