"""Files of strangers: read whole only if they are small, and their regular expressions run only if they come to an end.

Owns: the bound on size, and the trial of patterns. Does not own: what such a file means (`tokenizers`,
`word_level`, `gpt2`).

A tokenizer.json may hold regular expressions for an engine that backtracks: `(a+)+$` takes hours on thirty
letters, and no thread of this process could be stopped. No reading of a pattern tells all that are slow, and
a list of allowed ones would shut out honest files. So a pattern that is not Lilliput's own is tried first, in
another process, on texts that bring bad ones out: long runs of each of its characters, with an end that does
not fit, and prose. What takes longer than `PATIENCE`, or crashes, is refused.
"""

from __future__ import annotations

import contextlib
import functools
import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lilliput.errors import UserError

PATIENCE = 10  # seconds of processor time; honest patterns take some tenths, most of them the start of Python
BUSY = 6  # a busy machine may need so many times as long by the clock
LONGEST_PATTERN = 4000

# Patterns on its input, exit code 0 if all of them end. -P: nothing is imported from the folder of the user.
_TRIAL = r"""
import json, sys
from tokenizers import Regex, pre_tokenizers
for name, limit in ("RLIMIT_AS", 1 << 32), ("RLIMIT_CPU", int(sys.argv[1])):
    try:
        import resource
        resource.setrlimit(getattr(resource, name), (limit, limit))
    except (ImportError, ValueError, OSError):  # no such limits here, or a lower one that may not be raised
        pass
pattern = json.load(sys.stdin)
split = pre_tokenizers.Split(Regex(pattern), "isolated")
prose = "Once upon a time, in 1999, \"the ice-cream man's dog\" said: Hello -- it costs $3.50!\r\n\n" * 40
for one in sorted({*pattern, *"aA0zZ_é世 \n\t.,-'\"!"}):
    for run in (30, 3000):
        for end in ("", "\x01", "!", "\n"):
            # The pattern's own text comes after: an engine that finds what it must have nowhere ahead does not even begin.
            split.pre_tokenize_str(one * run + end + pattern)
            split.pre_tokenize_str((one + "a ") * (run // 3) + end + pattern)
split.pre_tokenize_str(prose)
split.pre_tokenize_str(pattern * 20)
"""


def read_text(path: Path, noun: str, largest: int) -> str:
    """The whole text of a file that must be a file, small, and UTF-8; `noun` says what it should have been."""
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            what, fix = f"the {noun} is a folder, expected a file", "give the path of the file"
            raise UserError(what, str(path), fix=fix, code="file.is-folder")
        if not stat.S_ISREG(found.st_mode):
            what, fix = f"the {noun} is a device or pipe, expected a file", "give the path of a file"
            raise UserError(what, str(path), fix=fix, code="file.format")
        if found.st_size > largest:
            what = f"the {noun} has {found.st_size:,} bytes, at most {largest:,} are allowed"
            raise UserError(what, str(path), fix="check that it is the right file", code="file.too-large")
        return path.read_bytes().decode()
    except FileNotFoundError as error:
        raise UserError(f"the {noun} does not exist", str(path), fix="check the path", code="file.missing") from error
    except OSError as error:
        what = f"cannot read the {noun}: {error.strerror}"
        raise UserError(what, str(path), fix="check its permissions", code="file.unreadable") from error
    except UnicodeDecodeError as error:
        where = f"{path}, byte {error.start}"
        raise UserError(f"the {noun} is not UTF-8", where, fix="save it as UTF-8", code="file.not-utf8") from error


@contextlib.contextmanager
def told_panics(what: str, where: str | None) -> Iterator[None]:
    """Where the tokenizers library gives up inside, its user is told in a sentence.

    An error of Rust is no `Exception` and has no name to import.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{what}: {reason}", where, fix="give another tokenizer", code="tokenizer.invalid") from error


def check_patterns(parts: dict[str, Any], trusted: frozenset[str], where: str) -> None:
    """Refuses a tokenizer with a regular expression that does not end in time, before any of them is run here."""
    for pattern in sorted({*_patterns(parts)} - trusted):
        if len(pattern) > LONGEST_PATTERN or not _ends(pattern):
            what = f"a regular expression of the tokenizer takes too long or fails: {pattern[:60]!r}"
            fix = "give a tokenizer.json with a simpler pattern, or train one"
            raise UserError(what, where, fix=fix, code="tokenizer.unsafe")


def _patterns(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(pattern := value.get("Regex"), str):
            yield pattern
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _patterns(one)


@functools.cache
def _ends(pattern: str) -> bool:
    try:
        trial = subprocess.run(
            [sys.executable, "-P", "-c", _TRIAL, str(max(1, int(PATIENCE)))],
            input=json.dumps(pattern).encode(),
            capture_output=True,
            timeout=BUSY * PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return False
    return trial.returncode == 0
