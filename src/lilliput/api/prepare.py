"""`lilliput.prepare`: tokenise a corpus from Python.

Owns: `PreparedText`, the statistics of a prepared corpus. Does not own: the preparation (`data.prepare`), or the arguments
(`arguments`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.api.arguments import (
    KEYWORDS,
    ORIGIN,
    as_path,
    checked,
    python_errors,
    refuse_unknown,
    settings_of,
)
from lilliput.api.consoles import choose_output
from lilliput.api.rendering import as_html, as_text, rows_table
from lilliput.settings.loading import load_config, replace
from lilliput.settings.tree import Config

if TYPE_CHECKING:
    from lilliput.data.prepare.token_files import Prepared

BY_SPLIT = ("documents", "bytes", "tokens")


class PreparedText:
    """A tokenised corpus. `documents`, `bytes` and `tokens` are counts by split; `data` is used by `lilliput.data`."""

    def __init__(self, data: Prepared, about: dict[str, Any]) -> None:
        self.data = data
        self._about = about

    @property
    def documents(self) -> dict[str, int]:
        return dict(self._about["documents"])

    @property
    def bytes(self) -> dict[str, int]:
        return dict(self._about["bytes"])

    @property
    def tokens(self) -> dict[str, int]:
        return dict(self._about["tokens"])

    @property
    def vocab_size(self) -> int:
        return int(self._about["vocab_size"])

    @property
    def folder(self) -> Path:
        return Path(self._about["folder"])

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `lilliput prepare --json` prints."""
        return dict(self._about)

    def __repr__(self) -> str:
        return f"PreparedText({sum(self.tokens.values()):,} tokens, vocabulary {self.vocab_size:,})"

    def __str__(self) -> str:
        return as_text([repr(self), rows_table(self._rows())])

    def _repr_html_(self) -> str:
        return as_html([rows_table(self._rows())])

    def _rows(self) -> list[dict[str, Any]]:
        return [{"split": split, **{name: self._about[name][split] for name in BY_SPLIT}} for split in self.documents]


def prepare(
    target: str | os.PathLike[str] | Config,
    *,
    rebuild: bool = False,
    progress: bool = True,
    settings: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> PreparedText:
    """Tokenise the text of a target as `lilliput.train` would, and return its statistics. The result is cached.

    `keywords` are those of `lilliput.train` that are settings, such as `tokenizer`, `vocab_size` and `labelled`.

    >>> lilliput.prepare("mytext.txt", tokenizer="byte", progress=False).vocab_size
    257
    """
    refuse_unknown({*keywords} - {*KEYWORDS}, [*KEYWORDS, "rebuild", "progress", "settings"], KEYWORDS)
    checked("rebuild", rebuild, bool)
    values = settings_of({name: value for name, value in keywords.items() if value is not None}, settings, KEYWORDS)
    from lilliput.data.prepare import prepare as prepare_data

    with python_errors(KEYWORDS):
        if isinstance(target, Config):
            config = replace(target, values) if values else target
        else:
            config = load_config(as_path(target, "target"), values, origin=ORIGIN)
        with choose_output(progress).reporting() as report:
            data = prepare_data(config, report, rebuild=rebuild)
        return PreparedText(data, data.report(config.model.context))
