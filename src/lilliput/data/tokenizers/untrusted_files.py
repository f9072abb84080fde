"""Safe loading of untrusted tokenizer files.

Owns: the limit on file size, and the test of regular expressions. Does not own: the meaning of the files
(`tokenizers`, `word_level`, `gpt2`).

A tokenizer.json may contain regular expressions for a backtracking engine: `(a+)+$` takes hours on thirty letters,
and a thread that runs it cannot be stopped. Static analysis does not find all slow patterns, and a list of allowed
patterns would reject valid files. So each pattern that is not Lilliput's own is first run in another process on texts
that expose slow patterns: long runs of each of its characters with an end that does not match, and prose. A pattern
that takes longer than `PATIENCE` or crashes is rejected.
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

PATIENCE = 10  # seconds of processor time; normal patterns take some tenths, most of it the start of Python
BUSY = 6  # wall-clock time divided by processor time, at most, on a busy machine
LONGEST_PATTERN = 4000

# Reads a pattern from stdin; exits with code 0 if it ends on all texts. -P: imports nothing from the current folder.
_TRIAL = r"""
import json, sys
from tokenizers import Regex, pre_tokenizers
for name, limit in ("RLIMIT_AS", 1 << 32), ("RLIMIT_CPU", int(sys.argv[1])):
    try:
        import resource
        resource.setrlimit(getattr(resource, name), (limit, limit))
    except (ImportError, ValueError, OSError):  # unsupported, or a lower limit is set that cannot be raised
        pass
pattern = json.load(sys.stdin)
split = pre_tokenizers.Split(Regex(pattern), "isolated")
prose = "Once upon a time, in 1999, \"the ice-cream man's dog\" said: Hello -- it costs $3.50!\r\n\n" * 40
for one in sorted({*pattern, *"aA0zZ_é世 \n\t.,-'\"!"}):
    for run in (30, 3000):
        for end in ("", "\x01", "!", "\n"):
            # The pattern's text follows: the engine skips a text that lacks a literal which the pattern requires.
            split.pre_tokenize_str(one * run + end + pattern)
            split.pre_tokenize_str((one + "a ") * (run // 3) + end + pattern)
split.pre_tokenize_str(prose)
split.pre_tokenize_str(pattern * 20)
"""


def read_text(path: Path, noun: str, largest: int) -> str:
    """Return the text of a UTF-8 file of at most `largest` bytes; `noun` names the file in errors."""
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            what, fix = f"the {noun} must be a file (got a folder)", "give the path of the file"
            raise UserError(what, str(path), fix=fix, code="file.is-folder")
        if not stat.S_ISREG(found.st_mode):
            what, fix = f"the {noun} must be a file (got a device or pipe)", "give the path of a file"
            raise UserError(what, str(path), fix=fix, code="file.format")
        if found.st_size > largest:
            what = f"the {noun} must have at most {largest:,} bytes (got {found.st_size:,})"
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
def catch_panics(what: str, where: str | None) -> Iterator[None]:
    """Convert a panic of the tokenizers library into a UserError.

    A Rust panic is not an `Exception`, and its class cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{what}: {reason}", where, fix="give another tokenizer", code="tokenizer.invalid") from error


def check_patterns(parts: dict[str, Any], trusted: frozenset[str], where: str) -> None:
    """Raise if a regular expression of the tokenizer is too slow. No pattern runs in this process before the check."""
    for pattern in sorted({*_patterns(parts)} - trusted):
        if len(pattern) > LONGEST_PATTERN or not _ends(pattern):
            what = f"a regular expression of the tokenizer is too slow or invalid: {pattern[:60]!r}"
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
