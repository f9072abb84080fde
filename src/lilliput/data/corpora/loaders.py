"""User-defined loaders: `path/loader.py` or `path/loader.py:function`, a function that yields documents.

Owns: importing the file, calling the function, and their errors. Does not own: the use of the documents (`corpora`).

The function takes no argument or the name of the requested split. It yields texts or (label, text). Only changes of
the .py file are detected, not changes of files that it reads.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from lilliput.data.corpora.documents import Document, Labels, Notice, Reading, check_text, ignore, without_empty
from lilliput.errors import UserError, nearest
from lilliput.settings.tree import DataSettings

FUNCTION = "documents"
PATTERN = re.compile(r"(?P<file>.+\.py)(?::(?P<function>[^:/\\]*))?")
EXAMPLE = f"add it, as in def {FUNCTION}(): yield 'a text'"
PARAMETERS = "remove all required parameters except split"


def as_loader(source: str) -> tuple[Path, str] | None:
    """Return the file and the function of a loader; None if the source is not a loader.

    A .py file without the name of a function is a loader if it defines the function `documents`, else it is plain text.
    This is decided from its text: nothing is executed.
    """
    match = PATTERN.fullmatch(source)
    if not match or (match["function"] is None and not _defines(Path(source))):
        return None
    return Path(match["file"]), match["function"] or FUNCTION


def _defines(path: Path) -> bool:
    try:
        return re.search(rb"^def documents\b", path.read_bytes(), re.MULTILINE) is not None
    except OSError:
        return False


def open_loader(path: Path, name: str, splits: tuple[str, ...], settings: DataSettings) -> dict[str, Reading]:
    """Return a reading for each split if the function takes a split, else one for the first split."""
    function = _function(_load(path), name, path)
    takes_split = _takes_split(function, name, path)
    readings = {}
    for split in splits if takes_split else splits[:1]:
        arguments = (split,) if takes_split else ()
        read = functools.partial(_read, path, function, name, arguments, settings)
        called = f"{name}({', '.join(map(repr, arguments))})"
        if next(read(ignore), None) is None:
            fix = "make it yield a text per document" + (", or set data.validation_source" if takes_split else "")
            raise UserError(f"the loader yields no documents: {called}", str(path), fix=fix, code="data.empty")
        readings[split] = Reading([path], f"{called} of {path.name}", 0, read)
    return readings


class _FreshLoader(importlib.machinery.SourceFileLoader):
    """Compiles without a bytecode cache, which would be stale after an edit within a second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _load(path: Path) -> ModuleType:
    name = f"lilliput_loader_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_FreshLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass in the file looks up its module
    with _guarded(path):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _guarded(path: Path) -> Iterator[None]:
    """While the user's code runs, allow imports from its folder, and convert its exceptions to UserErrors."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    except SyntaxError as error:
        what, where = f"the loader is not valid Python: {error.msg}", f"{error.filename or path}, line {error.lineno}"
        raise UserError(what, where, fix="correct the syntax", code="data.loader") from error
    except (Exception, SystemExit) as error:
        message = next(iter(str(error).splitlines()), "")[:200]
        frames = traceback.extract_tb(error.__traceback__)
        # The innermost line of the user's file, not of a library that it calls.
        own = [frame for frame in frames if Path(frame.filename).resolve() == path.resolve()]
        where = f"{path}, line {own[-1].lineno}" if own else str(path)
        raised = f"{type(error).__name__}: {message}" if message else type(error).__name__
        raise UserError(f"the loader raised {raised}", where, fix="correct the loader", code="data.loader") from error
    finally:
        with contextlib.suppress(ValueError):  # the loader may have set sys.path itself
            sys.path.remove(folder)


def _function(module: ModuleType, name: str, path: Path) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if callable(function):
        return function  # type: ignore[no-any-return]
    known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    meant = nearest(name, known) or (known[0] if len(known) == 1 else None)
    fix = f"use {path}:{meant}" if meant else EXAMPLE
    raise UserError(f"the loader has no function {name}", str(path), fix=fix, code="data.loader")


def _takes_split(function: Callable[..., Any], name: str, path: Path) -> bool:
    parameters = inspect.signature(function).parameters
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each for each in parameters.values() if each.default is each.empty and each.kind not in optional]
    if len(needed) > 1:
        names = ", ".join(each.name for each in needed)
        what = f"{name} must require at most one argument (got {len(needed)}: {names})"
        raise UserError(what, str(path), fix=PARAMETERS, code="data.loader")
    if "split" in parameters and next(iter(parameters)) != "split":
        what = f"the first argument of {name} must be split (got {next(iter(parameters))})"
        raise UserError(what, str(path), fix=PARAMETERS, code="data.loader")
    return len(needed) == 1 or "split" in parameters


def _read(
    path: Path,
    function: Callable[..., Any],
    name: str,
    arguments: tuple[str, ...],
    settings: DataSettings,
    on_empty: Notice,
) -> Iterator[Document]:
    return without_empty(_documents(path, function, name, arguments, settings), on_empty)


def _documents(
    path: Path, function: Callable[..., Any], name: str, arguments: tuple[str, ...], settings: DataSettings
) -> Iterator[Document]:
    with _guarded(path):
        found = function(*arguments)
    if isinstance(found, str | bytes) or not isinstance(found, Iterable):
        what = f"{name} must yield documents (got {type(found).__name__})"
        raise UserError(what, str(path), fix="make it yield a text per document", code="data.loader")
    labels, iterator, nothing = Labels(), iter(found), object()
    for number in range(1, sys.maxsize):
        with _guarded(path):
            item = next(iterator, nothing)
        if item is nothing:
            return
        yield _document(item, labels, settings, f"{path}, {name}, document {number}")


def _document(item: object, labels: Labels, settings: DataSettings, where: str) -> Document:
    def place() -> str:
        return where

    label, text = item if isinstance(item, tuple) and len(item) == 2 else (None, item)
    if not isinstance(text, str):
        found = f"a tuple of {len(text)}" if isinstance(text, tuple) else type(text).__name__
        what = f"the loader must yield texts (got {found})"
        raise UserError(what, where, fix="make it yield str, or (label, text)", code="data.loader")
    check_text(text, "the text", place)
    if not settings.labelled or not text.strip():
        return Document(text)
    if not isinstance(item, tuple):
        what = "the loader must yield labels with the texts (got a text only)"
        fix = "make it yield (label, text), or set data.labelled to false"
        raise UserError(what, where, fix=fix, code="data.label", setting="data.labelled")
    return Document(text, labels.take(label, place))
