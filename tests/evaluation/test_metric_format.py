"""Text form of metrics."""

from __future__ import annotations

import pytest

from lilliput.evaluation.metric_format import PERPLEXITY, PLAIN, SHARE, NumberForm, format_figures, format_part


def test_format_figures() -> None:
    assert format_figures({"perplexity": None, "bits_per_byte": None, "accuracy": 0.5}) == ["accuracy 50.0%"]
    assert format_figures({"perplexity": 8.2e307}) == ["perplexity 8.2e+307"]
    assert format_figures({"perplexity": 1234.567, "bits_per_byte": 0.98765}) == [
        "perplexity 1,234.57",
        "0.9877 bits/byte",
    ]


def test_the_ends_of_an_interval_differ() -> None:
    narrow = (1.79012, 1.79048)
    assert PERPLEXITY.interval_text(narrow) == "1.79012 to 1.79048"
    assert PERPLEXITY.text(1.7903, narrow) == "1.79030"
    assert PERPLEXITY.interval_text((110.0, 118.0)) == "110.00 to 118.00"
    assert SHARE.interval_text((0.96301, 0.96312)) == "96.301% to 96.312%"
    assert NumberForm(3, sign="+").interval_text((-0.00004, -0.00001)) == "-0.000040 to -0.000010"
    assert PLAIN.interval_text((1.0, 1.0)) == "1.0000 to 1.0000" and PLAIN.interval_text(None) == ""


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.5, "50.0%"), (1.0, "100.0%"), (0.0, "0.0%"), (0.9996, "99.96%"), (0.00004, "0.004%"), (0.87, "87.0%")],
)
def test_a_part_is_shown_neither_as_nothing_nor_as_the_whole(share: float, text: str) -> None:
    assert format_part(share) == text
