"""Bad words and forced words, checked in the decoded text, whatever their tokens are."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.user_errors import refused
from lilliput.data.tokenizers import Tokenizer, byte_tokenizer, make_tokenizer, train_bpe
from lilliput.decoding.processors import Strategy
from lilliput.decoding.row_history import RowHistory
from lilliput.decoding.token_choice import Draws, choose
from lilliput.decoding.word_constraints import BadWords, ForcedWords, spellings_of
from lilliput.settings.tree import TokenizerSettings

STORY = (
    "The cat sat. The cats concatenate a cat-flap, and the caté is at the cart; a fat cat: the end. A catch at sea! "
)
BYTES = byte_tokenizer()
BPE = train_bpe([STORY * 3], 310)
WORDS = make_tokenizer(TokenizerSettings(kind="word", min_frequency=1), [STORY])
CHARACTERS = make_tokenizer(TokenizerSettings(kind="character", min_frequency=1), [STORY])
TOKENIZERS = {"byte": BYTES, "bpe": BPE, "word": WORDS, "character": CHARACTERS}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
GLUED = make_tokenizer(TokenizerSettings(kind="word", split="spaces", lowercase=True, min_frequency=1), [STORY])
BAD = ("cat", "at", "the end", ".", "caté", "a fat")


def whole(word: str) -> re.Pattern[str]:
    """Return the documented rule as a pattern: no letter, digit or underscore right before or after the word."""
    before = r"(?<!\w)" if re.match(r"\w", word) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", word) else ""
    return re.compile(before + re.escape(word) + after)


PATTERNS, LONGEST = [whole(word) for word in BAD], max(map(len, BAD))


def spelling(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that consist of letters of the bad words, so that these occur often."""
    pieces = {id_: tokenizer.decode([id_]) for id_ in range(tokenizer.vocab_size) if tokenizer.piece(id_) is not None}
    return [id_ for id_, piece in pieces.items() if set(piece.lower()) <= set("caté fhn.d") and piece]


def banned_by(rule: BadWords, ids: list[int], size: int) -> set[int]:
    after = rule([RowHistory(ids, 1, 99)], torch.zeros(1, size))
    return set((after[0] == -math.inf).nonzero()[:, 0].tolist())


# ---- bad words -------------------------------------------------------------------------------------------------------


def test_the_tokenisations_of_one_word() -> None:
    """At the start, after a space, in two tokens: the same word. Before or after a letter: another word."""
    size, start = BPE.vocab_size, BPE.start
    rule = BadWords(("cat",), BPE)
    (spaced,), (plain,) = BPE.encode(" cat"), BPE.encode("cat")
    assert spaced != plain
    t, letters = BPE.encode("t")[0], [BPE.encode(letter)[0] for letter in " ca"]
    begun = banned_by(rule, [start], size)
    assert {spaced, plain} <= begun
    assert {BPE.decode([id_]).strip() for id_ in begun} == {"cat"}  # " cats" and " concat" are allowed
    after_letter = banned_by(rule, [start, *BPE.encode("con")], size)
    assert spaced in after_letter
    assert plain not in after_letter
    in_parts = banned_by(rule, [start, *letters], size)
    assert {t, spaced} <= in_parts
    assert t not in banned_by(rule, [start, *BPE.encode("x"), *letters[1:]], size)
    assert t not in banned_by(rule, [start, *BPE.encode("C"), letters[2]], size)


@pytest.mark.parametrize("tokenizer", [*TOKENIZERS.values(), GLUED], ids=[*TOKENIZERS, "glued"])
@settings(max_examples=25)
@given(data=st.data())
def test_exactly_the_tokens_that_complete_a_bad_word_are_forbidden(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Compared with the decoded text after appending every token of the vocabulary."""
    pool = spelling(tokenizer)
    ids = [tokenizer.start, *data.draw(st.lists(st.sampled_from(pool), max_size=8))]
    text, expected = tokenizer.decode(ids), set()
    if "\ufffd" in text:
        return  # an incomplete character: the text does not show which
    for id_ in range(tokenizer.vocab_size):
        longer = tokenizer.decode([*ids, id_])
        places = range(max(0, len(text) - LONGEST), len(longer))
        ends = [found.end() for word in PATTERNS for at in places if (found := word.match(longer, at))]
        if tokenizer.piece(id_) is not None and longer.startswith(text) and any(end > len(text) for end in ends):
            expected.add(id_)
    assert banned_by(BadWords(BAD, tokenizer), ids, tokenizer.vocab_size) == expected


@every_tokenizer
def test_bad_words_are_never_generated(tokenizer: Tokenizer) -> None:
    """A batch of texts of sixty tokens from letters of bad words; without the rule most texts contain some."""
    pool = spelling(tokenizer)
    logits = torch.full((40, tokenizer.vocab_size), -math.inf)
    logits[:, pool] = 0.0
    broken = {}
    for name, strategy in (("free", Strategy((), True)), ("ruled", Strategy((BadWords(BAD, tokenizer),), True))):
        texts = [RowHistory([tokenizer.start], 1, 60) for _ in range(40)]
        generators = [Draws(row) for row in range(40)]
        for _ in range(60):
            for text, id_ in zip(texts, choose([strategy] * 40, texts, logits, generators), strict=True):
                text.ids.append(id_)
        decoded = [tokenizer.decode(text.ids) for text in texts]
        broken[name] = sum(any(whole(word).search(text) for word in BAD) for text in decoded)
    assert broken["ruled"] == 0
    assert broken["free"] > 30


def test_a_word_that_the_prompt_begins_is_not_completed() -> None:
    prompt = [BYTES.start, *b"The ca"]
    rule = BadWords(("cat",), BYTES)
    (after,) = rule([RowHistory(prompt, len(prompt), 9)], torch.zeros(1, 257)).tolist()
    assert [id_ for id_, value in enumerate(after) if value == -math.inf] == [ord("t")]


def test_bad_words_may_contain_white_space() -> None:
    rule = BadWords(("\n\n", " ?"), BYTES)
    assert banned_by(rule, [BYTES.start, *b"x\n"], 257) == {ord("\n")}
    assert banned_by(rule, [BYTES.start, *b"x "], 257) == {ord("?")}
    assert banned_by(rule, [BYTES.start, *b"x"], 257) == set()


def test_bad_words_that_no_token_can_form_are_ignored() -> None:
    assert banned_by(BadWords(("zebra",), WORDS), [WORDS.start], WORDS.vocab_size) == set()
    both = BadWords(("zebra", "cat"), WORDS)
    assert banned_by(both, [WORDS.start], WORDS.vocab_size) == {*WORDS.encode("cat"), *WORDS.encode("cat-flap")}


def test_a_word_inside_a_token_with_punctuation_is_forbidden() -> None:
    """The tokenizer has no token "sat" or "cart", and uses lower case."""
    size, start = GLUED.vocab_size, GLUED.start
    assert GLUED.unknown in GLUED.encode("sat") and GLUED.unknown in GLUED.encode("Cart")
    rule = BadWords(("sat", "Cart", "a\udce9"), GLUED)
    assert banned_by(rule, [start], size) == {*GLUED.encode("sat."), *GLUED.encode("cart;")}
    phrase = BadWords(("The cat sat",), GLUED)
    assert banned_by(phrase, [start, *GLUED.encode("the cat")], size) == {*GLUED.encode("sat.")}
    assert banned_by(phrase, [start, *GLUED.encode("fat cat")], size) == set()


def test_ids_above_the_vocabulary_of_the_tokenizer_have_no_text() -> None:
    assert banned_by(BadWords(("cat",), BYTES), [BYTES.start, *b"ca", 299], 300) == {ord("t")}


@every_tokenizer
def test_spelled_text_equals_decoded_text(tokenizer: Tokenizer) -> None:
    spelled = spellings_of(tokenizer).spell(tokenizer.encode(STORY)).decode()
    assert spelled.removeprefix(" ") == tokenizer.decode(tokenizer.encode(STORY))


# ---- forced words ----------------------------------------------------------------------------------------------------


def generate(
    tokenizer: Tokenizer, rule: ForcedWords, tokens: int, pool: list[int], seeds: range, end: float, prompt: str = ""
) -> list[tuple[list[int], str]]:
    """Sample texts from a pool of ids in one batch. Return the generated ids of each, and its text with the prompt."""
    first = [tokenizer.start, *tokenizer.encode(prompt)]
    texts = {seed: RowHistory(list(first), len(first), tokens) for seed in seeds}
    generators = {seed: Draws(seed) for seed in seeds}
    going = list(seeds)
    while going:
        logits = torch.full((len(going), tokenizer.vocab_size), -30.0)
        logits[:, pool] = 0.0
        logits[:, tokenizer.end] = end
        chosen = choose(
            [Strategy((rule,), True)] * len(going),
            [texts[seed] for seed in going],
            logits,
            [generators[seed] for seed in going],
        )
        for seed, id_ in zip(going, chosen, strict=True):
            texts[seed].ids.append(id_)
        going = [seed for seed in going if texts[seed].left and texts[seed].ids[-1] != tokenizer.end]
    generated = [text.ids[len(first) :] for text in texts.values()]
    return [(ids, tokenizer.decode([*first, *ids])) for ids in generated]


FORCED = ("cat", "the end", "caté")


@every_tokenizer
@pytest.mark.parametrize("free", [0, 1, 2, 7, 30])
@pytest.mark.parametrize("end", [-30.0, 3.0])
def test_every_text_contains_the_forced_words(tokenizer: Tokenizer, free: int, end: float) -> None:
    """Whatever is sampled between them, also letters that would change the words, and with few or many free tokens."""
    rule = ForcedWords(FORCED, tokenizer)
    tokens = rule.tokens + free
    for ids, text in generate(tokenizer, rule, tokens, spelling(tokenizer), range(25), end):
        assert len(ids) == tokens or ids[-1] == tokenizer.end
        for word in FORCED:
            assert whole(word).search(text), (word, text)


@pytest.mark.parametrize("free", [0, 3, 20])
def test_forced_words_among_incomplete_characters(free: int) -> None:
    """Bytes of an incomplete letter do not change a word at the end of the text."""
    rule = ForcedWords(("né", "a"), BYTES)
    for _, text in generate(BYTES, rule, rule.tokens + free, list(range(0x80, 0x100)) + list(b"na "), range(40), -30.0):
        for word in rule.words:
            assert whole(word).search(text), (word, text)


def test_without_the_rule_the_words_are_missing() -> None:
    texts = generate(BPE, ForcedWords((), BPE), 40, spelling(BPE), range(25), 3.0)
    assert sum(all(whole(word).search(text) for word in FORCED) for _, text in texts) == 0


def test_end_of_text_is_forbidden_only_while_a_word_is_missing() -> None:
    rule, row = ForcedWords(("cat",), BYTES), torch.zeros(1, 257)

    def after(text: bytes, prompt: int = 0) -> list[int]:
        processed = rule([RowHistory([BYTES.start, *text], 1 + prompt, 99)], row)[0]
        return [id_ for id_, value in enumerate(processed.tolist()) if value == -math.inf]

    assert after(b"") == after(b"The ca") == after(b"cats") == after(b"concat") == [BYTES.end]
    assert after(b"cat") == after(b"The cat") == after(b"cat.") == after(b"cats cat") == []
    assert after(b"The cat sat", prompt=7) == [BYTES.end]  # a word of the prompt does not count
    assert after(b"The cat", prompt=5) == [BYTES.end]  # nor one that begins in the prompt


def test_a_word_is_forced_as_late_as_possible_and_completed_if_begun() -> None:
    rule = ForcedWords(("cat", "dog"), BYTES)
    favourite = torch.zeros(1, 257)
    favourite[0, ord("x")], favourite[0, ord(".")] = 9.0, 8.0

    def generate_greedily(begun: bytes, tokens: int) -> bytes:
        text = RowHistory([BYTES.start, *begun], 1, tokens)
        while text.left:
            text.ids += choose([Strategy((rule,))], [text], favourite, [Draws(0)])
        return bytes(text.ids[1:])

    assert generate_greedily(b"", 8) == b" cat dog"
    assert generate_greedily(b"", 12) == b"xxxx cat dog"
    assert generate_greedily(b"dog", 12) == b"dogx cat dog"  # "dogx" is another word
    assert generate_greedily(b"xx do", 11) == b"xx dog cat."  # no letter after a word that cannot be generated again
    assert generate_greedily(b"my dog is", 13) == b"my dog is cat"


def test_no_letter_is_appended_to_a_word_at_the_end() -> None:
    """The word was just generated, and too few tokens are left to generate it again."""
    rule, letter = ForcedWords(("cat",), BYTES), torch.zeros(1, 257)
    letter[0, ord("s")] = 9.0
    text = RowHistory([BYTES.start, *b"a cat"], 1, 7)
    assert rule([text], letter)[0, list(b"sS_9\xc3")].tolist() == [-math.inf] * 5
    assert rule([text], letter)[0, [*b" .,-", BYTES.end]].isfinite().all()
    roomy = RowHistory([BYTES.start, *b"a cat"], 1, 40)
    assert torch.equal(rule([roomy], letter), letter)


@pytest.mark.parametrize("words", [("the cat", "cats"), ("a", "at", "ate a", "a_"), ("aba .", "a bb", "b")])
@pytest.mark.parametrize("free", [0, 1, 4])
def test_a_word_that_begins_with_another_does_not_undo_it(words: tuple[str, ...], free: int) -> None:
    """Whether the other word is complete before it begins or not."""
    rule = ForcedWords(words, BYTES)
    for _, text in generate(BYTES, rule, rule.tokens + free, list(b"abcest_. "), range(25), -30.0):
        for word in words:
            assert whole(word).search(text), (word, text)


def test_forced_words_that_cannot_be_encoded_are_an_error() -> None:
    error = refused(lambda: ForcedWords(("cat", "zebra"), WORDS).tokens)
    assert (error.code, error.setting) == ("setting.value", "generate.forced_words")
    assert "'zebra'" in error.what


def test_an_empty_bad_word_is_ignored_and_an_empty_forced_word_is_an_error() -> None:
    assert banned_by(BadWords(("",), BYTES), [BYTES.start, *b"x"], 257) == set()
    assert refused(lambda: ForcedWords(("",), BYTES).tokens).code == "setting.value"


def test_a_bad_word_in_a_forced_word_stays_forbidden() -> None:
    """The earlier rule takes precedence, and the text continues without the forced word."""
    rules = (BadWords(("cat",), BYTES), ForcedWords(("a cat",), BYTES))
    text = RowHistory([BYTES.start], 1, 9)
    while text.left:
        text.ids += choose([Strategy(rules, True)], [text], torch.zeros(1, 257), [Draws(1)])
    assert not whole("cat").search(BYTES.decode(text.ids))
