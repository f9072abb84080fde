"""Words and characters as tokens: what a word is, which of them get an id, and how they become prose again.

Owns: the rules of splitting and joining, the fitting of vocabularies, vocabulary files. Does not own: the
class that encodes (`tokenizers`), nor which text is fitted on (`prepare` gives the training split). All of it
is made of parts of the tokenizers library, so that a saved tokenizer.json does the same in transformers.

What a word is (`split = "words"`). Letters and digits; an apostrophe or hyphen between them belongs to the word (don't,
ice-cream), an apostrophe after a final s too (the kids' toys), and so does a point, comma or colon between digits (3.5,
1,000, 10:30); single letters with points are one word (U.S.). Every other mark is a token of its own, but for "..." and
"--". White space, line ends too, only separates. Words are taken whole because published vocabularies and vectors have
them so, and because nothing then has to be guessed when they are written.

What is between two tokens (`PROSE`) is decided by the text before it and the token after it, never by what
comes later: a text that is written token by token reads as the whole does. Quotation marks open and close in
turn.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import count, islice
from pathlib import Path
from typing import Any

import tokenizers as library
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from lilliput.data.tokenizers.special_tokens import EOS, PAD, SOS, UNK, UNKNOWNS, find_specials
from lilliput.data.tokenizers.text_chunks import cut_texts
from lilliput.data.tokenizers.untrusted_files import read_text
from lilliput.errors import UserError
from lilliput.settings.tree import TokenizerSettings

LARGEST_VOCABULARY_FILE = 50 * 1000 * 1000

_WORD = r"(?:\p{L}\.){2,}|\w+(?:(?:['’\-]|(?<=\p{N})[.,:](?=\p{N}))\w+)*(?:(?<=[sS])['’](?!\S))?"
_MARK = r"\.\.\.|--|[^\s\w]"
_ONLY_MARKS = r"\A[^\w]+\z"

# (split, punctuation) -> what cuts a text into tokens. Patterns are linear: no two ways lead through one text.
SPLITTERS: dict[tuple[str, str], pre_tokenizers.PreTokenizer] = {
    ("words", "keep"): pre_tokenizers.Split(Regex(f"{_WORD}|{_MARK}"), "removed", invert=True),
    ("words", "strip"): pre_tokenizers.Split(Regex(_WORD), "removed", invert=True),
    ("spaces", "keep"): pre_tokenizers.WhitespaceSplit(),
    ("spaces", "strip"): pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(_ONLY_MARKS), "removed")]
    ),
}

# Tokens stand apart by one space at first; each of these takes some away. A match is used up from left to right, so that
# in the pairs of quotation marks `\K` (keep what was matched so far) finds every second one.
_JOINTS = (
    (r"(?<!\S)'(?!\S).*?\K '(?!\S)", "'"),  # before a closing '
    (r"(?<=\A'| ') ", ""),  # after an opening '
    (r'"[^"]*\K "', '"'),  # before a closing "
    (r'(?<=\A"| ") ', ""),  # after an opening "
    (r" (?=[,.!?;:%)\]}…”’»—/]|--)", ""),
    (r"(?<=[(\[{“‘«¿¡$£€#@—/]|--) ", ""),
)
# The prefix is what no token begins with: all of them then get a space before them, but the first.
_APART = decoders.WordPiece(prefix=" ", cleanup=False)
PROSE = decoders.Sequence([_APART, decoders.Fuse(), *(decoders.Replace(Regex(old), new) for old, new in _JOINTS)])
# Text that came in tokenised goes out tokenised: it can be given back as it is, and nothing of it was Lilliput's rule.
SPACED = decoders.Sequence([_APART, decoders.Fuse()])

OWN_PATTERNS = frozenset({f"{_WORD}|{_MARK}", _WORD, _ONLY_MARKS, *(old for old, _ in _JOINTS)})


def fit_words(settings: TokenizerSettings, documents: Iterable[str]) -> library.Tokenizer:
    """The most frequent words of the documents, of equally frequent ones the first in the order of code points."""
    fitted = _word_level({UNK: 0}, settings)
    # The library counts with the very parts that will encode, and on all cores; ids are given out below.
    trainer = trainers.WordLevelTrainer(vocab_size=1 << 62, min_frequency=settings.min_frequency, show_progress=False)
    fitted.train_from_iterator(cut_texts(documents), trainer)
    by_frequency = sorted(fitted.get_vocab(with_added_tokens=False).items(), key=lambda item: item[1])
    return _word_level(_numbered((word for word, _ in by_frequency), "word", settings), settings)


def fit_characters(settings: TokenizerSettings, documents: Iterable[str]) -> library.Tokenizer:
    """The most frequent characters of the documents; white space and line ends are characters as any other."""
    normalizer = _normalizer(settings)
    found = Counter[str]()
    for piece in cut_texts(documents):
        found.update(normalizer.normalize_str(piece) if normalizer else piece)
    kept = sorted((-times, one) for one, times in found.items() if times >= settings.min_frequency)
    # BPE without merges: four times as fast as a pattern that cuts at every character, and the same ids.
    model = models.BPE(_numbered((one for _, one in kept), "character", settings), [], unk_token=UNK)
    return _assembled(model, normalizer, None, decoders.Fuse())


def read_words(settings: TokenizerSettings) -> library.Tokenizer:
    """The words of a vocabulary file, whose line numbers, from 0, are the ids; special tokens are known by their names."""
    assert settings.vocabulary is not None
    path = Path(settings.vocabulary)
    lines = read_text(path, "vocabulary", LARGEST_VOCABULARY_FILE).removeprefix("\ufeff").split("\n")
    lines = [line.removesuffix("\r") for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    ids: dict[str, int] = {}
    for number, line in enumerate(lines):
        where = f"{path}, line {number + 1}"
        if not line:
            fix = "write one token on each line; the number of the line is its id"
            raise UserError("the vocabulary has an empty line", where, fix=fix, code="tokenizer.invalid")
        if line.split() != [line]:
            what = f"a token of the vocabulary contains white space: {line[:40]!r}"
            fix = "write one token on each line, without counts or columns"
            raise UserError(what, where, fix=fix, code="tokenizer.invalid")
        if line in ids:
            what = f"the vocabulary has {line[:40]!r} twice, first in line {ids[line] + 1}"
            raise UserError(what, where, fix="remove one of the two lines", code="tokenizer.invalid")
        ids[line] = number
    if not ids.keys() & {*UNKNOWNS}:
        what = f"the vocabulary has no {UNK}, the token for unknown words"
        fix = f"add a line {UNK} at the id that it had in training, or at the end"
        raise UserError(what, str(path), fix=fix, code="tokenizer.invalid")
    find_specials(ids, str(path))
    return _word_level(ids, settings)


def kind_of(parts: dict[str, Any]) -> str | None:
    """`word` or `character` if the parts of a tokenizer.json are those made here, else None."""
    model, before = parts["model"], parts["pre_tokenizer"]
    if model["type"] == "WordLevel" and before in _SPLITTER_PARTS:
        return "word"
    plain = model["type"] == "BPE" and not model["merges"] and before is None
    return "character" if plain and parts["decoder"] == {"type": "Fuse"} else None


def _word_level(ids: dict[str, int], settings: TokenizerSettings) -> library.Tokenizer:
    unknown = next(name for name in UNKNOWNS if name in ids)
    splitter = SPLITTERS[settings.split, settings.punctuation]
    decoder = PROSE if settings.split == "words" else SPACED
    return _assembled(models.WordLevel(ids, unk_token=unknown), _normalizer(settings), splitter, decoder)


def _assembled(
    model: models.Model,
    normalizer: normalizers.Normalizer | None,
    splitter: pre_tokenizers.PreTokenizer | None,
    decoder: decoders.Decoder,
) -> library.Tokenizer:
    inner = library.Tokenizer(model)
    inner.normalizer, inner.pre_tokenizer, inner.decoder = normalizer, splitter, decoder
    # Not <unk>: an unknown word is part of a text, and leaving it out would let the text seem whole.
    names = [name for name in (SOS, EOS, PAD) if inner.token_to_id(name) is not None]
    inner.add_special_tokens([library.AddedToken(name, special=True, normalized=False) for name in names])
    return inner


def _normalizer(settings: TokenizerSettings) -> normalizers.Normalizer | None:
    return normalizers.Lowercase() if settings.lowercase else None


def _numbered(by_frequency: Iterable[str], noun: str, settings: TokenizerSettings) -> dict[str, int]:
    """Ids: special tokens take those that were asked for, the rest fill what is left, the most frequent first."""
    asked = {SOS: settings.sos_id, EOS: settings.eos_id, PAD: settings.pad_id, UNK: settings.unk_id}
    specials = {name: number for name, number in asked.items() if number is not None}
    assert UNK in specials, "settings see to it"
    most = settings.max_vocabulary
    if most is not None and most <= len(specials):
        what = (
            f"tokenizer.max_vocabulary is {most}, which leaves no id for a {noun} after {len(specials)} special tokens"
        )
        fix = f"set tokenizer.max_vocabulary to {len(specials) + 1} or more"
        raise UserError(what, fix=fix, code="setting.value", setting="tokenizer.max_vocabulary")
    words = (word for word in by_frequency if word not in specials)
    kept = list(words if most is None else islice(words, most - len(specials)))
    if not kept:
        what = f"no {noun} of the training split occurs {settings.min_frequency:,} times or more"
        fix = "set tokenizer.min_frequency to a smaller number, or add text"
        raise UserError(what, fix=fix, code="data.empty", setting="tokenizer.min_frequency")
    size = len(specials) + len(kept)
    for name, number in specials.items():
        if number >= size:
            setting = f"tokenizer.{name.strip('<>')}_id"
            what = f"{setting} is {number:,}, but the vocabulary has only the ids 0 to {size - 1:,}"
            raise UserError(what, fix=f"set {setting} to less than {size:,}", code="setting.value", setting=setting)
    free = (number for number in count() if number not in specials.values())
    return specials | dict(zip(kept, free, strict=False))


def _part(splitter: pre_tokenizers.PreTokenizer) -> Any:
    inner = library.Tokenizer(models.BPE())
    inner.pre_tokenizer = splitter
    return json.loads(inner.to_str())["pre_tokenizer"]


_SPLITTER_PARTS = [_part(splitter) for splitter in SPLITTERS.values()]
