"""`lilliput chat`: a story partner in a terminal. Its user writes a line, the model goes on, and so in turns.

Owns: the loop of lines and /commands, what Ctrl-C means in it, and how it looks on a terminal and in a pipe.
Does not own: the story and its sentences (`decoding.chat_turns`), settings from words (`generation_flags`),
nor generation (`decoding`).

The whole story is the prompt of every turn. The engine keeps what it has read as a prompt, so a turn reads
what was added and written since the last prompt, and not the story before it (`decoding.prefix_cache`).
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from pydantic.dataclasses import dataclass
from rich.table import Table
from rich.text import Text

from lilliput.cli.error_flags import flags_in_errors
from lilliput.cli.generation_flags import (
    add_generation_flags,
    apply_given,
    as_typed,
    check_flags,
    check_generation_flags,
    given_flags,
    is_list,
    kinds,
)
from lilliput.cli.output import LineWrapper, figures, say
from lilliput.cli.parsing import kind_name
from lilliput.cli.prompt_input import as_text
from lilliput.decoding.chat_turns import SentenceBuffer, Story, Turn
from lilliput.decoding.generation_settings import PREFIX
from lilliput.errors import UserError, UserErrors, nearest
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
WIDEST = 100  # columns of a line that is read with ease
TAIL = 60  # characters of a story that say where one is in it


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Partner:
    """What only a partner has; how it writes are the run's own settings."""

    sentences: Count | None = describe("most sentences that the model writes in its turn", 2)
    seed: Seed = describe("each turn of the model is drawn from the next seed, beginning with this", 0)


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
    writer.encode_prompt("")  # a classifier is refused here, not in the middle of a story
    settings, notes = apply_given(writer.config.generate, given_flags(arguments, GenerateSettings))
    for note in notes:
        say(note)
    Chat(writer, settings, partner, terminal=sys.stdin.isatty() and sys.stdout.isatty()).hold()
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
        self.long = False  # is the story longer than what the model sees?
        self.over = False

    # ---- the loop

    def hold(self) -> None:
        with flags_in_errors():
            self.writer.engine_for(self.settings, say)
        if self.terminal:
            complete_words()
            self.note("Begin a story; the model goes on. Enter alone lets it write. /help tells the rest.")
        if self.story.beginning:
            self.show_story()
        for line in self.lines():
            try:
                with flags_in_errors(str):
                    self.answer(line)
            except UserError as error:
                say(str(error))
            if self.over:
                return

    def lines(self) -> Iterator[str]:
        """What is typed, or comes through a pipe, until it ends."""
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # bytes that are no text are no reason to fail
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
                self.note("(/quit or Ctrl-D ends, /save FILE keeps the story; Ctrl-C again leaves at once)")
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
            raise UserError(f"unknown command /{word}", None, fix=f"/{close or 'help'}", code="command.unknown")
        COMMANDS[word].act(self, rest.strip())

    # ---- writing

    def take_turn(self, added: str) -> None:
        before = self.story.text + added
        self.note_length(before)
        written, finish = self.write(before)
        if added or written:
            self.story.turns.append(Turn(added, written))
        if finish == "end":
            self.note("(the model ends the story here: go on from it, or /new)")

    def write(self, before: str) -> tuple[str, Finish | None]:
        """What the model writes on, shown while it is written, without the space that joins it."""
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
                f"(the story has {length:,} tokens: from now on the model sees the last {context // 2:,} or more)"
            )
        self.long = length > context

    def note(self, text: str) -> None:
        """For somebody who looks on."""
        if self.terminal:
            figures().print(Text(text, style="dim"))

    def show_story(self) -> None:
        wrap = self.new_wrap()
        put(wrap.push(self.story.text) + wrap.flush() + "\n")

    # ---- commands

    def help(self, _: str) -> None:
        rows = ((f"/{name} {command.values}", command.meaning) for name, command in COMMANDS.items())
        print_columns([*rows, ("anything else", "is added to the story; Enter alone lets the model go on")])

    def set(self, words: str) -> None:
        name, _, value = words.partition(" ")
        self.change(name, value)

    def change(self, name: str, typed: str) -> None:
        """The value is read as a shell would: texts of a list stand apart, and those with spaces in quotes."""
        name = name.replace("-", "_")
        if name not in NAMES:
            close = nearest(name, NAMES)
            fix = f"/set {close} VALUE" if close else "/show settings"
            if not name:
                raise UserError("/set requires the name of a setting and a value", None, fix=fix, code="flag.missing")
            raise UserError(f"unknown setting {name}", None, fix=fix, code="setting.unknown", setting=name)
        try:
            words = shlex.split(typed)
        except ValueError:
            text = typed.strip()
            quoted = shlex.quote(text) if '"' in text else f'"{text}"'
            what, fix = f"a quote is not closed: {text}", f"/set {name} {quoted}"
            raise UserError(what, name, fix=fix, code="flag.value", setting=dotted(name)) from None
        if not words:
            kind = 'none|"A" "B"' if is_list(NAMES[name]) else kind_name(NAMES[name])
            what, fix = f"{name} requires a value", f"/set {name} {kind}"
            raise UserError(what, None, fix=fix, code="flag.missing", setting=dotted(name))
        value = " ".join(words)
        if name in kinds(Partner):
            self.partner = check_flags(Partner, vars(self.partner) | {name: value}, call=str)
            self.note(f"({name} is {as_typed(getattr(self.partner, name))})")
            return
        texts = ([] if words == ["none"] else words) if is_list(NAMES[name]) else value
        settings, notes = apply_given(self.settings, {name: texts}, call=str)
        self.writer.engine_for(settings, say)  # which may raise
        self.settings = settings
        when = "; a story begins with it after /new" if name == "prompt" else ""
        for note in [f"{name} is {as_typed(getattr(settings, name))}{when}", *notes]:
            self.note(f"({note})")

    def show(self, what: str) -> None:
        if what == "story":
            self.show_story()
        elif what in ("", "settings"):
            now = {**vars(self.partner), **vars(self.settings)}
            run = {**vars(Partner()), **vars(self.writer.config.generate)}
            print_columns((name, as_typed(now[name]), "" if now[name] == run[name] else "changed") for name in NAMES)
        else:
            raise UserError(f"/show cannot show {what!r}", None, fix="/show settings or /show story", code="flag.value")

    def undo(self, _: str) -> None:
        self.last_turn()
        self.story.turns.pop()
        text = self.story.text
        self.note(
            f"(the story ends: {'...' if len(text) > TAIL else ''}{text[-TAIL:]})" if text else "(nothing is left)"
        )

    def again(self, _: str) -> None:
        if not self.settings.is_drawn:
            self.note("(nothing is drawn: it writes the same again)")
        turn = self.last_turn()
        self.story.turns.pop()
        try:
            self.take_turn(turn.added)
        except UserError:
            self.story.turns.append(turn)
            raise

    def last_turn(self) -> Turn:
        if not self.story.turns:
            raise UserError(
                "the story has no turn yet", None, fix="type a line, or press Enter", code="request.invalid"
            )
        return self.story.turns[-1]

    def begin_anew(self, _: str) -> None:
        self.story, self.long = Story(as_text(self.settings.prompt)), False
        self.note("(a new story)")
        if self.story.beginning:
            self.show_story()

    def save(self, name: str) -> None:
        if not name:
            raise UserError("/save requires the name of a file", None, fix="/save story.txt", code="flag.missing")
        path = Path(name).expanduser()
        try:
            with open(path, "w" if path.absolute() in self.saved else "x", encoding="utf-8") as file:
                file.write(self.story.text + "\n")
        except FileExistsError:
            raise UserError("the file exists already", name, fix="/save another.txt", code="file.exists") from None
        except OSError as error:
            what = f"cannot write the story: {error.strerror}"
            raise UserError(what, name, fix="/save another.txt", code="file.not-written") from None
        self.saved.add(path.absolute())
        self.note(f"(saved as {name})")

    def quit(self, _: str) -> None:
        self.over = True


COMMANDS = {
    "help": ChatCommand("", "this list", Chat.help),
    "set": ChatCommand(
        "NAME VALUE", 'change a setting: /set temperature 0.9, /set stop "The end" "Once, "; none is off', Chat.set
    ),
    "show": ChatCommand("settings|story", "the settings as they are, or the story so far", Chat.show),
    "sentences": ChatCommand(
        "N", "how many the model writes in its turn", lambda chat, value: chat.change("sentences", value)
    ),
    "again": ChatCommand("", "another continuation in place of the last, from the next seed", Chat.again),
    "undo": ChatCommand("", "take back the last turn, yours and the model's", Chat.undo),
    "new": ChatCommand("", "begin a new story", Chat.begin_anew),
    "save": ChatCommand("FILE", "write the story to a file", Chat.save),
    "seed": ChatCommand(
        "N", "the model's next turn is drawn from this seed", lambda chat, value: chat.change("seed", value)
    ),
    "quit": ChatCommand("", "leave; so does Ctrl-D, and Ctrl-C twice while nothing is written", Chat.quit),
}


@contextmanager
def interruptible(at_once: bool) -> Iterator[Callable[[], bool]]:
    """Tells whether Ctrl-C was pressed: the token that is being computed is finished. The second one stops at once.

    So does the first, where no token comes before the whole text is found.
    """
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed or at_once:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def dotted(name: str) -> str | None:
    """Return the dotted name of a setting of the chat; None for a flag of the chat's own."""
    return f"{PREFIX}{name}" if name in kinds(GenerateSettings) else None


def put(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def print_columns(rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    figures().print(table)


def complete_words() -> None:
    """Tab completes commands and settings, and the arrow keys go through what was typed, where there is readline."""
    with suppress(ImportError):
        import readline

        words = [*(f"/{name} " for name in COMMANDS), *(f"/set {name} " for name in NAMES)]

        def complete(text: str, state: int) -> str | None:
            found = [word for word in words if text and word.startswith(text)]
            return found[state] if state < len(found) else None

        readline.set_completer_delims("")
        readline.set_completer(complete)
        readline.parse_and_bind("tab: complete")
