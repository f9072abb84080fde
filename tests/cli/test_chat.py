"""Tests of `lilliput chat`, through a pipe and on a terminal."""

from __future__ import annotations

import io
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lilliput as library
from helpers.small_runs import CommandResult, lilliput, trained
from lilliput.cli.chat import COMMANDS, NAMES, Chat, Partner
from lilliput.errors import UserError, UserErrors

PATIENCE = 240.0
Hold = Callable[..., CommandResult]  # lines and flags


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained())


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Hold:
    """Run a chat with lines from a pipe."""

    def hold(*lines: str, flags: tuple[str, ...] = ()) -> CommandResult:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return lilliput("chat", "mine", "--sentences", "none", *flags)

    return hold


def written(prompt: str, seed: int, *flags: str) -> str:
    output = lilliput("generate", "mine", "--prompt", prompt, "--seed", str(seed), "--json", *flags)
    text: str = json.loads(output.out)["samples"][0]["text"]
    return text.rstrip()


def new_chat() -> Chat:
    writer = library.load("mine", "cpu").writer
    return Chat(writer, writer.config.generate, Partner(), terminal=False)


# ---- pipe


def test_each_turn_continues_the_whole_story(chat: Hold) -> None:
    first = written("Once", 3)
    second = written(f"Once{first} upon", 4)
    third = written(f"Once{first} upon{second}", 5)
    output = chat("Once", " upon ", "", flags=("--seed", "3"))
    assert output == CommandResult(0, "".join(f"{text.lstrip()}\n" for text in (first, second, third)), "")


def test_a_turn_has_at_most_the_given_sentences(chat: Hold) -> None:
    flags = ("--forced-words", "ran. It", "--tokens", "20", "--temperature", "0")
    whole = written("A bee", 0, *flags)
    first, _, _ = whole.partition(" It")
    assert whole != first and first.endswith("ran.")
    assert chat("A bee", "/show story", flags=flags).out == f"{whole.lstrip()}\nA bee{whole}\n"
    output = chat("/sentences 1", "A bee", "/show story", flags=flags).out
    assert output == f"{first.lstrip()}\nA bee{first}\n"


def test_again_undo_and_seed(chat: Hold) -> None:
    first, second = written("Once", 0), written("Once", 1)
    assert first != second
    output = chat("Once", "/again", "/show story")
    assert output.out == f"{first.lstrip()}\n{second.lstrip()}\nOnce{second}\n"
    output = chat("Once", "upon", "/undo", "/show story", "/undo", "/undo", "/seed 0", "Once")
    assert output.out.endswith(f"Once{first}\n{first.lstrip()}\n")
    assert len(output.err.splitlines()) == 2, "there was no turn to take back"


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of a POSIX system")
@pytest.mark.parametrize("flags", [("--temperature", "0"), ("--beams", "2")])
def test_again_prints_a_note_without_sampling(flags: tuple[str, ...]) -> None:
    with terminal("chat", "mine", "--tokens", "4", *flags) as (screen, process):
        screen.wait_for("\n> ")
        screen.type("Once\n")
        screen.wait_for("\n> ")
        screen.type("/again\n")
        assert "nothing is sampled" in screen.wait_for("\n> ")
        screen.type("\x04")
        assert process.wait(PATIENCE) == 0


def test_settings_are_changed_and_shown(chat: Hold) -> None:
    greedy = written("Once", 0, "--temperature", "0", "--tokens", "5")
    output = chat("/set temperature 0", "/set tokens 5", "/set bad-words cat 'hot dog'", "Once", "/show settings")
    first, *settings = output.out.splitlines()
    assert (first.rstrip(), output.err) == (greedy.lstrip(), "")
    shown = {line.split()[0]: line.split()[1:] for line in settings}
    assert shown.keys() == set(NAMES)
    assert shown["temperature"] == ["0.0", "changed"]
    assert shown["bad_words"] == ["cat", "'hot", "dog'", "changed"], "as it would be typed"
    assert shown["top_p"] == ["none"]
    assert shown["seed"] == ["1", "changed"], "the next turn's"
    assert "cat" not in chat("/set bad_words cat", "/set bad_words none", "/show").out


@pytest.mark.parametrize(
    ("line", "code", "setting", "fix"),
    [
        ("/set temprature 1", "setting.unknown", "temprature", "use /set temperature VALUE"),
        ("/set top_p 2", "setting.value", "generate.top_p", None),
        ("/set top_p", "flag.missing", "generate.top_p", "use /set top_p X|none"),
        ("/set stop", "flag.missing", "generate.stop", 'use /set stop none|"A" "B"'),
        ("/set prompt It's", "flag.value", "generate.prompt", 'use /set prompt "It\'s"'),
        ("/set", "flag.missing", None, "use /show settings"),
        ("/sentences many", "flag.value", None, None),
        ("/agian", "command.unknown", None, "use /again"),
        ("/", "command.unknown", None, "use /help"),
        ("/again", "request.invalid", None, None),
        ("/save", "flag.missing", None, "use /save story.txt"),
        ("/show moon", "flag.value", None, "use /show settings or /show story"),
        ("/save nowhere/story.txt", "file.not-written", None, None),
    ],
)
def test_the_chat_continues_after_an_error(
    chat: Hold, line: str, code: str, setting: str | None, fix: str | None
) -> None:
    with pytest.raises(UserError) as found:
        new_chat().answer(line)
    (error,) = found.value.errors if isinstance(found.value, UserErrors) else [found.value]
    assert (error.code, error.setting) == (code, setting)
    assert fix is None or error.fix == fix
    result = chat(line, "Once")
    assert (result.code, result.out) == (0, f"{written('Once', 0).lstrip()}\n")
    assert 1 <= len(result.err.splitlines()) <= 3


def test_a_setting_that_conflicts_changes_nothing(chat: Hold) -> None:
    with pytest.raises(UserErrors) as found:
        new_chat().answer("/set diversity 0.3")
    assert [(error.code, error.setting, error.where) for error in found.value.errors] == [
        ("setting.conflict", "generate.diversity", "diversity")
    ]
    output = chat("/set diversity 0.3", "/show settings")
    assert output.out.count("changed") == 1, "the flag of this test"


def test_a_new_setting_drops_conflicting_ones(chat: Hold) -> None:
    output = chat("/set top_p 0.9", "/set temperature 0", "/show settings").out
    assert ["top_p", "none"] in [line.split() for line in output.splitlines()]


def test_a_generation_error_leaves_the_story_unchanged(chat: Hold) -> None:
    first = written("Once", 0)
    output = chat("Once", "/set engine numba", "/again", "/seed 0", "/again", "/show story")
    assert 1 <= len(output.err.splitlines()) <= 3, output.err
    assert output.out.endswith(f"{first.lstrip()}\nOnce{first}\n")


def test_save_does_not_overwrite_other_files(chat: Hold, tmp_path: Path) -> None:
    mine, other = tmp_path / "my story.txt", tmp_path / "other.txt"
    other.write_text("precious")
    output = chat("Zoë", f"/save {mine}", f"/save {other}", "sang", f"/save {mine}", "/show story")
    assert str(other) in output.err
    assert other.read_text() == "precious"
    assert mine.read_text("utf-8").startswith("Zoë") and output.out.endswith(mine.read_text("utf-8"))


def test_a_prompt_and_a_new_story(chat: Hold) -> None:
    first = written("The moon", 0)
    output = chat("", "/new", "/show story", "/quit", "never said", flags=("--prompt", "The moon"))
    assert output.out == f"The moon\n{first.lstrip()}\nThe moon\nThe moon\n"


def test_every_command_is_in_the_help(chat: Hold) -> None:
    output = chat("/help").out
    assert all(f"/{name}" in output for name in COMMANDS)


def test_a_story_longer_than_the_context(chat: Hold) -> None:
    """The context has 32 tokens (bytes); generation continues from the last half."""
    printed, story = ["long story"] * 8, ""
    for seed, line in enumerate(printed):
        story += f" {line}" if story else line
        story += written(story, seed)
    assert len(story) > 100
    assert chat(*printed, "/show story").out.endswith(f"\n{story}\n")


def test_quoted_values_keep_their_spaces(chat: Hold) -> None:
    whole = written("Once", 0, "--temperature", "0", "--tokens", "30")
    stop = whole[9:11]
    for flags, line in (((), f'/set stop "{stop}" "a, b"'), (("--stop", "e"), "/set stop none")):
        expected = whole if line.endswith("none") else whole[: whole.index(stop)].rstrip()
        output = chat(line, "Once", "/show settings", flags=("--temperature", "0", "--tokens", "30", *flags))
        assert output.out.startswith(f"{expected.lstrip()}\n"), line
        assert f"stop {'none' if line.endswith('none') else shlex.join([stop, 'a, b'])}" in " ".join(output.out.split())


def test_a_changed_prompt_is_used_by_a_new_story(chat: Hold) -> None:
    output = chat("/set prompt The moon", "/show story", "/new", '/set prompt ""', "/new", "/show story")
    assert output == CommandResult(0, "\nThe moon\n\n", "")


def test_a_turn_by_beam_search(chat: Hold) -> None:
    search = ("--beams", "3", "--tokens", "12")
    assert chat("Once", flags=search) == CommandResult(0, f"{written('Once', 0, *search).lstrip()}\n", "")
    output = chat("/set beams 3", "/set tokens 12", "Once", "/set top_p 0.5", "/show settings")
    assert output.out.startswith(f"{written('Once', 0, *search).lstrip()}\n")
    shown = [line.split() for line in output.out.splitlines()]
    assert ["beams", "none"] in shown and ["top_p", "0.5", "changed"] in shown, "what is set now is what is wanted"
    shown = [line.split() for line in chat("/set beams 3", "/set temperature 0.5", "/show").out.splitlines()]
    assert ["beams", "none"] in shown and ["temperature", "0.5", "changed"] in shown


def test_a_generation_error_names_the_setting(chat: Hold) -> None:
    output = chat("/set tokens 3", "/set forced_words elephant", "Once", "/show story")
    assert "  setting: generate.forced_words (forced_words)\n" in output.err
    assert output.out == "\n"


def test_a_missing_run() -> None:
    output = lilliput("chat", "mnie", "--top-p", "2")
    assert output.code == 2
    assert [error.code for error in output.errors] == ["setting.value", "run.missing"]


# ---- terminal


class Terminal:
    def __init__(self, number: int) -> None:
        self.number = number
        self.screen = ""

    def type(self, text: str) -> None:
        os.write(self.number, text.encode())

    def wait_for(self, text: str) -> str:
        """Return the output up to and including the text."""
        until = time.monotonic() + PATIENCE
        while text not in self.screen:
            ready, _, _ = select.select([self.number], [], [], max(0.0, until - time.monotonic()))
            assert ready, self.screen
            try:
                news = os.read(self.number, 4096)
            except OSError:  # raised by Linux when the other side is closed
                news = b""
            assert news, self.screen
            self.screen += news.decode(errors="replace")
        before, found, self.screen = self.screen.partition(text)
        return before + found


@contextmanager
def terminal(*words: str) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "lilliput", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"},
    )
    os.close(theirs)
    try:
        yield Terminal(ours), process
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def stat_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; the first is the state of the main thread."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def processor_time(pid: int) -> float:
    user, system = stat_of(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def wait_until_idle(pid: int) -> None:
    """Wait until the main thread has slept for a quarter of a second."""
    until, sleeping = time.monotonic() + PATIENCE, 0
    while sleeping < 25:
        assert time.monotonic() < until
        sleeping = sleeping + 1 if stat_of(pid)[0] == "S" else 0
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals of a POSIX system")
def test_on_a_terminal(tmp_path: Path) -> None:
    with terminal("chat", "mine", "--sentences", "none") as (screen, process):
        assert "/help" in screen.wait_for("\n> ")
        screen.type("Once\n")
        output = screen.wait_for("\n> ").replace("\r", "")
        assert "".join(written("Once", 0).split()) in "".join(output.split()), output
        screen.type("/hel\t\n")  # Tab completes
        assert "/undo" in screen.wait_for("\n> ")
        screen.type("/set tokens 1000000\n")
        screen.wait_for("\n> ")
        screen.type("/set min_tokens 1000000\n")
        screen.wait_for("\n> ")
        screen.type("more\n")
        screen.wait_for("more\r\n")
        screen.wait_for(" ")
        process.send_signal(signal.SIGINT)  # during generation: it stops, and the story stays
        screen.wait_for("\n> ")
        screen.type(f"/save {tmp_path}/story.txt\n")
        screen.wait_for("saved as")
        story = (tmp_path / "story.txt").read_text("utf-8")
        assert story.startswith(f"Once{written('Once', 0)} more") and len(story) > 60
        screen.wait_for("> ")
        screen.type("\x04")  # Ctrl-D
        assert process.wait(PATIENCE) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_ctrl_c_twice_at_the_prompt_leaves_the_chat() -> None:
    """A single Ctrl-C must not lose the story."""
    with terminal("chat", "mine") as (screen, process):

        def press() -> None:
            wait_until_idle(process.pid)  # readline ignores signals between printing its prompt and waiting
            process.send_signal(signal.SIGINT)

        screen.wait_for("\n> ")
        press()
        assert "/save FILE" in screen.wait_for("\n> ")
        screen.type("/show story\n")  # resets the count of Ctrl-C
        screen.wait_for("\n> ")
        press()
        assert "/save FILE" in screen.wait_for("\n> ")
        press()
        screen.wait_for("lilliput: stopped")
        assert process.wait(PATIENCE) == 130


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_ctrl_c_ends_a_beam_search(tmp_path: Path) -> None:
    """A beam search prints nothing before it ends."""
    flags = ("--beams", "2", "--tokens", "1000000", "--early-stop", "never")
    with terminal("chat", "mine", *flags) as (screen, process):
        screen.wait_for("\n> ")
        screen.type("Once\n")
        screen.wait_for("Once\r\n")
        before = processor_time(process.pid)
        while processor_time(process.pid) < before + 0.5:  # the search has started
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        screen.wait_for("\n> ")
        screen.type(f"/save {tmp_path}/story.txt\n")
        screen.wait_for("saved as")
        assert (tmp_path / "story.txt").read_text("utf-8") == "Once\n"
