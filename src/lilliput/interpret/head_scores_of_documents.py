"""The scores of every head over many documents: what a head does in general, and not in one sentence.

Owns: which documents are read, and how much of each. Does not own: the scores (`head_scores`) or reading
(`attention_capture`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lilliput.data.prepare.token_files import TokenFile
from lilliput.data.progress import Report, silent
from lilliput.decoding.writer import Writer
from lilliput.errors import UserError
from lilliput.interpret.attention_capture import HeadChoice, capture_ids
from lilliput.interpret.head_scores import Tally


def summarise_documents(
    writer: Writer,
    file: TokenFile,
    documents: int = 100,
    seed: int = 0,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    report: Report = silent,
) -> Tally:
    """Over documents drawn by the seed (all, if there are no more), each from its beginning, as far as the context goes."""
    tally, choice = Tally(), HeadChoice(layers, heads)
    chosen = np.sort(np.random.default_rng(seed).permutation(file.documents)[:documents])
    context, start = writer.config.model.context, [writer.tokenizer.start]
    first = [] if writer.config.model.task == "classifier" else start
    for done, document in enumerate(chosen, start=1):
        # Without the end, which a model predicts and never reads.
        ids = [*first, *file.tokens[file.offsets[document] : file.offsets[document + 1] - 1].tolist()][:context]
        if len(ids) >= 2:
            tally.add(capture_ids(writer, ids, choice))
        report("looking at documents", done, len(chosen))
    if not tally.texts:
        raise UserError("no document has two tokens: there is nothing to look at", fix="a split with longer texts")
    return tally
