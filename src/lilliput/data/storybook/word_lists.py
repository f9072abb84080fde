"""The word lists of the storybook.

Owns: the words, the article before a phrase, and the pronouns of a name. Does not own: the stories (`storybook`).
Every list is drawn from uniformly and has 4 to 20 options, most of them single words that fit every option of the
neighbouring list. So there are many stories but few words, and each word occurs often enough to be learned in minutes.
Lists that are used as a pair ("slowly and boldly") share no option.
"""

from __future__ import annotations

from typing import NamedTuple


class Someone(NamedTuple):
    """A character: its name and its pronouns."""

    name: str
    he: str
    him: str
    his: str
    He: str  # at the beginning of a sentence
    His: str


def words(text: str) -> tuple[str, ...]:
    """Split a text into options of one word."""
    return tuple(text.split())


def phrases(text: str) -> tuple[str, ...]:
    """Split a text into options of several words, one per line or separated by " / "."""
    return tuple(part.strip() for line in text.strip().splitlines() for part in line.split(" / "))


def with_article(options: tuple[str, ...]) -> tuple[str, ...]:
    """Prefix each option with "a" or "an", by its first letter. So no option may begin with a silent h or a "yoo"."""
    return tuple(f"{'an' if option[0] in 'aeiou' else 'a'} {option}" for option in options)


def cast(men: str, women: str) -> dict[str, Someone]:
    """Return the characters by name. Men and women alternate, so that a shortened list has both."""
    pairs = zip(men.split(), women.split(), strict=True)
    people: dict[str, Someone] = {}
    for man, woman in pairs:
        people[man] = Someone(man, "he", "him", "his", "He", "His")
        people[woman] = Someone(woman, "she", "her", "her", "She", "Her")
    return people


HEROES = cast(
    "Pip Milo Felix Rufus Barnaby Jasper Otto Hugo Theo Finn",
    "Lily Nora Hazel Poppy Clara Ivy Mabel Tilly Ruby Daisy",
)
HELPERS = cast(
    "Bruno Edgar Gus Walter Victor Casper Ned Sam",
    "Olga Martha Bella Flora Stella Rosa Wilma Penny",
)
HERO_NAMES, HELPER_NAMES = tuple(HEROES), tuple(HELPERS)
HERO_KINDS = words("rabbit mouse fox hedgehog squirrel badger bear otter mole kitten puppy duckling lamb piglet")
HELPER_KINDS = words("owl frog goat crow heron donkey turtle swan toad raven pony crane")
STRANGER_KINDS = words("snail beetle worm moth spider cricket ladybird lizard goose cat")
NATURES = words(
    "brave curious cheerful gentle clever shy lively kind patient quiet merry polite careful eager playful friendly"
)
OTHER_NATURES = words("wise old tall grey stout funny elegant noble cheeky ragged plump sleepy grumpy dreamy")
RELATIVES = words("mother father grandmother grandfather aunt uncle sister brother cousin teacher neighbour")

SHADES = words("red blue golden silver white purple yellow pink striped spotted shiny smooth glass orange")
TREASURES = words("feather shell pebble button ribbon bell key marble acorn leaf bead coin thimble rose spoon ring")
SEASONS = words("harvest winter birthday village lantern spring midnight garden summer family")
OCCASIONS = words("feast fair party dance parade picnic ball concert dinner wedding")

DWELLINGS = words("house hut cottage den cabin burrow cave barn")
COMFORTS = words("cosy tidy crooked warm snug dusty bright round secret narrow")
SMELLS = words("honey apples cinnamon soup mint roses smoke lavender hay toast ginger flowers")
HOME_LOOKS = words("breezy peaceful shady hidden rocky leafy grassy ancient flowery charming")
HOMES = words("mill pond bridge orchard meadow wall well garden cliff beach river oak")
FAR_LOOKS = words("misty snowy deep hollow singing whispering great northern haunted secret")
FAR_PLACES = words("valley mountain forest island lake castle desert harbour tower swamp")
PASTIMES = words("counting drawing watching chasing naming painting finding following")
PASTIME_THINGS = words("clouds butterflies stars boats birds rainbows trains shadows bees kites")
WISHES = words("whistle swim dance juggle paint sew knit skate row yodel carve cook sail write drum fish")

WEATHERS = words("windy sunny frosty foggy cloudy rainy mild cold clear chilly fresh stormy")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
TOOLS = words("rope ladder pole net hook shovel stick basket blanket bucket plank hammer")
TOOL_LOOKS = words("long short sturdy strong light heavy trusty simple painted old ugly fine")
FOODS = words("cheese bread jam nuts cherries pears plums biscuits carrots popcorn dumplings pancakes raisins waffles")
MEALS = words("lunch picnic meal snack")
FOOD_LOOKS = words("fresh sweet tasty soft golden crunchy salty spicy")
WARNINGS = phrases("""
    Be careful / Take your time / Keep warm / Stay on the path / Be polite / Watch your step / Do not hurry / Good luck
""")

STEPS = words("walked skipped marched hurried strolled trotted wandered danced")
SIGHTS = words("windmill bakery school church farm statue fountain scarecrow haystack signpost")
SIGHT_LOOKS = words("famous empty noisy ruined proud forgotten haunted wobbly colourful splendid")
SPOTS = words("log stump rock bush root fern fence barrel wagon tree bench beehive")
SPOT_LOOKS = words("mossy broken muddy dusty little lopsided crooked giant lonely wet")
SIDES = words("under behind beside near")
STORMS = words("rain hail snow thunder fog wind")
ANSWERS = words("nodded smiled winked blinked yawned bowed")

WORRIES = words("sad lonely worried upset nervous helpless gloomy afraid unhappy scared")
RUBBISH = words("bottle sock cup comb candle clock hat glove")
RUBBISH_LOOKS = words("cracked torn bent wet smelly faded mouldy empty")
TRACKS = words("tracks footprints crumbs scratches marks petals")
TRACK_LOOKS = words("faint fresh tiny strange curly deep")
ENCOURAGEMENTS = phrases("Do not worry / Stay calm / Take heart / I can help / Have courage / Never give up")
BARRIERS = words("river swamp hedge gate canyon wall stream fence ravine ditch")
BARRIER_LOOKS = words("wide huge steep terrible slippery endless enormous muddy")
CONTESTS = words("jumping singing hopping rolling balancing humming digging running spinning sneezing")
CROWDS = words("noisy happy large excited laughing curious")
MANNERS = words("slowly gently quietly carefully calmly shyly")
MORE_MANNERS = words("bravely quickly boldly wildly firmly cheerfully")
LABOURS = words("pulled pushed worked tugged heaved pressed")
EFFORTS = words("climbed crawled jumped wriggled balanced hopped")
MORE_EFFORTS = words("slid swung stumbled scrambled tiptoed puffed")
SPEAKING = words("said whispered called cried shouted murmured")

SONG_STARTS = words("Hop Skip Clap Stamp Laugh Spin")
SONG_STEPS = words("jump dance sing shout march play")
SONG_OPENINGS = phrases("hip hooray / come what may / far away / every day / night and day / in the hay")
SONG_ENDINGS = phrases("""
    friends will always find the way / friends are here and here to stay / honey cakes are on the tray
    all the world has come to play
""")
EVENINGS = words("dusk sunset nightfall twilight moonrise teatime suppertime bedtime")
PARTINGS = words("hugged thanked kissed embraced saluted squeezed")
JOYS = words("happy glad cheery joyful content hopeful thankful lucky")
MORE_JOYS = words("proud warm strong safe light peaceful loved brave")
VIRTUES = words("kind brave honest patient gentle true")
VIRTUOUS = words("friends hearts words deeds hands thoughts")
REWARDS = phrases("""
    are better than gold / open every door / find a way / never grow old / make us strong / always come back
""")

A_NATURE, AN_OTHER_NATURE = with_article(NATURES), with_article(OTHER_NATURES)
A_SHADE, A_COMFORT, A_WEATHER = with_article(SHADES), with_article(COMFORTS), with_article(WEATHERS)
A_TOOL_LOOK, A_SIGHT_LOOK, A_SPOT_LOOK = with_article(TOOL_LOOKS), with_article(SIGHT_LOOKS), with_article(SPOT_LOOKS)
A_RUBBISH_LOOK, A_BARRIER_LOOK = with_article(RUBBISH_LOOKS), with_article(BARRIER_LOOKS)
A_CROWD, A_CONTEST = with_article(CROWDS), with_article(CONTESTS)
