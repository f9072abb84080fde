"""The built-in corpus: a book of children's stories, written by a program whose every chance is known.

A story is about a hero who makes a promise in the first sentence and keeps it in the last. In between it
draws about sixty choices and must remember about ten of them: the names and their pronouns, the place, the
wish, what was packed, the promise. Because every choice goes through chance.Teller, the book can do two
things that no corpus of found text can: tell the exact probability of a story, hence the loss of a perfect
model (`floor_bits_per_byte`), and tell whether a text is one of its stories and where it stops being one
(`validity`).

Owns the scenes, the splits and those figures. The words are words.py, the handlers chance.py.
"""

from __future__ import annotations

import math
import random
import statistics
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from lilliput.data.storybook import probabilistic_program as chance
from lilliput.data.storybook import word_lists as w
from lilliput.data.storybook.probabilistic_program import ChoiceHandler, TextScore
from lilliput.data.storybook.word_lists import HELPERS, HEROES, Someone


class StoryFacts(NamedTuple):
    """What later scenes must remember."""

    hero: Someone = HEROES["Pip"]
    relative: str = ""
    treasure: str = ""  # promised in the first sentence, handed over in the last
    home: str = ""
    wish: str = ""
    destination: str = ""
    tool: str = ""
    helper: Someone = HELPERS["Bruno"]


Ending: TypeAlias = "tuple[StoryFacts, chance.Scene[StoryFacts] | None]"

A_SPOT = (w.A_SPOT_LOOK, " ", w.SPOTS)
SOMEWHERE = (" ", w.SIDES, " ", *A_SPOT)
AN_ANIMAL = (" ", w.AN_OTHER_NATURE, " ", w.HELPER_KINDS)


def article(noun: str) -> str:
    return w.with_article((noun,))[0]


def opening(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    """The first sentence: who promised what to whom."""
    say = teller.say
    occasion = (" for the ", w.SEASONS, " ", w.OCCASIONS)
    shape = teller.choose(("once", "was", "there", "promise"))
    if shape == "promise":
        shade, thing, *_ = say('"I promise you ', w.A_SHADE, " ", w.TREASURES, *occasion)
        (name,) = say('," said ', w.HERO_NAMES)
        hero = HEROES[name]
        *_, relative = say(", ", w.A_NATURE, " ", w.HERO_KINDS, f", to {hero.his} ", w.RELATIVES, ".")
    else:
        if shape == "once":
            *_, name = say("Once upon a time, ", w.A_NATURE, " ", w.HERO_KINDS, " named ", w.HERO_NAMES)
        elif shape == "was":
            name, *_ = say(w.HERO_NAMES, " was ", w.A_NATURE, " ", w.HERO_KINDS, " who")
        else:
            *_, name = say("There was once ", w.A_NATURE, " ", w.HERO_KINDS, " called ", w.HERO_NAMES, " who")
        hero = HEROES[name]
        relative, shade, thing = say(f" promised {hero.his} ", w.RELATIVES, " ", w.A_SHADE, " ", w.TREASURES)
        say(*occasion, ".")
    return facts._replace(hero=hero, relative=relative, treasure=f"{shade.split()[1]} {thing}"), home


def home(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero = teller.say, facts.hero
    if teller.choose(("lived", "smelled")) == "lived":
        *_, look, place = say(
            f" {hero.name} lived in ", w.A_COMFORT, " ", w.DWELLINGS, " near the ", w.HOME_LOOKS, " ", w.HOMES
        )
        say(" and liked ", w.PASTIMES, " ", w.PASTIME_THINGS, ".")
    else:
        _, look, place = say(f" {hero.His} ", w.DWELLINGS, " near the ", w.HOME_LOOKS, " ", w.HOMES)
        say(" was ", w.COMFORTS, " and smelled of ", w.SMELLS, ".")
    return facts._replace(home=f"the {look} {place}"), wish


def wish(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    hero = facts.hero
    dreamed, longed = f" {hero.He} dreamed of learning to ", f" {hero.name} longed to learn to "
    _, skill = teller.say((dreamed, longed, f" Most of all, {hero.he} wished to "), w.WISHES, ".\n")
    return facts._replace(wish=skill), departure


def departure(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero = teller.say, facts.hero
    some_food = (" some ", w.FOOD_LOOKS, " ", w.FOODS)
    a_tool = (" ", w.A_TOOL_LOOK, " ", w.TOOLS)
    shape = teller.choose(("one", "on", "then"))
    if shape == "one":
        *_, tool, _, _ = say("One ", w.WEATHERS, " ", w.DAYS, f", {hero.name} took", *a_tool, " and", *some_food)
    elif shape == "on":
        *_, tool = say("On ", w.A_WEATHER, " ", w.DAYS, f" {hero.he} packed", *some_food, ", found", *a_tool)
    else:
        say("Then came ", w.A_WEATHER, " ", w.DAYS, ".")
        _, tool, _, _ = say(f" {hero.name} took", *a_tool, ", packed", *some_food)
    _, look, place = say(" and ", w.STEPS, f" from {facts.home} to the ", w.FAR_LOOKS, " ", w.FAR_PLACES, ".")
    return facts._replace(tool=tool, destination=f"the {look} {place}"), warning


def warning(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    if teller.choose((True, False)):
        teller.say(' "', w.WARNINGS, '!" ', w.SPEAKING, f" {facts.hero.his} {facts.relative}.")
    return facts, teller.choose((road, stranger, storm, *PLOTS), INTERLUDES)


def road(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    teller.say(f" {facts.hero.He} ", w.STEPS, " past ", w.A_SIGHT_LOOK, " ", w.SIGHTS, " and ", *A_SPOT, ".")
    return facts, teller.choose(PLOTS)


def stranger(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    """A second animal, met on the way; it has no name and is an "it"."""
    say, hero = teller.say, facts.hero
    say(f' "Is this the way to {facts.destination}?" {hero.he} asked ', w.AN_OTHER_NATURE, " ", w.STRANGER_KINDS)
    say(*SOMEWHERE, ". It ", w.ANSWERS, ".")
    return facts, teller.choose(PLOTS)


def storm(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    teller.say(" When the ", w.STORMS, f" came, {facts.hero.he} hid", *SOMEWHERE, ".")
    return facts, teller.choose(PLOTS)


def lost(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero = teller.say, facts.hero
    starts = (
        f" Near {facts.destination}, {hero.he} saw that the {facts.tool} was gone.",
        f' "Oh no!" {hero.he} cried near {facts.destination}. "My {facts.tool} is gone!"',
    )
    say(starts, f" {hero.He} looked", *SOMEWHERE, ", but found only ", w.A_RUBBISH_LOOK, " ", w.RUBBISH, ".")
    *_, name = say(' "Why are you so ', w.WORRIES, '?" asked', *AN_ANIMAL, " named ", w.HELPER_NAMES, ".")
    return facts._replace(helper=HELPERS[name]), lost_and_found


def lost_and_found(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    say = teller.say
    say(f" {facts.helper.He} saw some ", w.TRACK_LOOKS, " ", w.TRACKS, ", and they followed them ", w.MANNERS, ".")
    say(f" There was the {facts.tool},", *SOMEWHERE, f", and next to it lay {article(facts.treasure)}!")
    return facts, celebration


def rescue(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero = teller.say, facts.hero
    *_, name = say(f" Near {facts.destination}, {hero.he} met", *AN_ANIMAL, " named ", w.HELPER_NAMES)
    helper = HELPERS[name]
    say(", who was stuck under ", *A_SPOT, " and felt ", w.WORRIES, ".")
    say(' "', w.ENCOURAGEMENTS, '," ', w.SPEAKING, f" {hero.name} and ", w.LABOURS, " ", w.MANNERS)
    say(" but ", w.MORE_MANNERS, f" with the {facts.tool} until {helper.he} was free.")
    return facts._replace(helper=helper), rescue_and_thanks


def rescue_and_thanks(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero, helper = teller.say, facts.hero, facts.helper
    say(' "Thank you!" ', w.SPEAKING, f' {helper.name}. "I need {article(facts.treasure)}," ', w.SPEAKING)
    say(f" {hero.name}, and {helper.name} found one", *SOMEWHERE, "!")
    return facts, celebration


def barrier(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero = teller.say, facts.hero
    say(" But ", w.A_BARRIER_LOOK, " ", w.BARRIERS, f" blocked the way to {facts.destination}.")
    say(f" {hero.name} tried ", w.MANNERS, " and then ", w.MORE_MANNERS, " to get past it, but could not.")
    name, *_ = say(' "I am ', w.HELPER_NAMES, '," ', w.SPEAKING, *AN_ANIMAL, *SOMEWHERE)
    say('. "', w.ENCOURAGEMENTS, '."')
    return facts._replace(helper=HELPERS[name]), barrier_and_beyond


def barrier_and_beyond(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    say = teller.say
    say(f" With the {facts.tool} they ", w.EFFORTS, " and ", w.MORE_EFFORTS, " to the other side.")
    say(" And there,", *SOMEWHERE, f", lay {article(facts.treasure)}!")
    return facts, celebration


def contest(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero = teller.say, facts.hero
    say(f" Near {facts.destination}, ", w.A_CROWD, " crowd was waiting for ", w.A_CONTEST, " contest.")
    say(f" The prize was {article(facts.treasure)}, but {hero.name} felt ", w.WORRIES, ".")
    *_, name = say(' "', w.ENCOURAGEMENTS, '," ', w.SPEAKING, *AN_ANIMAL, " named ", w.HELPER_NAMES, ".")
    return facts._replace(helper=HELPERS[name]), contest_and_prize


def contest_and_prize(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero, helper = teller.say, facts.hero, facts.helper
    say(f" So {hero.name} held the {facts.tool} for luck, began ", w.MANNERS, " and ended ", w.MORE_MANNERS, ".")
    say(f" {helper.name} clapped, and the judge, ", w.AN_OTHER_NATURE, " ", w.STRANGER_KINDS)
    say(f", gave {hero.him} the {facts.treasure}!")
    return facts, celebration


PLOTS = (lost, rescue, barrier, contest)
INTERLUDES = (4, 4, 4, 1, 1, 1, 1)  # a story goes straight to its plot one time in four


def celebration(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero, helper = teller.say, facts.hero, facts.helper
    shape = teller.choose(("shared", "ate", "teach"))
    if shape == "shared":
        say(" They shared the ", w.MEALS, *SOMEWHERE, f", and {helper.name} taught {hero.name} to {facts.wish}.")
    elif shape == "ate":
        say(f" Then {helper.name} showed {hero.him} how to {facts.wish}, and they ate the ", w.MEALS, *SOMEWHERE, ".")
    else:
        say(f' "Now I will teach you to {facts.wish}," ', w.SPEAKING, f" {helper.name}, and they ate the ")
        say(w.MEALS, *SOMEWHERE, ".")
    return facts, teller.choose((song, return_home))


def song(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    teller.say(' They sang: "', w.SONG_STARTS, " and ", w.SONG_STEPS, ", ", w.SONG_OPENINGS, ", ", w.SONG_ENDINGS, '!"')
    return facts, return_home


def return_home(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero = teller.say, facts.hero
    say("\nAt ", w.EVENINGS, f", {hero.name} ", w.PARTINGS, f" {facts.helper.name} and ", w.STEPS)
    say(f" home to {facts.home}. {hero.He} felt ", w.JOYS, " and ", w.MORE_JOYS, f", and hoped to {facts.wish} again.")
    return facts, lesson


def lesson(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    hero = facts.hero
    starts = (f" {hero.He} had learned that ", f" Now {hero.name} knew that ")
    teller.say(starts, w.VIRTUES, " ", w.VIRTUOUS, " ", w.REWARDS, ".")
    return facts, promise_kept


def promise_kept(teller: ChoiceHandler, facts: StoryFacts) -> Ending:
    """The last sentence needs the first."""
    hero, relative, treasure = facts.hero, facts.relative, facts.treasure
    teller.draw(
        (
            f" At the door {hero.he} gave {hero.his} {relative} the {treasure}, as {hero.he} had promised.",
            f" Then {hero.he} gave {hero.his} {relative} the {treasure}, and the promise was kept.",
            f' "I kept my promise," said {hero.name} and gave {hero.his} {relative} the {treasure}.',
            f" {hero.His} {relative} smiled at the {treasure}, for {hero.name} had kept the promise.",
        )
    )
    return facts, None


BOOK = chance.Program(opening, StoryFacts())

SPLITS = {"validation": (0,), "test": (1,), "train": tuple(range(2, 16))}  # sixteenths of the stories


def split_of(text: str) -> str:
    """The split of a story, from its text alone: no story can be in two of them, whatever the seeds."""
    sixteenth = zlib.crc32(text.encode()) & 15
    return next(split for split, sixteenths in SPLITS.items() if sixteenth in sixteenths)


def stories(split: str, seed: int) -> Iterator[str]:
    """Stories of "train", "validation" or "test" without end, the same on every machine for a seed."""
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}: {', '.join(sorted(SPLITS))}")
    wanted = frozenset(SPLITS[split])
    for text in chance.samples(BOOK, random.Random(f"storybook {seed}")):
        if zlib.crc32(text.encode()) & 15 in wanted:
            yield text


def score(text: str) -> TextScore:
    """The exact log-probability of a text in nats, or where it stops being a story of this book.

    A story that is cut short or goes on after its end is not a story of the book.
    """
    return chance.score(BOOK, text)


def floor_bits_per_byte(texts: Iterable[str]) -> float:
    """The loss of a perfect model of the book on these stories, over their UTF-8 bytes.

    The probability is that of the complete text, so its end costs nothing more. That a split holds only stories with
    certain hashes is ignored on purpose: it would lower the floor by log2(16/14) bits a story on the training split and
    by 4 bits on the others, and no model can learn a hash.
    """
    nats, size = 0.0, 0
    for number, text in enumerate(texts):
        judged = score(text)
        if judged.logprob is None:
            raise ValueError(f"text {number} is not a story of the book: it breaks at character {judged.position}")
        nats -= judged.logprob
        size += len(text.encode())
    if not size:
        raise ValueError("no stories to take the floor of")
    return nats / math.log(2) / size


@dataclass(frozen=True)
class Break:
    """A scene in which texts stopped being stories, with the first of them."""

    scene: str
    count: int
    example: str
    position: int
    expected: tuple[str, ...]


@dataclass(frozen=True)
class Validity:
    """How many of the texts are stories of the book, and where the others break, the most frequent scene first."""

    count: int
    valid: int
    breaks: tuple[Break, ...]

    @property
    def share(self) -> float:
        return self.valid / self.count if self.count else 0.0


def validity(texts: Iterable[str]) -> Validity:
    count = valid = 0
    broken: dict[str, list[tuple[str, TextScore]]] = {}
    for text in texts:
        count += 1
        judged = score(text)
        if judged.valid:
            valid += 1
        else:
            broken.setdefault(judged.scene or "", []).append((text, judged))
    breaks = [
        Break(scene, len(cases), cases[0][0], cases[0][1].position or 0, cases[0][1].expected)
        for scene, cases in broken.items()
    ]
    return Validity(count, valid, tuple(sorted(breaks, key=lambda item: (-item.count, item.scene))))


def size() -> float:
    """A lower bound of log10 of the number of different stories.

    N stories have an entropy of at most log N, so N >= exp(entropy). The entropy is the mean of -logprob over sampled
    stories, less four standard errors.
    """
    texts = chance.samples(BOOK, random.Random("size of the storybook"))
    surprises = [-(score(text).logprob or 0.0) for text, _ in zip(texts, range(200), strict=False)]
    error = statistics.stdev(surprises) / math.sqrt(len(surprises))
    return (statistics.fmean(surprises) - 4 * error) / math.log(10)
