"""Progress of long work.

Owns: the type of a progress callback, and reporting while a stream of texts is read. Does not own: progress bars
(`api.consoles`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

STEP = 1 << 18

# Arguments: phase, bytes done, bytes in total (None: unknown). 0 of 0 bytes: `phase` is a message to print once.
Report = Callable[[str, int, int | None], None]


def silent(phase: str, done: int, total: int | None) -> None:
    """Ignore progress."""


def with_progress(texts: Iterable[str], phase: str, total: int | None, report: Report) -> Iterator[str]:
    """Yield the texts unchanged; report every `STEP` characters and at the end."""
    done, last = 0, 0
    for text in texts:
        yield text
        done += len(text)  # characters approximate bytes well enough for a progress bar
        if done - last > STEP:
            report(phase, done, total)
            last = done
    report(phase, done, done)
