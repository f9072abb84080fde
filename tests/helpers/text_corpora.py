"""Small corpora on disk, their settings, and whether they were prepared or reused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lilliput.data.corpora.documents import END_OF_TEXT
from lilliput.data.prepare import prepare
from lilliput.data.tokenizers import Tokenizer
from lilliput.settings.tree import Config, DataSettings, TokenizerSettings

SPLITS = ("train", "validation")


def write(path: Path, documents: list[str]) -> Path:
    path.write_bytes("".join(f"{text}\n{END_OF_TEXT}\n" for text in documents).encode())
    return path


def configure(source: Path | str, cache: Path, kind: str = "byte", vocab_size: int = 300, **data: object) -> Config:
    tokenizer = TokenizerSettings(kind=kind, vocab_size=vocab_size)  # type: ignore[arg-type]
    return Config(data=DataSettings(source=str(source), cache=str(cache), **data), tokenizer=tokenizer)  # type: ignore[arg-type]


def was_built(config: Config, tokenizer: Tokenizer | None = None, rebuild: bool = False) -> bool:
    phases: list[str] = []
    prepare(config, lambda phase, done, total: phases.append(phase), tokenizer, rebuild)
    return "tokenizing" in phases


def run(program: str, *arguments: str, own_group: bool = False) -> subprocess.Popen[str]:
    """Start a Python program; `own_group`: in a process group of its own, for signals as from a terminal."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0 if own_group else None,
    )
