"""The data that a run was trained on, opened with the run's own tokenizer.

Owns: finding the prepared data of a loaded run, and the note if it has changed. Does not own: preparing it
(`data.prepare`), or its use (`ngram_mixture`, `evaluation`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lilliput.data.prepare import prepare
from lilliput.data.prepare.token_files import Prepared
from lilliput.data.progress import Report
from lilliput.data.tokenizers import learns

if TYPE_CHECKING:
    from lilliput.decoding.writer import Writer


def open_prepared(writer: Writer, report: Report, build: bool = True) -> Prepared:
    """Prepare the run's data with the run's tokenizer: the files it was trained on, if they still exist.

    Without `build`, data that is not prepared raises an error.
    """
    config, tokenizer = writer.config, writer.tokenizer
    prepared = prepare(config, report, None if learns(config.tokenizer) else tokenizer, build=build)
    if prepared.tokenizer.sha256 != tokenizer.sha256:
        prepared = prepare(config, report, tokenizer, build=build)
    assert writer.checkpoint is not None
    if writer.checkpoint.data_fingerprint() != prepared.fingerprint:
        report("the data has changed since the run was trained; it was trained on other texts", 0, 0)
    return prepared
