"""How long work tells of itself, to whoever shows it.

Owns: the one type of such a report, and telling while a stream of texts goes by. Does not own: bars
(`cli.output`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

STEP = 1 << 18

# What is being done, bytes done, bytes in all (None: unknown). With 0 of 0 it is a sentence that is told once.
Report = Callable[[str, int, int | None], None]


def silent(phase: str, done: int, total: int | None) -> None:
    """For callers who show no progress."""


def told(texts: Iterable[str], phase: str, total: int | None, report: Report) -> Iterator[str]:
    """The texts as they are, with a report every now and then and at the end."""
    done, last = 0, 0
    for text in texts:
        yield text
        done += len(text)  # characters, which are bytes near enough for a bar
        if done - last > STEP:
            report(phase, done, total)
            last = done
    report(phase, done, done)
