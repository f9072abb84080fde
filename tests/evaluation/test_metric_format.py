"""Text form of metrics."""

from __future__ import annotations

from lilliput.evaluation.metric_format import format_figures


def test_format_figures() -> None:
    assert format_figures({"perplexity": None, "bits_per_byte": None, "accuracy": 0.5}) == ["accuracy 50.0%"]
    assert format_figures({"perplexity": 8.2e307}) == ["perplexity 8.2e+307"]
    assert format_figures({"perplexity": 1234.567, "bits_per_byte": 0.98765}) == [
        "perplexity 1,234.57",
        "0.9877 bits/byte",
    ]
