"""The result of `Run.predict`: the label of a text, with the probabilities of all labels.

Owns: `Prediction` and `Predictions`. Does not own: the probabilities (`evaluation.label_prediction`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, overload

from lilliput.api.rendering import as_html, rows_table


@dataclass(frozen=True)
class Prediction:
    """The most probable label of a text. `truncated`: the text is longer than the context, only its beginning was read."""

    text: str
    label: str
    probability: float
    probabilities: dict[str, float]
    tokens: int
    truncated: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __repr__(self) -> str:
        return f"Prediction({self.label!r}, probability {self.probability:.4f})"

    def _repr_html_(self) -> str:
        ranked = sorted(self.probabilities.items(), key=lambda pair: -pair[1])
        return as_html([rows_table([{"label": label, "probability": probability} for label, probability in ranked])])


class Predictions(Sequence[Prediction]):
    """A prediction per text, in the order of the texts."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found
        self._rows = [Prediction(**row) for row in found["predictions"]]

    @property
    def labels(self) -> list[str]:
        """All labels that the model knows."""
        return list(self._found["labels"])

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `lilliput predict --json` prints."""
        return dict(self._found)

    @overload
    def __getitem__(self, at: int) -> Prediction: ...

    @overload
    def __getitem__(self, at: slice) -> list[Prediction]: ...

    def __getitem__(self, at: int | slice) -> Prediction | list[Prediction]:
        return self._rows[at]

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Predictions({len(self)} texts, labels {', '.join(self.labels)})"

    def _repr_html_(self) -> str:
        rows = [{"text": row.text, "label": row.label, "probability": row.probability} for row in self]
        return as_html([rows_table(rows)])


def predict_labels(checkpoint: Path, texts: str | Sequence[str], device: str) -> Predictions:
    from lilliput.evaluation.label_prediction import predict

    return Predictions(predict(checkpoint, texts, device))
