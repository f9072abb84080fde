"""The built-in corpus: children's stories from a probabilistic program with known probabilities.

In a story a hero makes a promise in the first sentence and keeps it in the last. A story makes about sixty random
choices and refers back to about ten of them: the names and their pronouns, the place, the wish, the packed tool, the
promise. Because every choice has a known probability, the program computes the exact probability of a story, hence the
loss of a perfect model (`floor_bits_per_byte`), and whether a text is a valid story (`validity`).

Owns: the scenes, the splits and these metrics. Does not own: the words (`word_lists`), sampling and scoring
(`probabilistic_program`).
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from lilliput.data.storybook import probabilistic_program as chance
from lilliput.data.storybook import word_lists as w
from lilliput.data.storybook.probabilistic_program import ChoiceHandler, TextScore
from lilliput.data.storybook.word_lists import HELPERS, HEROES, Someone


class StoryFacts(NamedTuple):
    """What later scenes refer to."""

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


def opening(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    """The first sentence: the hero promises a treasure to a relative."""
    say = handler.say
    occasion = (" for the ", w.SEASONS, " ", w.OCCASIONS)
    shape = handler.choose(("once", "was", "there", "promise"))
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


def home(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero = handler.say, facts.hero
    if handler.choose(("lived", "smelled")) == "lived":
        *_, look, place = say(
            f" {hero.name} lived in ", w.A_COMFORT, " ", w.DWELLINGS, " near the ", w.HOME_LOOKS, " ", w.HOMES
        )
        say(" and liked ", w.PASTIMES, " ", w.PASTIME_THINGS, ".")
    else:
        _, look, place = say(f" {hero.His} ", w.DWELLINGS, " near the ", w.HOME_LOOKS, " ", w.HOMES)
        say(" was ", w.COMFORTS, " and smelled of ", w.SMELLS, ".")
    return facts._replace(home=f"the {look} {place}"), wish


def wish(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    hero = facts.hero
    dreamed, longed = f" {hero.He} dreamed of learning to ", f" {hero.name} longed to learn to "
    _, skill = handler.say((dreamed, longed, f" Most of all, {hero.he} wished to "), w.WISHES, ".\n")
    return facts._replace(wish=skill), departure


def departure(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero = handler.say, facts.hero
    some_food = (" some ", w.FOOD_LOOKS, " ", w.FOODS)
    a_tool = (" ", w.A_TOOL_LOOK, " ", w.TOOLS)
    shape = handler.choose(("one", "on", "then"))
    if shape == "one":
        *_, tool, _, _ = say("One ", w.WEATHERS, " ", w.DAYS, f", {hero.name} took", *a_tool, " and", *some_food)
    elif shape == "on":
        *_, tool = say("On ", w.A_WEATHER, " ", w.DAYS, f" {hero.he} packed", *some_food, ", found", *a_tool)
    else:
        say("Then came ", w.A_WEATHER, " ", w.DAYS, ".")
        _, tool, _, _ = say(f" {hero.name} took", *a_tool, ", packed", *some_food)
    _, look, place = say(" and ", w.STEPS, f" from {facts.home} to the ", w.FAR_LOOKS, " ", w.FAR_PLACES, ".")
    return facts._replace(tool=tool, destination=f"the {look} {place}"), warning


def warning(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    if handler.choose((True, False)):
        handler.say(' "', w.WARNINGS, '!" ', w.SPEAKING, f" {facts.hero.his} {facts.relative}.")
    return facts, handler.choose((road, stranger, storm, *PLOTS), INTERLUDES)


def road(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    handler.say(f" {facts.hero.He} ", w.STEPS, " past ", w.A_SIGHT_LOOK, " ", w.SIGHTS, " and ", *A_SPOT, ".")
    return facts, handler.choose(PLOTS)


def stranger(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    """A second animal on the way, without a name; its pronoun is "it"."""
    say, hero = handler.say, facts.hero
    say(f' "Is this the way to {facts.destination}?" {hero.he} asked ', w.AN_OTHER_NATURE, " ", w.STRANGER_KINDS)
    say(*SOMEWHERE, ". It ", w.ANSWERS, ".")
    return facts, handler.choose(PLOTS)


def storm(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    handler.say(" When the ", w.STORMS, f" came, {facts.hero.he} hid", *SOMEWHERE, ".")
    return facts, handler.choose(PLOTS)


def lost(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero = handler.say, facts.hero
    starts = (
        f" Near {facts.destination}, {hero.he} saw that the {facts.tool} was gone.",
        f' "Oh no!" {hero.he} cried near {facts.destination}. "My {facts.tool} is gone!"',
    )
    say(starts, f" {hero.He} looked", *SOMEWHERE, ", but found only ", w.A_RUBBISH_LOOK, " ", w.RUBBISH, ".")
    *_, name = say(' "Why are you so ', w.WORRIES, '?" asked', *AN_ANIMAL, " named ", w.HELPER_NAMES, ".")
    return facts._replace(helper=HELPERS[name]), lost_and_found


def lost_and_found(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    say = handler.say
    say(f" {facts.helper.He} saw some ", w.TRACK_LOOKS, " ", w.TRACKS, ", and they followed them ", w.MANNERS, ".")
    say(f" There was the {facts.tool},", *SOMEWHERE, f", and next to it lay {article(facts.treasure)}!")
    return facts, celebration


def rescue(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero = handler.say, facts.hero
    *_, name = say(f" Near {facts.destination}, {hero.he} met", *AN_ANIMAL, " named ", w.HELPER_NAMES)
    helper = HELPERS[name]
    say(", who was stuck under ", *A_SPOT, " and felt ", w.WORRIES, ".")
    say(' "', w.ENCOURAGEMENTS, '," ', w.SPEAKING, f" {hero.name} and ", w.LABOURS, " ", w.MANNERS)
    say(" but ", w.MORE_MANNERS, f" with the {facts.tool} until {helper.he} was free.")
    return facts._replace(helper=helper), rescue_and_thanks


def rescue_and_thanks(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero, helper = handler.say, facts.hero, facts.helper
    say(' "Thank you!" ', w.SPEAKING, f' {helper.name}. "I need {article(facts.treasure)}," ', w.SPEAKING)
    say(f" {hero.name}, and {helper.name} found one", *SOMEWHERE, "!")
    return facts, celebration


def barrier(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero = handler.say, facts.hero
    say(" But ", w.A_BARRIER_LOOK, " ", w.BARRIERS, f" blocked the way to {facts.destination}.")
    say(f" {hero.name} tried ", w.MANNERS, " and then ", w.MORE_MANNERS, " to get past it, but could not.")
    name, *_ = say(' "I am ', w.HELPER_NAMES, '," ', w.SPEAKING, *AN_ANIMAL, *SOMEWHERE)
    say('. "', w.ENCOURAGEMENTS, '."')
    return facts._replace(helper=HELPERS[name]), barrier_and_beyond


def barrier_and_beyond(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    say = handler.say
    say(f" With the {facts.tool} they ", w.EFFORTS, " and ", w.MORE_EFFORTS, " to the other side.")
    say(" And there,", *SOMEWHERE, f", lay {article(facts.treasure)}!")
    return facts, celebration


def contest(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero = handler.say, facts.hero
    say(f" Near {facts.destination}, ", w.A_CROWD, " crowd was waiting for ", w.A_CONTEST, " contest.")
    say(f" The prize was {article(facts.treasure)}, but {hero.name} felt ", w.WORRIES, ".")
    *_, name = say(' "', w.ENCOURAGEMENTS, '," ', w.SPEAKING, *AN_ANIMAL, " named ", w.HELPER_NAMES, ".")
    return facts._replace(helper=HELPERS[name]), contest_and_prize


def contest_and_prize(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero, helper = handler.say, facts.hero, facts.helper
    say(f" So {hero.name} held the {facts.tool} for luck, began ", w.MANNERS, " and ended ", w.MORE_MANNERS, ".")
    say(f" {helper.name} clapped, and the judge, ", w.AN_OTHER_NATURE, " ", w.STRANGER_KINDS)
    say(f", gave {hero.him} the {facts.treasure}!")
    return facts, celebration


PLOTS = (lost, rescue, barrier, contest)
INTERLUDES = (4, 4, 4, 1, 1, 1, 1)  # one story in four has no interlude before its plot


def celebration(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero, helper = handler.say, facts.hero, facts.helper
    shape = handler.choose(("shared", "ate", "teach"))
    if shape == "shared":
        say(" They shared the ", w.MEALS, *SOMEWHERE, f", and {helper.name} taught {hero.name} to {facts.wish}.")
    elif shape == "ate":
        say(f" Then {helper.name} showed {hero.him} how to {facts.wish}, and they ate the ", w.MEALS, *SOMEWHERE, ".")
    else:
        say(f' "Now I will teach you to {facts.wish}," ', w.SPEAKING, f" {helper.name}, and they ate the ")
        say(w.MEALS, *SOMEWHERE, ".")
    return facts, handler.choose((song, return_home))


def song(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    handler.say(
        ' They sang: "', w.SONG_STARTS, " and ", w.SONG_STEPS, ", ", w.SONG_OPENINGS, ", ", w.SONG_ENDINGS, '!"'
    )
    return facts, return_home


def return_home(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    say, hero = handler.say, facts.hero
    say("\nAt ", w.EVENINGS, f", {hero.name} ", w.PARTINGS, f" {facts.helper.name} and ", w.STEPS)
    say(f" home to {facts.home}. {hero.He} felt ", w.JOYS, " and ", w.MORE_JOYS, f", and hoped to {facts.wish} again.")
    return facts, lesson


def lesson(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    hero = facts.hero
    starts = (f" {hero.He} had learned that ", f" Now {hero.name} knew that ")
    handler.say(starts, w.VIRTUES, " ", w.VIRTUOUS, " ", w.REWARDS, ".")
    return facts, promise_kept


def promise_kept(handler: ChoiceHandler, facts: StoryFacts) -> Ending:
    """The last sentence repeats relative and treasure of the first."""
    hero, relative, treasure = facts.hero, facts.relative, facts.treasure
    handler.draw(
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
    """Return the split of a story. It depends on the text alone, so no story is in two splits for any seeds."""
    sixteenth = zlib.crc32(text.encode()) & 15
    return next(split for split, sixteenths in SPLITS.items() if sixteenth in sixteenths)


def stories(split: str, seed: int) -> Iterator[str]:
    """Yield stories of "train", "validation" or "test" without end, the same on every machine for a seed."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(sorted(SPLITS))} (got {split!r})")
    wanted = frozenset(SPLITS[split])
    for text in chance.samples(BOOK, random.Random(f"storybook {seed}")):
        if zlib.crc32(text.encode()) & 15 in wanted:
            yield text


def score(text: str) -> TextScore:
    """Return the exact log-probability of a text in nats, or the place where it stops being a valid story.

    A story that is truncated or continues after its end is not valid.
    """
    return chance.score(BOOK, text)


def floor_bits_per_byte(texts: Iterable[str]) -> float:
    """Return the loss of a perfect model on these stories, in bits per UTF-8 byte.

    The probability includes the end of the text. That a split contains only stories with certain hashes is ignored:
    it would lower the loss by log2(16/14) bits per story on the training split and by 4 bits on the others, but no
    model can learn a hash.
    """
    nats, size = 0.0, 0
    for number, text in enumerate(texts):
        result = score(text)
        if result.logprob is None:
            raise ValueError(f"text {number} is not a valid story (mismatch at character {result.position})")
        nats -= result.logprob
        size += len(text.encode())
    if not size:
        raise ValueError("texts must not be empty")
    return nats / math.log(2) / size


@dataclass(frozen=True)
class Break:
    """A scene in which texts stop being valid, with the first such text."""

    scene: str
    count: int
    example: str
    position: int
    expected: tuple[str, ...]


@dataclass(frozen=True)
class Validity:
    """The number of valid stories, and the scenes in which the others fail, the most frequent first."""

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
        result = score(text)
        if result.valid:
            valid += 1
        else:
            broken.setdefault(result.scene or "", []).append((text, result))
    breaks = [
        Break(scene, len(cases), cases[0][0], cases[0][1].position or 0, cases[0][1].expected)
        for scene, cases in broken.items()
    ]
    return Validity(count, valid, tuple(sorted(breaks, key=lambda item: (-item.count, item.scene))))
