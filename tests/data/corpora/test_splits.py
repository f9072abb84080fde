"""Properties of the random split and of splitting a single document."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from lilliput.data.corpora.splits import block_length, cut_document, member_of_validation


@given(st.integers(0, 2**32 - 1), st.floats(0.001, 0.999), st.integers(2, 500))
def test_share_is_exact_and_no_split_is_empty(seed: int, share: float, total: int) -> None:
    exact = Fraction(repr(share))
    assert block_length(share) == max(2, -(-1 // min(exact, 1 - exact)))
    member = member_of_validation(seed, share, min(total, block_length(share)))
    kept = sum(map(member, range(total)))
    assert 1 <= kept <= total - 1
    assert abs(kept - total * share) <= 1
    assert [member(index) for index in (1, 0, total - 1)] == [member(index) for index in (1, 0, total - 1)]


@given(st.text(min_size=2), st.floats(0.01, 0.99))
def test_cutting_a_document_loses_only_white_space(text: str, share: float) -> None:
    text = text.strip()
    if len(text) < 2:
        return
    first, second, _ = cut_document(text, share)
    assert first
    assert second
    assert text.startswith(first)
    assert text.endswith(second)
    assert text[len(first) : len(text) - len(second)].strip() == ""
