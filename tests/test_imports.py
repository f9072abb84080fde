"""Tests of the structure: imports go one way, and every module has a docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import lilliput

SOURCE = Path(lilliput.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
# A package imports only itself and the packages before it (docs/architecture.md). `cli` and top-level modules come last.
ORDER = ["errors", "storage", "settings", "devices", "kernels", "data", "model", "decoding", "evaluation", "training"]
ORDER += ["interpret", "reports", "studies", "page", "exporting", "serving", "api", "cli"]


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    """Return the modules of Lilliput that a file imports, also inside functions, except for type checking."""
    found: set[str] = set()
    tree = ast.parse(path.read_text("utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def packages_used(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported(path) if name.startswith("lilliput.")} & {*ORDER}


def test_there_is_something_to_check() -> None:
    assert {package_of(path) for path in MODULES} >= {"kernels", "training", "cli"}
    assert packages_used(SOURCE / "training" / "session.py") >= {"data", "model", "decoding", "evaluation", "training"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    here = package_of(path)
    allowed = {*ORDER} if here in ("__init__", "__main__") else {*ORDER[: ORDER.index(here) + 1]}
    if here == "model":
        allowed -= {"data"}  # a model gets integers and does not read data
    assert not packages_used(path) - allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_kernels_are_compiled(path: Path) -> None:
    compilers = {name.split(".")[0] for name in imported(path)} & {"numba", "llvmlite"}
    assert not compilers or package_of(path) == "kernels"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_has_a_docstring_and_at_most_350_lines(path: Path) -> None:
    text = path.read_text("utf-8")
    assert ast.get_docstring(ast.parse(text)), "no docstring"
    assert len(text.splitlines()) <= 400


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_is_pickled_or_executed(path: Path) -> None:
    assert not {
        name for name in imported(path) if name.split(".")[0] in ("pickle", "cPickle", "dill", "joblib", "shelve")
    }
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("torch.load", "torch.save", "eval", "exec", "pickle.loads", "np.load_pickle"), called
            assert not (called == "np.load" and any(word.arg == "allow_pickle" for word in node.keywords))


def test_every_module_has_a_test() -> None:
    """Either a test file of the same name, or a line in tests/README.md."""
    tests = Path(__file__).parent
    listed: dict[str, list[Path]] = {}
    for line in (tests / "README.md").read_text("utf-8").splitlines():
        if line.startswith("| `"):
            modules, files = (re.findall(r"`([\w/]+\.py)`", cell) for cell in line.strip("| ").split(" | ", 1))
            listed |= {module: [tests / file for file in files] for module in modules}
    assert all(files and all(file.is_file() for file in files) for files in listed.values())
    for path in MODULES:
        name = path.relative_to(SOURCE)
        stem = name.parent.name if name.stem == "__init__" else name.stem
        folder = tests / name.parent
        own = [folder / f"test_{stem}.py", folder.parent / f"test_{stem}.py"]
        only_docstring = len(ast.parse(path.read_text("utf-8")).body) == 1
        assert only_docstring or name.as_posix() in listed or any(file.is_file() for file in own), name
    stale = [name for name in listed if not (SOURCE / name).is_file()]
    assert not stale
