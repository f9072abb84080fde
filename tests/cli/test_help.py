"""Tests of the help: it is fast, and its examples run."""

from __future__ import annotations

import importlib
import io
import json
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.small_runs import FLAGS, SETTINGS, lilliput, write_text
from lilliput.cli import COMMANDS
from lilliput.cli.parsing import parse, settings_help
from lilliput.settings.loading import config_to_dict, setting_types
from lilliput.settings.tree import Config
from lilliput.storage.dotted_names import flatten

HEAVY = ("torch", "tyro", "pydantic", "numpy", "rich", "tokenizers")


def help_of(*words: str) -> tuple[float, list[str]]:
    """Return the CPU seconds and the imported heavy modules of one command in a new process."""
    code = (
        "import json, sys, time\nfrom lilliput.cli import main\n"
        f"try: main({[*words, '--help']!r})\nexcept SystemExit: pass\n"
        f"print(json.dumps([time.process_time(), [m for m in {HEAVY!r} if m in sys.modules]]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, loaded = json.loads(done.stderr)
    return seconds, loaded


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    seconds, loaded = zip(*(help_of() for _ in range(5)), strict=True)
    assert loaded == ([],) * 5
    assert statistics.median(seconds) < 0.3


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_needs_no_torch(command: str) -> None:
    seconds, loaded = zip(*(help_of(command) for _ in range(3)), strict=True)
    assert not {"torch", "numpy"} & set(loaded[0])
    assert min(seconds) < 0.6


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_help_of_all_commands(words: tuple[str, ...]) -> None:
    code, out, err = lilliput(*words)
    assert (code, err) == (0, "")
    assert all(command in out for command in COMMANDS)
    assert all(len(line) <= 80 for line in out.splitlines())


def test_version() -> None:
    from lilliput import __version__

    assert lilliput("--version") == (0, f"lilliput {__version__}\n", "")


def test_the_installed_command() -> None:
    found = subprocess.run([sys.executable, "-m", "lilliput", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("lilliput ")


@pytest.mark.parametrize("columns", ["80", "200"])
def test_every_setting_is_described_in_the_help(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = settings_help()
    for name in setting_types():
        assert re.search(rf"^  --{re.escape(name)} \S+(  |\n)", text, re.MULTILINE), name
    assert all(len(line) <= min(120, int(columns)) for line in text.splitlines())


def test_every_default_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    entries = {entry.split()[0]: entry for entry in settings_help().split("\n  --")[1:]}
    defaults = flatten(config_to_dict(Config()))
    assert {name for name, value in defaults.items() if value == 0 and value is not False}, "zeros are among them"
    for name, value in defaults.items():
        shown = value if isinstance(value, str) else json.dumps(value).strip("[]").replace(", ", ",")
        shown = {"": "empty", "null": "none"}.get(shown, shown)
        assert " ".join(entries[name].split("\n\n")[0].split()).endswith(f"[{shown}]"), name


def examples(command: str) -> list[list[str]]:
    text = importlib.import_module(f"lilliput.cli.{command}").EXAMPLES
    lines = [re.split(r"\s{2,}", line.strip())[0] for line in text.strip().splitlines()]
    return [shlex.split(line.split(" > ")[0])[1:] for line in lines]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_parses(command: str) -> None:
    module = importlib.import_module(f"lilliput.cli.{command}")
    assert len(examples(command)) >= 3
    for words in examples(command):
        assert words[0] == command
        parse(command, COMMANDS[command], module, words[1:])


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the examples in order, with small budgets."""
    monkeypatch.chdir(tmp_path)
    text = write_text(tmp_path).read_text()
    (tmp_path / "letters.txt").write_text(text[:2000])
    (tmp_path / "stories.jsonl").write_text(
        "".join(json.dumps({"story": s}) + "\n" for s in text.split("<|endoftext|>"))
    )
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(text)
    small = [*FLAGS, "--data.documents", "12"]
    brought = ("--model.", "--tokenizer.")
    own = [
        word for name, value in SETTINGS.items() if not f"--{name}".startswith(brought) for word in (f"--{name}", value)
    ]
    for words in examples("train"):
        extra = [] if "--resume" in words else own if "--from" in words else small
        if "--train.minutes" in words:
            words[-1] = "0.004" if "--resume" in words else "0.002"
            at = small.index("--train.steps")  # two budgets would be an error
            extra = [] if "--resume" in words else [*small[:at], *small[at + 2 :]]
        result = lilliput(*words[:2], *extra, *words[2:])
        assert result.code == 0, result.err
    (tmp_path / "prompts.txt").write_text("Once\nA bee\n")
    for command in ("info", "prepare", "generate", "chat"):
        for words in examples(command):
            words = [word.replace("step-003000", "step-000008") for word in words]
            monkeypatch.setattr(sys, "stdin", io.StringIO("Once\n/help\n"))  # input of a chat
            result = lilliput(*words, *(["--data.documents", "12"] if command == "prepare" else []))
            assert result.code == 0, result.err
            if "--json" in words or "--schema" in words:
                json.loads(result.out)
