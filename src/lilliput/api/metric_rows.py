"""The log of a run: rows of metrics.jsonl, as a table of pandas and as a plot.

Owns: `MetricRows` and the plot of the losses. Does not own: the rows (`training.events`), reading them
(`storage.run_folders`), or the style of plots (`reports.plot_style`).
"""

from __future__ import annotations

import importlib
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, overload

from matplotlib.figure import Figure

from lilliput.errors import UserError
from lilliput.reports.curves import running_mean
from lilliput.reports.plot_style import PALETTE, WIDTH, styled
from lilliput.reports.run_plots import column

Row = dict[str, Any]


class LossFigure(Figure):
    """A figure that a notebook shows without pyplot."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png", dpi=100)
        return data.getvalue()


class MetricRows(Sequence[Row]):
    """The rows of metrics.jsonl, in their order. The key `event` names the kind of a row."""

    def __init__(self, rows: Sequence[Row], title: str = "") -> None:
        self._rows = list(rows)
        self._title = title

    def select(self, event: str) -> MetricRows:
        """Return the rows of one kind: session, step, saved, evaluation, test, warning or finished."""
        return MetricRows([row for row in self._rows if row["event"] == event], self._title)

    def to_pandas(self) -> Any:
        """Return a DataFrame with a column per key. Requires pandas."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            what, fix = "to_pandas requires pandas (not installed)", "run pip install pandas"
            raise UserError(what, fix=fix, code="package.missing") from None
        return pandas.DataFrame(self._rows)

    def plot(self) -> LossFigure:
        """Return a figure of the training loss (of each logged step, and its running mean) and the validation loss."""
        steps = self.select("step")
        checks = [row for row in self.select("evaluation") if not row.get("whole")]
        if not steps:
            what, fix = "the log has no steps", "train the run first"
            raise UserError(what, self._title or None, fix=fix, code="run.no-metrics")
        with styled():
            figure = LossFigure(figsize=(WIDTH, 3.0), layout="constrained")
            axes = figure.subplots()
            at, loss = column(steps, "step"), column(steps, "loss")
            axes.plot(at, loss, color=PALETTE[1], alpha=0.25, linewidth=1.0)
            axes.plot(at, running_mean(loss), color=PALETTE[1], label="training")
            if checks:
                axes.plot(
                    column(checks, "step"), column(checks, "loss"), color=PALETTE[2], marker="o", label="validation"
                )
            axes.set(xlabel="step", ylabel="loss", title=self._title)
            axes.legend(frameon=False)
        return figure

    @overload
    def __getitem__(self, at: int) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> MetricRows: ...

    def __getitem__(self, at: int | slice) -> Row | MetricRows:
        return MetricRows(self._rows[at], self._title) if isinstance(at, slice) else self._rows[at]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        counts = Counter(row["event"] for row in self._rows)
        kinds = ", ".join(f"{count} {event}" for event, count in counts.items())
        return f"MetricRows({len(self)} rows: {kinds})"
