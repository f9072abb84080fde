"""Python files of the user that register choices: `--plugin FILE.py`.

Owns: loading such a file. A plugin is code, so it is loaded only where the user names it; recipes and checkpoints cannot
name one. Does not own: the tables (`choice_tables`).
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from lilliput.errors import UserError

LOADED: list[Path] = []


def plugin_flags() -> list[str]:
    """Return the flags by which a process that this one starts loads the same plugins."""
    return [word for path in LOADED for word in ("--plugin", str(path))]


def load_plugin(path: str | Path) -> None:
    """Execute a plugin, which calls `lilliput.register`; a file that is loaded already is not executed again."""
    file = Path(path).resolve()
    if file in LOADED:
        return
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise UserError(
            f"the plugin {what}",
            str(path),
            fix="give the path of a Python file that calls lilliput.register",
            code="file.missing",
        )
    spec = importlib.util.spec_from_file_location(f"lilliput_plugin_{len(LOADED)}_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UserError(
            "the plugin is not a Python file", str(path), fix="name a file that ends in .py", code="file.format"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        line = error.__traceback__
        while line is not None and line.tb_next is not None:
            line = line.tb_next
        number = error.lineno if isinstance(error, SyntaxError) else line.tb_lineno if line is not None else None
        where = str(path) if number is None else f"{path}, line {number}"
        text = error.msg if isinstance(error, SyntaxError) else error
        what = f"the plugin raised {type(error).__name__}: {text}".splitlines()[0]
        raise UserError(what, where, fix="correct the plugin", code="plugin.failed") from error
    LOADED.append(file)
