"""`lilliput chat`: a story partner in a terminal. Its user writes a line, the model goes on, and so in turns.

Owns: the loop of lines and /commands, what Ctrl-C means in it, and how it looks on a terminal and in a pipe.
Does not own: the story and its sentences (`decoding.chat_turns`), settings from words (`generation_flags`),
nor the writing (`decoding`).

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

from lilliput.cli.generation_flags import (
    add_writing,
    changed,
    check_writing,
    is_list,
    kinds,
    naming,
    said,
    tell,
    values,
)
from lilliput.cli.output import figures, say
from lilliput.cli.parsing import kind_name
from lilliput.cli.prompt_input import as_text
from lilliput.decoding.chat_turns import Sentences, Story, Turn, Wrap
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
    add_writing(parser, Partner)


def run(arguments: argparse.Namespace) -> int:
    mistakes: list[UserError] = []
    partner = check_writing(arguments, Partner, mistakes)
    if mistakes or partner is None:
        raise UserErrors(mistakes)
    from lilliput.decoding.writer import load

    writer = load(arguments.run, arguments.device)
    writer.encode_prompt("")  # a classifier is refused here, not in the middle of a story
    how, left_out = changed(writer.config.generate, said(arguments, GenerateSettings))
    for sentence in left_out:
        say(sentence)
    Chat(writer, how, partner, terminal=sys.stdin.isatty() and sys.stdout.isatty()).hold()
    return 0


class Command(NamedTuple):
    values: str
    meaning: str
    act: Callable[[Chat, str], object]


class Chat:
    def __init__(self, writer: Writer, how: GenerateSettings, partner: Partner, terminal: bool) -> None:
        self.writer, self.how, self.partner, self.terminal = writer, how, partner, terminal
        self.story = Story(as_text(how.prompt))
        self.saved: set[Path] = set()
        self.long = False  # is the story longer than what the model sees?
        self.over = False

    # ---- the loop

    def hold(self) -> None:
        with naming():
            self.writer.engine_for(self.how, say)
        if self.terminal:
            complete_words()
            self.note("Begin a story; the model goes on. Enter alone lets it write. /help tells the rest.")
        if self.story.beginning:
            self.show_story()
        for line in self.lines():
            try:
                with naming(str):
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
            raise UserError(f"there is no command /{word}", None, f"/{close or 'help'}")
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
        seed, sentences, finish = self.partner.seed, Sentences(self.partner.sentences), None
        self.partner = dataclasses.replace(self.partner, seed=(seed + 1) % 2**32)
        wrap = self.new_wrap()
        with suppress(KeyboardInterrupt), interruptible(at_once=self.how.beams is not None) as stopped:
            for piece in self.writer.write([before], seed=seed, settings=self.how):
                begun = bool(sentences.text.strip())
                text, finish = sentences.push(piece.text), piece.finish
                put(wrap.push(text if begun else text.lstrip()))
                if sentences.done or stopped():
                    break
        put(wrap.flush() + "\n")
        return sentences.text.rstrip(), finish

    def new_wrap(self) -> Wrap:
        return Wrap(min(WIDEST, shutil.get_terminal_size().columns) if self.terminal else None)

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
            what = f"there is no setting {name}" if name else "/set needs the name of a setting and its value"
            raise UserError(what, None, f"/set {close} VALUE" if close else "/show settings")
        try:
            words = shlex.split(typed)
        except ValueError:
            text = typed.strip()
            quoted = shlex.quote(text) if '"' in text else f'"{text}"'
            raise UserError(f"a quote is not closed: {text}", None, f"/set {name} {quoted}") from None
        if not words:
            kind = 'none|"A" "B"' if is_list(NAMES[name]) else kind_name(NAMES[name])
            raise UserError(f"{name} needs a value", None, f"/set {name} {kind}")
        value = " ".join(words)
        if name in kinds(Partner):
            self.partner = values(Partner, vars(self.partner) | {name: value}, call=str)
            self.note(f"({name} is {tell(getattr(self.partner, name))})")
            return
        texts = ([] if words == ["none"] else words) if is_list(NAMES[name]) else value
        how, left_out = changed(self.how, {name: texts}, call=str)
        self.writer.engine_for(how, say)  # which may refuse
        self.how = how
        when = "; a story begins with it after /new" if name == "prompt" else ""
        for sentence in [f"{name} is {tell(getattr(how, name))}{when}", *left_out]:
            self.note(f"({sentence})")

    def show(self, what: str) -> None:
        if what == "story":
            self.show_story()
        elif what in ("", "settings"):
            now = {**vars(self.partner), **vars(self.how)}
            run = {**vars(Partner()), **vars(self.writer.config.generate)}
            print_columns((name, tell(now[name]), "" if now[name] == run[name] else "changed") for name in NAMES)
        else:
            raise UserError(f"there is no {what!r} to show", None, "/show settings or /show story")

    def undo(self, _: str) -> None:
        self.last_turn()
        self.story.turns.pop()
        text = self.story.text
        self.note(
            f"(the story ends: {'...' if len(text) > TAIL else ''}{text[-TAIL:]})" if text else "(nothing is left)"
        )

    def again(self, _: str) -> None:
        if not self.how.is_drawn:
            self.note("(nothing is drawn: it writes the same again)")
        turn = self.last_turn()
        self.story.turns.pop()
        try:
            self.take_turn(turn.said)
        except UserError:
            self.story.turns.append(turn)
            raise

    def last_turn(self) -> Turn:
        if not self.story.turns:
            raise UserError("there is no turn to take back", None, "a line, or Enter")
        return self.story.turns[-1]

    def begin_anew(self, _: str) -> None:
        self.story, self.long = Story(as_text(self.how.prompt)), False
        self.note("(a new story)")
        if self.story.beginning:
            self.show_story()

    def save(self, name: str) -> None:
        if not name:
            raise UserError("/save needs the name of a file", None, "/save story.txt")
        path = Path(name).expanduser()
        try:
            with open(path, "w" if path.absolute() in self.saved else "x", encoding="utf-8") as file:
                file.write(self.story.text + "\n")
        except FileExistsError:
            raise UserError(f"{name} exists already, and is left alone", None, "/save another.txt") from None
        except OSError as error:
            raise UserError(f"the story cannot be saved: {error.strerror}", name, "/save another.txt") from None
        self.saved.add(path.absolute())
        self.note(f"(saved as {name})")

    def quit(self, _: str) -> None:
        self.over = True


COMMANDS = {
    "help": Command("", "this list", Chat.help),
    "set": Command(
        "NAME VALUE", 'change a setting: /set temperature 0.9, /set stop "The end" "Once, "; none is off', Chat.set
    ),
    "show": Command("settings|story", "the settings as they are, or the story so far", Chat.show),
    "sentences": Command(
        "N", "how many the model writes in its turn", lambda chat, value: chat.change("sentences", value)
    ),
    "again": Command("", "another continuation in place of the last, from the next seed", Chat.again),
    "undo": Command("", "take back the last turn, yours and the model's", Chat.undo),
    "new": Command("", "begin a new story", Chat.begin_anew),
    "save": Command("FILE", "write the story to a file", Chat.save),
    "seed": Command(
        "N", "the model's next turn is drawn from this seed", lambda chat, value: chat.change("seed", value)
    ),
    "quit": Command("", "leave; so does Ctrl-D, and Ctrl-C twice while nothing is written", Chat.quit),
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
