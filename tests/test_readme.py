"""Run the commands and Python examples of the README and the guides, with small budgets; check links."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.labelled_corpora import write_labelled
from lilliput.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
# Minimum number of commands of each.
GUIDES = {"data": 8, "training": 5, "writing": 8, "evaluation": 8, "attention": 5, "interpret": 5}
# The same work on less: a few steps of a small model on a few stories.
QUICK = (
    "--data.documents 120 --model.layers 1 --model.dim 16 --model.heads 2 --model.hidden 32 "
    "--train.steps 3 --generate.tokens 20"
)
TEXT = "Once upon a time there was a small engine.\n\nIt pulled and it pulled, and it wrote what it had read.\n\n" * 40

CHAT = "Once upon a time\n/quit\n"  # input of a chat


def page(guide: str) -> str:
    return (ROOT / "docs" / f"{guide}.md").read_text()


def commands(page: str) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def quick(command: str) -> list[str]:
    """Return the arguments of a `lilliput` command, with a small budget if it trains."""
    words = shlex.split(command)[1:]
    if words[0] != "train" or "--dry-run" in words:
        return words
    for budget in {"--train.minutes", "--train.epochs"} & {*words}:
        at = words.index(budget)
        del words[at : at + 2]
    if "--resume" in words:  # a run of three steps with a larger budget
        return [*words, "--train.steps", "5"]
    small = shlex.split(QUICK)
    if "--from" in words:  # keeps the model of the other run
        small = ["--data.documents", "120", "--train.steps", "3", "--generate.tokens", "20"]
    return [*words, *small]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as after `make demo`: a run and a text."""
    place = tmp_path_factory.mktemp("newcomer")
    (place / "mytext.txt").write_text(TEXT)
    before = Path.cwd()
    os.chdir(place)
    try:
        assert main(["train", "demo", *shlex.split(QUICK)]) == 0
    finally:
        os.chdir(before)
    return place


def test_every_lilliput_command_runs_in_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", io.StringIO(CHAT))
    found = [command for command in commands(README) if command.startswith("lilliput ")]
    assert len(found) >= 6
    for command in found:
        assert main(quick(command)) == 0, command
        assert capsys.readouterr().out.strip(), command


@pytest.mark.parametrize("guide", GUIDES)
def test_every_command_of_the_guides_runs(
    guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run with the files and the loader of the guides."""
    monkeypatch.chdir(tmp_path)
    write_labelled(tmp_path)
    (loader,) = re.findall(r"```python\n# load.py\n(.*?)```", page("data"), flags=re.DOTALL)
    Path("load.py").write_text(loader)
    Path("mytext.txt").write_text(TEXT)
    Path("stories.jsonl").write_text("".join(f'{{"story": "A story of {n} bees."}}\n' for n in range(50)))
    Path("reviews.csv").write_text("stars,review\n" + "".join(f'{n % 5},"Good, {n} times."\n' for n in range(50)))
    Path("words.vec").write_text("2 3\nonce 1 2 3\ntime 4 5 6\n")
    Path("prompts.txt").write_text("Once\nIt pulled\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO(CHAT))
    found = commands(page(guide))
    assert len(found) >= GUIDES[guide]
    for command in found:
        assert main(quick(command)) == 0, command
        assert capsys.readouterr().out.strip(), command


def test_the_other_commands_exist() -> None:
    others = [command for command in commands(README) if not command.startswith("lilliput ")]
    assert others == ["make demo", "source .venv/bin/activate"]
    for target in ("demo", "test"):
        plan = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert {"demo": "lilliput train demo", "test": "pytest"}[target] in plan


def test_python_examples_of_the_readme(folder: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    outcome = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.strip()


@pytest.mark.parametrize(("guide", "blocks"), [("writing", 3), ("evaluation", 1), ("interpret", 1)])
def test_python_examples_of_the_guides(guide: str, blocks: int, folder: Path) -> None:
    found = re.findall(r"```python\n(.*?)```", page(guide), flags=re.DOTALL)
    assert len(found) == blocks
    for code in found:
        outcome = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True
        )
        assert outcome.returncode == 0, outcome.stderr
        assert outcome.stdout.strip()


def test_every_link_has_a_target() -> None:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_recipe_that_is_shipped_is_complete() -> None:
    from lilliput.settings.loading import load_config
    from lilliput.settings.recipes import shipped_recipes

    assert {"demo", "published-gpt2", "speech-lm", "speech-classifier"} <= set(shipped_recipes())
    for name in shipped_recipes():
        assert load_config(name).name == name
