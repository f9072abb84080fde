"""The wheel in an empty environment and an empty folder: the shipped recipes work by name.

Dependencies are not downloaded: the new environment uses those of this one, with Lilliput from the wheel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from helpers.small_runs import SETTINGS

ROOT = Path(__file__).parents[1]


def run(*words: str | Path, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LILLIPUT"))}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build", reason="needs the test extra")
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (found,) = folder.glob("lilliput-*.whl")
    return found


@pytest.fixture(scope="module")
def lilliput(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment that contains only the wheel."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False)
    scripts = place / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=place)
    (packages,) = place.rglob("site-packages")
    # A folder named in a .pth file is searched, but the .pth files in it (such as this checkout's own) are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    used = run(python, "-c", "import lilliput; print(lilliput.__file__)", cwd=place).strip()
    assert Path(used).is_relative_to(packages), "not from the wheel"
    return scripts / "lilliput"


def test_the_content_of_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for recipe in (ROOT / "recipes").iterdir():
        assert f"lilliput/recipes/{recipe.name}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    files = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".html", ".css", ".js")]
    assert {path.relative_to(ROOT / "src").as_posix() for path in files} <= names
    assert "lilliput/interpret/attention_page/page.js" in names and "lilliput/reports/assets/report.css" in names
    assert not {name for name in names if name.startswith(("tests", "benchmarks"))}


def test_a_shipped_recipe_by_its_name_from_an_empty_folder(lilliput: Path, tmp_path: Path) -> None:
    """`lilliput train demo`, made small: storybook, tokenizer, training, evaluation, stories."""
    small: dict[str, Any] = SETTINGS | {"train.steps": "2", "data.documents": "60", "tokenizer.kind": "bpe"}
    small |= {"tokenizer.vocab_size": "300", "train.precision": "float32"}
    out = run(
        lilliput, "train", "demo", *(word for pair in small.items() for word in (f"--{pair[0]}", pair[1])), cwd=tmp_path
    )
    assert "run folder: runs/demo;" in out
    assert "floor " in out
    assert sorted(os.listdir(tmp_path)) == ["prepared", "runs"]
    result = json.loads(run(lilliput, "generate", "demo", "--tokens", "5", "--json", cwd=tmp_path))
    assert len(result["samples"]) == 1


def test_published_counts_from_an_empty_folder(lilliput: Path, tmp_path: Path) -> None:
    result = json.loads(run(lilliput, "train", "speech-lm", "--dry-run", "--json", cwd=tmp_path))
    assert result["parameters"]["total"] == 863_243
    assert os.listdir(tmp_path) == []
