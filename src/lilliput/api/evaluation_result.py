"""The result of `Run.evaluate`: an object with fields that prints as tables.

Owns: `EvaluationResult`, and the call of the evaluation with its progress. Does not own: the metrics
(`evaluation.evaluate`), or the tables (`evaluation_tables`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from lilliput.api.arguments import GENERATE_KEYWORDS, python_errors
from lilliput.api.consoles import choose_output
from lilliput.api.evaluation_tables import heading, main_table, sentences, tables
from lilliput.api.rendering import as_html, as_text
from lilliput.evaluation.overlap_settings import OverlapTask


class EvaluationResult(Mapping[str, Any]):
    """Metrics of a run on some documents. `print` shows them as tables.

    Each key of `lilliput evaluate --json` is a field: `result.perplexity` is `result["perplexity"]`. A metric that the task
    does not have is None.
    """

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._found = dict(found)

    @property
    def loss(self) -> float | None:
        """Nats per token; of a classifier None."""
        return self._found.get("loss")

    @property
    def perplexity(self) -> float | None:
        return self._found.get("perplexity")

    @property
    def bits_per_byte(self) -> float | None:
        return self._found.get("bits_per_byte")

    @property
    def accuracy(self) -> float | None:
        """The share of correct labels; of a language model None."""
        return self._found.get("accuracy")

    @property
    def interval(self) -> dict[str, list[float]]:
        """The 95% confidence interval of each metric; empty if there are too few documents."""
        return dict(self._found.get("interval") or {})

    @property
    def baselines(self) -> list[dict[str, Any]]:
        """A row per baseline; empty without `baselines=True`."""
        return list(self._found.get("baselines", []))

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `lilliput evaluate --json` prints."""
        copied: dict[str, Any] = json.loads(json.dumps(self._found))
        return copied

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._found:
            raise AttributeError(f"the evaluation has no metric {name!r}")
        return self._found[name]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._found})

    def __getitem__(self, name: str) -> Any:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        values = {name: self._found.get(name) for name in ("loss", "perplexity", "bits_per_byte", "accuracy")}
        shown = ", ".join(f"{name} {value:.4f}" for name, value in values.items() if value is not None)
        return f"EvaluationResult({self._found['run']} on {self._found['on']}: {shown})"

    def __str__(self) -> str:
        return as_text(self._parts())

    def _repr_html_(self) -> str:
        return as_html(self._parts())

    def _parts(self) -> Iterator[RenderableType]:
        yield Text.from_markup(heading(self._found))
        yield main_table(self._found)
        for sentence in sentences(self._found):
            yield Text(sentence)
        yield from tables(self._found)


def evaluate_run(
    checkpoint: Path, progress: bool, *, overlap: bool | OverlapTask, **arguments: Any
) -> EvaluationResult:
    from lilliput.evaluation.evaluate import evaluate

    task = OverlapTask() if overlap is True else overlap or None
    with python_errors(GENERATE_KEYWORDS), choose_output(progress).reporting() as report:
        return EvaluationResult(evaluate(checkpoint, overlap=task, report=report, **arguments))
