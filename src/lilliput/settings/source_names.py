"""Names of inputs: a path, a built-in corpus or a dataset on the Hugging Face hub.

Owns: names that are not paths, and resolving the paths of a recipe. Does not own: reading a source (`data.corpora`).
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Any

# Inputs named in a recipe are relative to the recipe's folder; outputs are relative to the current folder.
INPUT_PATHS = (
    "data.source",
    "data.validation_source",
    "data.tests",
    "tokenizer.path",
    "tokenizer.vocabulary",
    "vectors.source",
)
BUILT_IN_CORPORA = ("storybook", "tinystories")
NO_PATHS = (*BUILT_IN_CORPORA, "train", "none")  # values that are not paths


def is_hub_name(text: str, folder: Path = Path()) -> bool:
    """Return whether the text is `owner/name` and not a mistyped path: no folder has the owner's name."""
    match = re.fullmatch(r"([A-Za-z0-9][\w.-]*)/([\w-][\w.-]*)", text)
    return bool(match) and not Path(text).suffix and not (folder / match[1]).exists()  # type: ignore[index]


def nearest_path(path: Path) -> Path | None:
    """Return the file or folder next to a missing path whose name is spelled most like it, or None."""
    siblings = os.listdir(path.parent) if path.parent.is_dir() and os.access(path.parent, os.R_OK) else []
    # A high limit: names that share only their suffix are not alike.
    found = difflib.get_close_matches(path.name, siblings, n=1, cutoff=0.75)
    return path.parent / found[0] if found else None


def resolve_input(value: Any, folder: Path) -> Any:
    """Resolve a path relative to `folder`, with $LILLIPUT_DATA expanded; in a list of name=path, every path."""
    if isinstance(value, list):
        named = [item.partition("=") if isinstance(item, str) else (item, "", "") for item in value]
        return [f"{name}={resolve_input(text, folder)}" if equals else name for name, equals, text in named]
    if not isinstance(value, str) or value in NO_PATHS or is_hub_name(value, folder):
        return value
    if data := os.environ.get("LILLIPUT_DATA"):
        value = value.replace("$LILLIPUT_DATA", data)
    return value if value.startswith("$") else str(folder / Path(value).expanduser())
