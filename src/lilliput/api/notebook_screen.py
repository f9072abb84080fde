"""The progress of one call in a notebook: printed lines and a bar, redrawn in place.

Owns: the HTML, how often it is redrawn, and the display of IPython. Does not own: what is printed (`consoles`,
`training.observers`). Widgets are not used: the bar of rich requires ipywidgets in a notebook.
"""

from __future__ import annotations

import html
import importlib
import io
import time
from collections.abc import Callable

from rich.console import Console

WIDTH = 110  # columns of printed lines
MOST_LINES = 300  # older lines are dropped
SECONDS = 0.2  # between redraws of the bar

Show = Callable[[str], None]  # replaces the HTML of the cell


def notebook_display() -> Show:
    """Add an output to the cell; return a function that replaces its HTML."""
    display = importlib.import_module("IPython.display")
    handle = display.display(display.HTML(""), display_id=True)

    def show(text: str) -> None:
        handle.update(display.HTML(text))

    return show


class NotebookScreen(io.StringIO):
    """The file of a console whose lines are shown with a bar below them."""

    def __init__(self, show: Show) -> None:
        super().__init__()
        self.show = show
        self.text = ""
        self.share: float | None = None
        self.figures = ""
        self.drawn = 0.0
        self.console = Console(
            file=self, width=WIDTH, color_system=None, force_terminal=False, force_jupyter=False, highlight=False
        )

    def write(self, text: str) -> int:
        lines = (self.text + text).split("\n")
        self.text = "\n".join(lines[-MOST_LINES:])
        self.draw()
        return len(text)

    def bar(self, share: float | None, figures: str) -> None:
        """Show a bar; `share` None: the total is unknown."""
        self.share, self.figures = share, figures
        if time.monotonic() - self.drawn >= SECONDS:
            self.draw()

    def report(self, what: str, done: int, total: int | None) -> None:
        """Show the progress of a `data.progress.Report`."""
        if done == total == 0:
            self.console.print(what, markup=False)
        else:
            self.bar(done / total if total else None, what)

    def clear_bar(self) -> None:
        self.share, self.figures = None, ""
        self.draw()

    def draw(self) -> None:
        self.drawn = time.monotonic()
        self.show(self.html())

    def html(self) -> str:
        parts = []
        if self.text.strip():
            parts.append(f'<pre style="white-space: pre-wrap; margin: 0">{html.escape(self.text.rstrip())}</pre>')
        if self.figures:
            value = "" if self.share is None else f' value="{self.share:.4f}"'
            figures = f"<code>{html.escape(self.figures)}</code>"
            parts.append(f'<div><progress max="1"{value} style="width: 16em"></progress> {figures}</div>')
        return "".join(parts)
