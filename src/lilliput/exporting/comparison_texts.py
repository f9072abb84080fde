"""The texts on which an export is compared with its run: excerpts of the validation split, or built-in texts.

Owns: the built-in texts, and the choice and length of excerpts. Does not own: the comparison (`comparison`).
"""

from __future__ import annotations

import numpy as np

from lilliput.data.progress import Report
from lilliput.decoding.run_data import open_prepared
from lilliput.decoding.writer import Writer
from lilliput.errors import UserError

COUNT = 20
EXCERPT = 300  # characters; one excerpt is as long as the context
SEARCHED = 200  # documents

# Part of every comparison: each has found a difference between tokenizers.
EDGE_CASES = (
    "",
    " ",
    "  two spaces, then a line end \n\n\t and a tab ",
    "Zoë's naïve café: “déjà vu” — 42 °C, 日本語, emoji 🦊🌙.",
    "Some text.<|endoftext|>More text after the marker. <eos> <pad> <unk> </s>",
)
# Used where the data of the run is not available.
BUILT_IN = (
    "Once upon a time there was a small engine that lived near a river. " * 12,
    "Once upon a time",
    "The old bear went to the sea and came back with a bell.",
    '"Where are you going?" asked the fox. "To the market," said the bee.',
    "One day, Lily found a red thimble in the garden. She showed it to her grandfather.",
    "It was raining. Tom could not go outside, so he read a book about ships.",
    "Every owl sang of the moon, 1, 2, 3 times: 3.50, 1,000 and 10:30.",
    "don't ice-cream kids' U.S. ... -- (brackets) [more] {and more}",
    "UPPER CASE and lower case, MiXeD cAsE.",
    "We will work together to make this country strong, and we will not fail.",
    "def function(x):\n    return x + 1\n",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    "The king lost his lantern.\nThe wind found it.\n\nThe end.",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbb",
    "Words that a tokenizer has not seen: quixotic zephyr vexed jukebox.",
)


def find_texts(writer: Writer, report: Report) -> tuple[list[str], str]:
    """Return 20 texts and the name of their source. The first reaches the end of the context, if any document does."""
    excerpts = validation_excerpts(writer, report)
    needed = COUNT - len(EDGE_CASES)
    if len(excerpts) < needed:
        return [*BUILT_IN[:needed], *EDGE_CASES], "built-in texts"
    return [*excerpts, *EDGE_CASES], f"{needed} excerpts of the validation split and {len(EDGE_CASES)} built-in texts"


def validation_excerpts(writer: Writer, report: Report) -> list[str]:
    """Return excerpts of documents of the validation split; none if the data is not prepared on this machine."""
    try:
        prepared = open_prepared(writer, report, build=False)
    except UserError:
        return []
    file, context, found = prepared.split("validation"), writer.model.settings.context, list[str]()
    lengths = np.minimum(np.diff(file.offsets[: SEARCHED + 1]), context)
    longest = int(lengths.argmax())
    for number in (longest, *(number for number in range(len(lengths)) if number != longest)):
        start, end = int(file.offsets[number]), int(file.offsets[number + 1])
        # Twice the context: the text is cut, so its tokens may differ at the end.
        text = writer.tokenizer.decode(file.tokens[start : min(end, start + 2 * context)].tolist())
        if found and len(text) > EXCERPT:
            text = text[:EXCERPT].rpartition(" ")[0] or text[:EXCERPT]
        if text.strip():
            found.append(text)
        if len(found) == COUNT - len(EDGE_CASES):
            break
    return found
