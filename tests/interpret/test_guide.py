"""docs/attention.md and docs/interpret.md: definitions are those of the code, and the Python example runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from lilliput.interpret.head_score_definitions import FUNCTIONS, SCORES

GUIDE = (Path(__file__).parents[2] / "docs" / "attention.md").read_text("utf-8")


def test_guide_has_the_definitions_of_the_scores() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", GUIDE, flags=re.MULTILINE))
    assert {name: text.replace("*", "") for name, text in rows.items()} == {
        name: score.definition for name, score in SCORES.items()
    }


def test_guide_has_the_definitions_of_the_functions() -> None:
    page = (Path(__file__).parents[2] / "docs" / "interpret.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (weight .*|correlation .*) \|$", page, flags=re.MULTILINE))
    assert rows == {name: function.definition for name, function in FUNCTIONS.items()}


def test_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run it in this process: importing transformers again takes longer than all other tests of this file."""
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "guide.py").write_text(code)
    runpy.run_path("guide.py")
    assert 0.0 <= float(capsys.readouterr().out) <= 3.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpt2.html", "gpt2.png", "guide.py"]
