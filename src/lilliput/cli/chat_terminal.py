"""Terminal input and output of `lilliput chat`: Ctrl-C, completion, columns."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rich.table import Table
from rich.text import Text

from lilliput.cli.output import stdout_console


@contextmanager
def interruptible(at_once: bool) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed. The second Ctrl-C raises; with `at_once`, the first."""
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed or at_once:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def put(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def print_columns(rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    stdout_console().print(table)


def complete(words: list[str]) -> None:
    """Complete these words with Tab, and enable history with the arrow keys, if readline is available."""
    with suppress(ImportError):
        import readline

        def completion(text: str, state: int) -> str | None:
            found = [word for word in words if text and word.startswith(text)]
            return found[state] if state < len(found) else None

        readline.set_completer_delims("")
        readline.set_completer(completion)
        readline.parse_and_bind("tab: complete")
