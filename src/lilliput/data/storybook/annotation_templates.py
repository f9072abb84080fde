"""Annotations of the storybook by hand: the sentences of its scenes with parts of speech and relations.

Owns: the table of sentences, of phrases, and the part of speech of every word and word list. Does not own: matching them with a
story (`annotations`), the word lists (`word_lists`) or the scenes (`storybook`).

A sentence is a list of items. `word/relation/head` is a word, its relation (Universal Dependencies, English) and its head; the
root has no head. The name of a word list represents any of its options. A head is named by its form, or by the label after `=`.
`:UPOS` overrides the part of speech, `@fact` names what the word refers to. `a` is also "an". Marks are attached to the root; “
and ” are both written ". HE, HIM and HIS are the pronouns of a character in any case.
"""

from __future__ import annotations

from lilliput.data.storybook import word_lists as w


def treasure(relation: str, head: str, article: str = "a") -> str:
    return f"{article}/det/TREASURES SHADES/amod/TREASURES TREASURES/{relation}/{head}"


def spot(head: str, relation: str = "obl", side: str = "SIDES") -> str:
    return f"{side}/case/SPOTS a/det/SPOTS SPOT_LOOKS/amod/SPOTS SPOTS/{relation}/{head}"


def home(preposition: str, head: str, relation: str = "obl") -> str:
    return f"{preposition}/case/HOMES the/det/HOMES HOME_LOOKS/amod/HOMES HOMES/{relation}/{head}"


def far(preposition: str, head: str, relation: str = "obl") -> str:
    return f"{preposition}/case/FAR_PLACES the/det/FAR_PLACES FAR_LOOKS/amod/FAR_PLACES FAR_PLACES/{relation}/{head}"


def hero_kind(relation: str, head: str) -> str:
    return f"a/det/HERO_KINDS NATURES/amod/HERO_KINDS HERO_KINDS/{relation}{head and '/' + head}"


def helper_kind(relation: str, head: str) -> str:
    return f"a/det/HELPER_KINDS OTHER_NATURES/amod/HELPER_KINDS HELPER_KINDS/{relation}/{head}"


def tool(head: str) -> str:
    return f"a/det/TOOLS TOOL_LOOKS/amod/TOOLS TOOLS/obj/{head}"


def food(relation: str, head: str) -> str:
    return f"some/det/FOODS FOOD_LOOKS/amod/FOODS FOODS/{relation}/{head}"


def with_helper(head: str) -> str:
    return f"named/acl/{head} HELPER_NAMES/xcomp/named"


OCCASION = "for/case/OCCASIONS the/det/OCCASIONS SEASONS/compound/OCCASIONS OCCASIONS/obl/{}"
PROMISED = (
    f"HIS/nmod:poss/RELATIVES RELATIVES/iobj/promised {treasure('obj', 'promised')} {OCCASION.format('promised')} ."
)
GIVEN = f"HIS/nmod:poss/RELATIVES RELATIVES/iobj/gave {treasure('obj', 'gave', 'the')}"
JOURNEY = f"STEPS/conj/{{}} {home('from', 'STEPS')} {far('to', 'STEPS')} ."
MEAL = f"the/det/MEALS MEALS/obj/{{0}} {spot('{0}')}"
VIRTUE = "that:SCONJ/mark/REWARDS VIRTUES/amod/VIRTUOUS VIRTUOUS/nsubj/REWARDS REWARDS/ccomp/{} ."

SENTENCES = (
    # opening
    f"Once/advmod/promised upon/case/time a/det/time time/obl/promised , {hero_kind('nsubj', 'promised')} "
    f"named/acl/HERO_KINDS HERO_NAMES/xcomp/named promised/root {PROMISED}",
    f"HERO_NAMES/nsubj/HERO_KINDS was/cop/HERO_KINDS {hero_kind('root', '')} who@hero_kind/nsubj/promised "
    f"promised/acl:relcl/HERO_KINDS {PROMISED}",
    f"There:PRON/expl/was was:VERB/root once/advmod/was {hero_kind('nsubj', 'was')} called/acl/HERO_KINDS "
    f"HERO_NAMES/xcomp/called who@hero_kind/nsubj/promised promised/acl:relcl/HERO_KINDS {PROMISED}",
    f"“ I@hero/nsubj/promise promise:VERB/ccomp/said you@relative/iobj/promise {treasure('obj', 'promise')} "
    f"{OCCASION.format('promise')} , ” said/root HERO_NAMES/nsubj/said , {hero_kind('appos', 'HERO_NAMES')} , "
    "to/case/RELATIVES HIS/nmod:poss/RELATIVES RELATIVES/obl/said .",
    # home
    "HERO_NAMES/nsubj/lived lived/root in/case/DWELLINGS a/det/DWELLINGS COMFORTS/amod/DWELLINGS DWELLINGS/obl/lived "
    f"{home('near', 'DWELLINGS', 'nmod')} and/cc/liked liked/conj/lived PASTIMES/xcomp/liked PASTIME_THINGS/obj/PASTIMES .",
    f"HIS/nmod:poss/DWELLINGS DWELLINGS/nsubj/COMFORTS {home('near', 'DWELLINGS', 'nmod')} was/cop/COMFORTS "
    "COMFORTS/root and/cc/smelled smelled/conj/COMFORTS of/case/SMELLS SMELLS/obl/smelled .",
    # wish
    "HE/nsubj/dreamed dreamed/root of:SCONJ/mark/learning learning/advcl/dreamed to:PART/mark/WISHES WISHES/xcomp/learning .",
    "HERO_NAMES/nsubj/longed longed/root to:PART/mark/learn learn/xcomp/longed to:PART/mark/WISHES WISHES/xcomp/learn .",
    "Most/advmod/wished of/case/all all:PRON/obl/Most , HE/nsubj/wished wished/root to:PART/mark/WISHES WISHES/xcomp/wished .",
    # departure
    f"One/nummod/DAYS WEATHERS/amod/DAYS DAYS/obl:tmod/took , HERO_NAMES/nsubj/took took/root {tool('took')} and/cc/FOODS "
    f"{food('conj', 'TOOLS')} and/cc/STEPS {JOURNEY.format('took')}",
    "On/case/DAYS a/det/DAYS WEATHERS/amod/DAYS DAYS/obl/packed HE/nsubj/packed packed/root "
    f"{food('obj', 'packed')} , found/conj/packed {tool('found')} and/cc/STEPS {JOURNEY.format('packed')}",
    "Then/advmod/came came/root a/det/DAYS WEATHERS/amod/DAYS DAYS/nsubj/came .",
    f"HERO_NAMES/nsubj/took took/root {tool('took')} , packed/conj/took {food('obj', 'packed')} and/cc/STEPS "
    f"{JOURNEY.format('took')}",
    # warning and interludes
    "“ WARNINGS/ccomp/SPEAKING ! ” SPEAKING/root HIS/nmod:poss/RELATIVES RELATIVES/nsubj/SPEAKING .",
    "HE/nsubj/STEPS STEPS/root past/case/SIGHTS a/det/SIGHTS SIGHT_LOOKS/amod/SIGHTS SIGHTS/obl/STEPS and/cc/SPOTS "
    "a/det/SPOTS SPOT_LOOKS/amod/SPOTS SPOTS/conj/SIGHTS .",
    f"“ Is/cop/way this:PRON/nsubj/way the/det/way way/ccomp/asked {far('to', 'way', 'nmod')} ? ” HE/nsubj/asked asked/root "
    "a/det/STRANGER_KINDS OTHER_NATURES/amod/STRANGER_KINDS STRANGER_KINDS/obj/asked "
    f"{spot('STRANGER_KINDS', 'nmod')} .",
    "It@stranger/nsubj/ANSWERS ANSWERS/root .",
    f"When/advmod/came the/det/STORMS STORMS/nsubj/came came/advcl/hid , HE/nsubj/hid hid/root {spot('hid')} .",
    # lost
    f"{far('Near', 'saw')} , HE/nsubj/saw saw/root that:SCONJ/mark/gone the/det/TOOLS TOOLS/nsubj/gone was/cop/gone "
    "gone/ccomp/saw .",
    f"“ Oh/discourse/no no:INTJ/ccomp/cried ! ” HE/nsubj/cried cried/root {far('near', 'cried')} .",
    "“ My@hero/nmod:poss/TOOLS TOOLS/nsubj/gone is/cop/gone gone/root ! ”",
    f"HE/nsubj/looked looked/root {spot('looked')} , but/cc/found found/conj/looked only/advmod/RUBBISH a/det/RUBBISH "
    "RUBBISH_LOOKS/amod/RUBBISH RUBBISH/obj/found .",
    "“ Why/advmod/WORRIES are/cop/WORRIES you@hero/nsubj/WORRIES so/advmod/WORRIES WORRIES/ccomp/asked ? ” asked/root "
    f"{helper_kind('nsubj', 'asked')} {with_helper('HELPER_KINDS')} .",
    "HE@helper/nsubj/saw saw/root some/det/TRACKS TRACK_LOOKS/amod/TRACKS TRACKS/obj/saw , and/cc/followed "
    "they/nsubj/followed followed/conj/saw them@tracks/obj/followed MANNERS/advmod/followed .",
    f"There:PRON/expl/was was:VERB/root the/det/TOOLS TOOLS/nsubj/was , {spot('was')} , and/cc/lay next/advmod/lay "
    f"to/case/it it@tool/obl/next lay/conj/was {treasure('nsubj', 'lay')} !",
    # rescue
    f"{far('Near', 'met')} , HE/nsubj/met met/root {helper_kind('obj', 'met')} {with_helper('HELPER_KINDS')} , "
    f"who@helper_kind/nsubj/stuck was/cop/stuck stuck/acl:relcl/HELPER_KINDS {spot('stuck', side='under')} and/cc/felt "
    "felt/conj/stuck WORRIES/xcomp/felt .",
    "“ ENCOURAGEMENTS/ccomp/SPEAKING , ” SPEAKING/root HERO_NAMES/nsubj/SPEAKING and/cc/LABOURS LABOURS/conj/SPEAKING "
    "MANNERS/advmod/LABOURS but/cc/MORE_MANNERS MORE_MANNERS/conj/MANNERS with/case/TOOLS the/det/TOOLS TOOLS/obl/LABOURS "
    "until:SCONJ/mark/free HE@helper/nsubj/free was/cop/free free/advcl/LABOURS .",
    "“ Thank/ccomp/SPEAKING you@hero/obj/Thank ! ” SPEAKING/root HELPER_NAMES/nsubj/SPEAKING .",
    f"“ I@hero/nsubj/need need/ccomp/SPEAKING {treasure('obj', 'need')} , ” SPEAKING/root HERO_NAMES/nsubj/SPEAKING , "
    f"and/cc/found HELPER_NAMES/nsubj/found found/conj/SPEAKING one:NOUN/obj/found {spot('found')} !",
    # barrier
    "But/cc/blocked a/det/BARRIERS BARRIER_LOOKS/amod/BARRIERS BARRIERS/nsubj/blocked blocked/root the/det/way way/obj/blocked "
    f"{far('to', 'way', 'nmod')} .",
    "HERO_NAMES/nsubj/tried tried/root MANNERS/advmod/tried and/cc/MORE_MANNERS then/advmod/MORE_MANNERS "
    "MORE_MANNERS/conj/MANNERS to:PART/mark/get get/xcomp/tried past/case/it it@barrier/obl/get , but/cc/could "
    "could/conj/tried not/advmod/could .",
    "“ I@helper/nsubj/HELPER_NAMES am/cop/HELPER_NAMES HELPER_NAMES/ccomp/SPEAKING , ” SPEAKING/root "
    f"{helper_kind('nsubj', 'SPEAKING')} {spot('HELPER_KINDS', 'nmod')} .",
    "“ ENCOURAGEMENTS/root . ”",
    "With/case/TOOLS the/det/TOOLS TOOLS/obl/EFFORTS they/nsubj/EFFORTS EFFORTS/root and/cc/MORE_EFFORTS "
    "MORE_EFFORTS/conj/EFFORTS to/case/side the/det/side other/amod/side side/obl/EFFORTS .",
    f"And/cc/lay there:ADV/advmod/lay , {spot('lay')} , lay/root {treasure('nsubj', 'lay')} !",
    # contest
    f"{far('Near', 'waiting')} , a/det/crowd CROWDS/amod/crowd crowd/nsubj/waiting was/aux/waiting waiting/root "
    "for/case/contest a/det/contest CONTESTS/compound/contest contest/obl/waiting .",
    f"The/det/prize prize/nsubj/TREASURES was/cop/TREASURES {treasure('root', '')} , but/cc/felt HERO_NAMES/nsubj/felt "
    "felt/conj/TREASURES WORRIES/xcomp/felt .",
    f"“ ENCOURAGEMENTS/ccomp/SPEAKING , ” SPEAKING/root {helper_kind('nsubj', 'SPEAKING')} {with_helper('HELPER_KINDS')} .",
    "So/advmod/held HERO_NAMES/nsubj/held held/root the/det/TOOLS TOOLS/obj/held for/case/luck luck/obl/held , "
    "began/conj/held MANNERS/advmod/began and/cc/ended ended/conj/held MORE_MANNERS/advmod/ended .",
    "HELPER_NAMES/nsubj/clapped clapped/root , and/cc/gave the/det/judge judge/nsubj/gave , a/det/STRANGER_KINDS "
    "OTHER_NATURES/amod/STRANGER_KINDS STRANGER_KINDS@judge/appos/judge , gave/conj/clapped HIM/iobj/gave "
    f"{treasure('obj', 'gave', 'the')} !",
    # celebration and song
    f"They/nsubj/shared shared/root {MEAL.format('shared')} , and/cc/taught HELPER_NAMES/nsubj/taught taught/conj/shared "
    "HERO_NAMES/obj/taught to:PART/mark/WISHES WISHES/xcomp/taught .",
    "Then/advmod/showed HELPER_NAMES/nsubj/showed showed/root HIM/iobj/showed how/advmod/WISHES to:PART/mark/WISHES "
    f"WISHES/ccomp/showed , and/cc/ate they/nsubj/ate ate/conj/showed {MEAL.format('ate')} .",
    "“ Now/advmod/teach I@helper/nsubj/teach will/aux/teach teach/ccomp/SPEAKING you@hero/obj/teach to:PART/mark/WISHES "
    "WISHES/xcomp/teach , ” SPEAKING/root HELPER_NAMES/nsubj/SPEAKING , and/cc/ate they/nsubj/ate ate/conj/SPEAKING "
    f"{MEAL.format('ate')} .",
    "They/nsubj/sang sang/root : “ SONG_STARTS/parataxis/sang and/cc/SONG_STEPS SONG_STEPS/conj/SONG_STARTS , "
    "SONG_OPENINGS/parataxis/SONG_STARTS , SONG_ENDINGS/parataxis/SONG_STARTS ! ”",
    # return, lesson, promise
    "At/case/EVENINGS EVENINGS/obl/PARTINGS , HERO_NAMES/nsubj/PARTINGS PARTINGS/root HELPER_NAMES/obj/PARTINGS and/cc/STEPS "
    f"STEPS/conj/PARTINGS home:ADV/advmod/STEPS {home('to', 'STEPS')} .",
    "HE/nsubj/felt felt/root JOYS/xcomp/felt and/cc/MORE_JOYS MORE_JOYS/conj/JOYS , and/cc/hoped hoped/conj/felt "
    "to:PART/mark/WISHES WISHES/xcomp/hoped again/advmod/WISHES .",
    f"HE/nsubj/learned had/aux/learned learned/root {VIRTUE.format('learned')}",
    f"Now/advmod/knew HERO_NAMES/nsubj/knew knew/root {VIRTUE.format('knew')}",
    f"At/case/door the/det/door door/obl/gave HE/nsubj/gave gave/root {GIVEN} , as:SCONJ/mark/promised HE/nsubj/promised "
    "had/aux/promised promised/advcl/gave .",
    f"Then/advmod/gave HE/nsubj/gave gave/root {GIVEN} , and/cc/kept the/det/promise promise/nsubj:pass/kept was/aux:pass/kept "
    "kept/conj/gave .",
    "“ I@hero/nsubj/kept kept/ccomp/said my@hero/nmod:poss/promise promise/obj/kept , ” said/root HERO_NAMES/nsubj/said "
    f"and/cc/gave gave/conj/said {GIVEN} .",
    "HIS/nmod:poss/RELATIVES RELATIVES/nsubj/smiled smiled/root at/case/TREASURES "
    f"{treasure('obl', 'smiled', 'the')} , for:SCONJ/mark/kept HERO_NAMES/nsubj/kept had/aux/kept kept/advcl/smiled "
    "the/det/promise promise/obj/kept .",
)

PHRASES = (
    "Be/cop/careful careful/root",
    "Take/root your/nmod:poss/time time/obj/Take",
    "Keep/root warm/xcomp/Keep",
    "Stay/root on/case/path the/det/path path/obl/Stay",
    "Be/cop/polite polite/root",
    "Watch/root your/nmod:poss/step step/obj/Watch",
    "Do/aux/hurry not/advmod/hurry hurry/root",
    "Good/amod/luck luck/root",
    "Do/aux/worry not/advmod/worry worry/root",
    "Stay/root calm/xcomp/Stay",
    "Take/root heart/obj/Take",
    "I/nsubj/help can/aux/help help/root",
    "Have/root courage/obj/Have",
    "Never/advmod/give give/root up:ADP/compound:prt/give",
    "hip/discourse/hooray hooray/root",
    "come/root what/nsubj/come may/aux/come",
    "far/advmod/away away/root",
    "every/det/day day/root",
    "night/root and/cc/day day/conj/night",
    "in/case/hay the/det/hay hay/root",
    "friends/nsubj/find will/aux/find always/advmod/find find/root the/det/way way/obj/find",
    "friends/nsubj/here are/cop/here here/root and/cc/again here=again/conj/here to:PART/mark/stay stay/advcl/again",
    "honey/compound/cakes cakes/nsubj/tray are/cop/tray on/case/tray the/det/tray tray/root",
    "all:DET/det:predet/world the/det/world world/nsubj/come has/aux/come come/root to:PART/mark/play play/advcl/come",
    "are/cop/better better/root than/case/gold gold/obl/better",
    "open/root every/det/door door/obj/open",
    "find/root a/det/way way/obj/find",
    "never/advmod/grow grow/root old/xcomp/grow",
    "make/root us/obj/make strong/xcomp/make",
    "always/advmod/come come/root back/advmod/come",
)

# Word lists that a sentence may name, by the part of speech of their options.
LISTS = {
    "ADJ": "NATURES OTHER_NATURES SHADES COMFORTS HOME_LOOKS FAR_LOOKS WEATHERS TOOL_LOOKS FOOD_LOOKS SIGHT_LOOKS SPOT_LOOKS "
    "RUBBISH_LOOKS TRACK_LOOKS BARRIER_LOOKS CROWDS WORRIES JOYS MORE_JOYS VIRTUES",
    "NOUN": "HERO_KINDS HELPER_KINDS STRANGER_KINDS RELATIVES TREASURES SEASONS OCCASIONS DWELLINGS SMELLS HOMES FAR_PLACES "
    "PASTIME_THINGS TOOLS FOODS MEALS SIGHTS SPOTS STORMS RUBBISH TRACKS BARRIERS CONTESTS EVENINGS VIRTUOUS",
    "PROPN": "HERO_NAMES HELPER_NAMES DAYS",
    "VERB": "PASTIMES WISHES STEPS ANSWERS LABOURS EFFORTS MORE_EFFORTS SPEAKING SONG_STARTS SONG_STEPS PARTINGS",
    "ADV": "MANNERS MORE_MANNERS",
    "ADP": "SIDES",
}
PHRASE_LISTS = ("WARNINGS", "ENCOURAGEMENTS", "SONG_OPENINGS", "SONG_ENDINGS", "REWARDS")
PRONOUNS = {"HE": "he she He She", "HIM": "him her", "HIS": "his her His Her"}
SLOTS = {name: upos for upos, names in LISTS.items() for name in names.split()} | dict.fromkeys(PRONOUNS, "PRON")
OPTIONS: dict[str, tuple[str, ...]] = {name: getattr(w, name) for name in SLOTS if name not in PRONOUNS}
OPTIONS |= {name: tuple(forms.split()) for name, forms in PRONOUNS.items()}
# The option that is another part of speech than the rest of its list: a glass bead is a bead of glass.
EXCEPTIONS = {("SHADES", "glass"): ("NOUN", "compound")}

# What the words of a list refer to, unless a sentence names another fact.
FACTS = {
    **dict.fromkeys(("HERO_NAMES", *PRONOUNS), "hero"),
    "HELPER_NAMES": "helper",
    "HERO_KINDS": "hero_kind",
    "HELPER_KINDS": "helper_kind",
    "RELATIVES": "relative",
    "SHADES": "shade",
    "TREASURES": "treasure",
    "WISHES": "wish",
    "TOOLS": "tool",
    "HOME_LOOKS": "home_look",
    "HOMES": "home",
    "FAR_LOOKS": "far_look",
    "FAR_PLACES": "far_place",
    "STRANGER_KINDS": "stranger",
    "BARRIERS": "barrier",
    "TRACKS": "tracks",
}

# Other words, in lower case; those with two parts of speech have it in the sentence.
WORDS = {
    "ADJ": "careful warm polite good calm better old strong gone stuck free other",
    "ADP": "upon in near of on past under with at from to for than",
    "ADV": "once most then when only why so next there now how again never always back far away here",
    "AUX": "was is are am will had has do can may be could",
    "CCONJ": "and but",
    "DET": "a the some every",
    "INTJ": "oh hip hooray",
    "NOUN": "time way crowd contest prize luck judge side door promise path step heart courage day night hay friends honey "
    "cakes tray world gold",
    "NUM": "one",
    "PART": "not",
    "PRON": "i you my who it they them your what us",
    "VERB": "promised named called said lived liked smelled dreamed learning longed learn wished took packed found came asked "
    "hid saw cried looked followed lay met felt thank need blocked tried get waiting held began ended clapped gave shared taught "
    "showed ate teach sang hoped learned knew kept smiled take keep stay watch hurry worry help have give come find play open "
    "grow make",
}
PARTS = {word: upos for upos, words in WORDS.items() for word in words.split()}
