"""Statistics of the built-in corpus: `python benchmarks/storybook.py`. There is no peer to compare with."""

from __future__ import annotations

import re
import time
from itertools import islice

from lilliput.data.storybook import floor_bits_per_byte, score, size, stories

SEED = 5


def draw(split: str, count: int) -> tuple[list[str], float]:
    """Return stories, and the speed of generating them in MB/s."""
    began = time.perf_counter()
    texts = list(islice(stories(split, SEED), count))
    return texts, sum(len(text.encode()) for text in texts) / (time.perf_counter() - began) / 1e6


if __name__ == "__main__":
    train, train_speed = draw("train", 6000)
    validation, validation_speed = draw("validation", 400)
    began = time.perf_counter()
    for text in validation:
        assert score(text).valid
    seconds = (time.perf_counter() - began) / len(validation)
    lengths = [len(text.split()) for text in train]
    words = {word.lower() for text in train for word in re.findall(r"[A-Za-z']+", text)}
    print(f"sampling          {train_speed:.1f} MB/s (train), {validation_speed:.2f} MB/s (validation)")
    print(f"scoring           {1000 * seconds:.2f} ms per story")
    print(f"floor             {floor_bits_per_byte(validation):.4f} bits per byte on {len(validation)} stories")
    print(f"words per story   {min(lengths)} to {max(lengths)}, mean {sum(lengths) / len(lengths):.0f}")
    print(f"distinct words    {len(words)}")
    print(f"stories           more than 10^{int(size())}")
