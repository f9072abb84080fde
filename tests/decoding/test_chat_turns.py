"""Chat turns: joining of lines, and the end of sentences. No model is needed."""

from __future__ import annotations

import pytest

from lilliput.decoding.chat_turns import SentenceBuffer, Story, Turn


@pytest.mark.parametrize(
    ("before", "line", "joined"),
    [
        ("", "Once", "Once"),
        ("Once", "upon a time ", " upon a time"),
        ("Once", ", long ago", ", long ago"),
        ("Once", '"Hello," he said', ' "Hello," he said'),
        ("He said: “", "Hello", "Hello"),
        ("The end.\n", "Once", "Once"),
        ("Once", "  ", ""),
        ("", "  Once  ", "Once"),
    ],
)
def test_a_line_is_joined_by_one_space_where_one_is_needed(before: str, line: str, joined: str) -> None:
    assert Story(before).join(line) == joined


def test_the_text_is_the_beginning_and_the_turns() -> None:
    story = Story("Once", [Turn(" upon", " a time."), Turn("", " The end.")])
    assert story.text == "Once upon a time. The end."


@pytest.mark.parametrize(
    ("text", "wanted", "shown"),
    [
        ("He ran. She hid. It rained.", 1, "He ran."),
        ("He ran. She hid. It rained.", 2, "He ran. She hid."),
        ("He ran. She hid.", 2, "He ran. She hid."),  # nothing follows
        ("He ran. She hid. It rained.", None, "He ran. She hid. It rained."),
        ('"Run!" he said. She hid. ', 1, '"Run!"'),
        ('He said, "Run." Then', 1, 'He said, "Run."'),
        ("It cost 3.50 in all. Then", 1, "It cost 3.50 in all."),
        ("Mr. Fox met Mrs. Owl. Then", 1, "Mr. Fox met Mrs. Owl."),
        (". It was red. Then", 1, ". It was red."),  # the first full stop ends the user's sentence
        ("Well... what now?! Then", 2, "Well... what now?!"),
        ("He ran.\nThen", 1, "He ran."),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_end_of_sentences_with_pieces_of_any_size(text: str, wanted: int | None, shown: str, size: int) -> None:
    sentences, passed = SentenceBuffer(wanted), ""
    for start in range(0, len(text), size):
        passed += sentences.push(text[start : start + size])
        if sentences.done:
            break
    assert passed == sentences.text == shown
