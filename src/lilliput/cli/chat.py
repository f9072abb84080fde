"""`lilliput chat`: write a story in turns: the user types a line, and the model continues.

Owns: the loop over lines, and the /commands. Does not own: the terminal (`chat_terminal`), the story and its sentences
(`decoding.chat_turns`), parsing settings (`generation_flags`), or generation (`decoding`).

The whole story is the prompt of every turn. The prefix cache of the engine keeps its keys and values, so a turn computes
only what was added since the last one (`decoding.prefix_cache`).
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic.dataclasses import dataclass
from rich.text import Text

from lilliput.cli.chat_terminal import complete, interruptible, print_columns, put
from lilliput.cli.error_flags import flags_in_errors
from lilliput.cli.generation_flags import (
    add_generation_flags,
    apply_given,
    check_flags,
    check_generation_flags,
    given_flags,
    is_list,
    kinds,
)
from lilliput.cli.mixture_output import open_mixture
from lilliput.cli.output import LineWrapper, print_note, print_status, stdout_console
from lilliput.cli.parsing import kind_name
from lilliput.cli.prompt_input import as_text
from lilliput.decoding.chat_turns import SentenceBuffer, Story, Turn
from lilliput.decoding.generation_settings import PREFIX
from lilliput.errors import UserError, UserErrors, nearest
from lilliput.settings.loading import as_typed
from lilliput.settings.tree import STRICT, Count, GenerateSettings, Seed, describe

if TYPE_CHECKING:
    from lilliput.decoding.requests import Finish
    from lilliput.decoding.writer import Writer

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput chat demo
    lilliput chat demo --prompt "Once upon a time" --sentences 1
    lilliput chat demo --temperature 0.9 --top-p 0.95 --seed 7
"""
WIDEST = 100  # columns of a line of the story
TAIL = 60  # characters shown of the end of a story


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Partner:
    """Settings of the chat, in addition to the `generate` settings of the run."""

    sentences: Count | None = describe("maximum number of sentences per turn of the model", 2)
    seed: Seed = describe("random seed of the first turn; it increases by 1 per turn", 0)


NAMES = {**kinds(Partner), **kinds(GenerateSettings)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_generation_flags(parser, Partner)


def run(arguments: argparse.Namespace) -> int:
    errors: list[UserError] = []
    partner = check_generation_flags(arguments, Partner, errors)
    if errors or partner is None:
        raise UserErrors(errors)
    from lilliput.decoding.writer import load

    with flags_in_errors():
        writer = load(arguments.run, arguments.device)
    writer.encode_prompt("")  # raises for a classifier
    settings, notes = apply_given(writer.config.generate, given_flags(arguments, GenerateSettings))
    for note in notes:
        print_note(note)
    Chat(writer, settings, partner, terminal=sys.stdin.isatty() and sys.stdout.isatty()).run()
    return 0


class ChatCommand(NamedTuple):
    values: str
    meaning: str
    act: Callable[[Chat, str], object]


class Chat:
    def __init__(self, writer: Writer, settings: GenerateSettings, partner: Partner, terminal: bool) -> None:
        self.writer, self.settings, self.partner, self.terminal = writer, settings, partner, terminal
        self.story = Story(as_text(settings.prompt))
        self.saved: set[Path] = set()
        self.long = False  # whether the story is longer than the context
        self.over = False

    def run(self) -> None:
        with flags_in_errors():
            open_mixture(self.writer, self.settings)
            self.writer.engine_for(self.settings, print_note)
        if self.terminal:
            complete([*(f"/{name} " for name in COMMANDS), *(f"/set {name} " for name in NAMES)])
            self.note(
                "Type the start of a story; the model continues. Enter alone: the model continues. /help: commands."
            )
        if self.story.beginning:
            self.show_story()
        for line in self.lines():
            try:
                with flags_in_errors(str):
                    self.answer(line)
            except UserError as error:
                print_status(error.printed())
            if self.over:
                return

    def lines(self) -> Iterator[str]:
        """Yield the lines of the terminal or the pipe."""
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # accept bytes that are not UTF-8
        if not self.terminal:
            yield from (line.rstrip("\r\n") for line in sys.stdin)
            return
        pressed = False
        while True:
            try:
                line = input("> ")
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                if pressed:
                    raise
                pressed = True
                print()
                self.note("(/quit or Ctrl-D: leave; /save FILE: save the story; Ctrl-C again: leave now)")
                continue
            pressed = False
            yield line

    def answer(self, line: str) -> None:
        if not line.startswith("/"):
            self.take_turn(self.story.join(line))
            return
        word, _, rest = line[1:].strip().partition(" ")
        if word not in COMMANDS:
            close = nearest(word, COMMANDS)
            raise UserError(f"unknown command /{word}", None, fix=f"use /{close or 'help'}", code="command.unknown")
        COMMANDS[word].act(self, rest.strip())

    def take_turn(self, added: str) -> None:
        before = self.story.text + added
        self.note_length(before)
        written, finish = self.write(before)
        if added or written:
            self.story.turns.append(Turn(added, written))
        if finish == "end":
            self.note("(the model ended the story; continue it, or start another with /new)")

    def write(self, before: str) -> tuple[str, Finish | None]:
        """Generate and print the model's turn; return it, and how it finished."""
        seed, sentences, finish = self.partner.seed, SentenceBuffer(self.partner.sentences), None
        self.partner = dataclasses.replace(self.partner, seed=(seed + 1) % 2**32)
        wrap = self.new_wrap()
        with suppress(KeyboardInterrupt), interruptible(at_once=self.settings.beams is not None) as stopped:
            for piece in self.writer.write([before], seed=seed, settings=self.settings):
                begun = bool(sentences.text.strip())
                text, finish = sentences.push(piece.text), piece.finish
                put(wrap.push(text if begun else text.lstrip()))
                if sentences.done or stopped():
                    break
        put(wrap.flush() + "\n")
        return sentences.text.rstrip(), finish

    def new_wrap(self) -> LineWrapper:
        return LineWrapper(min(WIDEST, shutil.get_terminal_size().columns) if self.terminal else None)

    def note_length(self, before: str) -> None:
        context = self.writer.config.model.context
        length = len(self.writer.encode_prompt(before))
        if length > context and not self.long:
            self.note(
                f"(the story has {length:,} tokens; from now on the model sees only the last {context // 2:,} to {context:,})"
            )
        self.long = length > context

    def note(self, text: str) -> None:
        """Print a note on a terminal."""
        if self.terminal:
            stdout_console().print(Text(text, style="dim"))

    def show_story(self) -> None:
        wrap = self.new_wrap()
        put(wrap.push(self.story.text) + wrap.flush() + "\n")

    def help(self, _: str) -> None:
        rows = ((f"/{name} {command.values}", command.meaning) for name, command in COMMANDS.items())
        print_columns([*rows, ("other text", "is added to the story; the model continues, also after Enter alone")])

    def set(self, words: str) -> None:
        name, _, value = words.partition(" ")
        self.change(name, value)

    def change(self, name: str, typed: str) -> None:
        """Change a setting. The value is split like a shell command: strings with spaces are quoted."""
        name = name.replace("-", "_")
        if name not in NAMES:
            close = nearest(name, NAMES)
            fix = f"use /set {close} VALUE" if close else "use /show settings"
            if not name:
                raise UserError("/set requires a setting and a value", None, fix=fix, code="flag.missing")
            raise UserError(f"unknown setting {name}", None, fix=fix, code="setting.unknown", setting=name)
        try:
            words = shlex.split(typed)
        except ValueError:
            text = typed.strip()
            quoted = shlex.quote(text) if '"' in text else f'"{text}"'
            what, fix = f"a quotation mark is not closed: {text}", f"use /set {name} {quoted}"
            raise UserError(what, name, fix=fix, code="flag.value", setting=dotted(name)) from None
        if not words:
            kind = 'none|"A" "B"' if is_list(NAMES[name]) else kind_name(NAMES[name])
            what, fix = f"{name} requires a value", f"use /set {name} {kind}"
            raise UserError(what, None, fix=fix, code="flag.missing", setting=dotted(name))
        value = " ".join(words)
        if name in kinds(Partner):
            self.partner = check_flags(Partner, vars(self.partner) | {name: value}, call=str)
            self.note(f"({name} = {as_typed(getattr(self.partner, name))})")
            return
        texts = ([] if words == ["none"] else words) if is_list(NAMES[name]) else value
        settings, notes = apply_given(self.settings, {name: texts}, call=str)
        if name == "mix_ngram":
            open_mixture(self.writer, settings)  # may raise
        self.writer.engine_for(settings, print_note)  # may raise
        self.settings = settings
        when = "; used after /new" if name == "prompt" else ""
        for note in [f"{name} = {as_typed(getattr(settings, name))}{when}", *notes]:
            self.note(f"({note})")

    def show(self, name: str) -> None:
        if name == "story":
            self.show_story()
        elif name in ("", "settings"):
            now = {**vars(self.partner), **vars(self.settings)}
            run = {**vars(Partner()), **vars(self.writer.config.generate)}
            print_columns((name, as_typed(now[name]), "" if now[name] == run[name] else "changed") for name in NAMES)
        else:
            what = f"/show requires settings or story (got {name!r})"
            raise UserError(what, None, fix="use /show settings or /show story", code="flag.value")

    def undo(self, _: str) -> None:
        self.last_turn()
        self.story.turns.pop()
        text = self.story.text
        self.note(
            f"(the story now ends: {'...' if len(text) > TAIL else ''}{text[-TAIL:]})"
            if text
            else "(the story is empty)"
        )

    def again(self, _: str) -> None:
        if not self.settings.is_drawn:
            self.note("(nothing is sampled with these settings: the text is the same)")
        turn = self.last_turn()
        self.story.turns.pop()
        try:
            self.take_turn(turn.added)
        except UserError:
            self.story.turns.append(turn)
            raise

    def last_turn(self) -> Turn:
        if not self.story.turns:
            raise UserError("the story has no turns", None, fix="add a line, or press Enter", code="request.invalid")
        return self.story.turns[-1]

    def new(self, _: str) -> None:
        self.story, self.long = Story(as_text(self.settings.prompt)), False
        self.note("(a new story)")
        if self.story.beginning:
            self.show_story()

    def save(self, name: str) -> None:
        if not name:
            raise UserError("/save requires a file name", None, fix="use /save story.txt", code="flag.missing")
        path = Path(name).expanduser()
        try:
            with open(path, "w" if path.absolute() in self.saved else "x", encoding="utf-8") as file:
                file.write(self.story.text + "\n")
        except FileExistsError:
            raise UserError("the file exists", name, fix="use /save another.txt", code="file.exists") from None
        except OSError as error:
            what = f"cannot write the story: {error.strerror}"
            raise UserError(what, name, fix="use /save another.txt", code="file.not-written") from None
        self.saved.add(path.absolute())
        self.note(f"(saved as {name})")

    def quit(self, _: str) -> None:
        self.over = True


COMMANDS = {
    "help": ChatCommand("", "list the commands", Chat.help),
    "set": ChatCommand(
        "NAME VALUE",
        'change a setting, as in /set temperature 0.9 or /set stop "The end" "Once, "; /set NAME none turns it off',
        Chat.set,
    ),
    "show": ChatCommand("settings|story", "show the settings, or the story", Chat.show),
    "sentences": ChatCommand(
        "N",
        "set the maximum number of sentences per turn of the model",
        lambda chat, value: chat.change("sentences", value),
    ),
    "again": ChatCommand("", "replace the last turn of the model, with the next seed", Chat.again),
    "undo": ChatCommand("", "remove the last turn, yours and the model's", Chat.undo),
    "new": ChatCommand("", "start a new story", Chat.new),
    "save": ChatCommand("FILE", "write the story to a file", Chat.save),
    "seed": ChatCommand("N", "set the seed of the next turn", lambda chat, value: chat.change("seed", value)),
    "quit": ChatCommand("", "leave (also Ctrl-D, or Ctrl-C twice at the prompt)", Chat.quit),
}


def dotted(name: str) -> str | None:
    """Return the dotted name of a `generate` setting; None for a setting of the chat."""
    return f"{PREFIX}{name}" if name in kinds(GenerateSettings) else None
