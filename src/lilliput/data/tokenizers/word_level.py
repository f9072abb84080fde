"""Word and character tokenizers: splitting text into tokens, fitting vocabularies, joining tokens into text.

Owns: the rules of splitting and joining, fitting, and vocabulary files. Does not own: encoding (`tokenizers`) or the
training text (`prepare`). Everything consists of parts of the tokenizers library, so a saved tokenizer.json works the
same in transformers.

Words (`split = "words"`) consist of letters and digits. A word includes an apostrophe or hyphen between them (don't,
ice-cream), an apostrophe after a final s (the kids' toys), and a point, comma or colon between digits (3.5, 1,000,
10:30). Single letters with points are one word (U.S.). Every other punctuation character is a token, except that "..."
and "--" are one token each. White space, including line ends, only separates. Words are not split further because
published vocabularies and vectors contain whole words, and because joining them is unambiguous.

The space between two tokens (`PROSE`) depends on the text before and the next token only, so that text generated token
by token equals the text decoded at once. Quotation marks open and close in turn.
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

from lilliput.data.tokenizers.normalisers import build_normaliser
from lilliput.data.tokenizers.special_tokens import EOS, PAD, SOS, UNK, UNKNOWNS, find_specials
from lilliput.data.tokenizers.text_chunks import cut_texts
from lilliput.data.tokenizers.untrusted_files import read_text
from lilliput.errors import UserError
from lilliput.settings.tree import TokenizerSettings

LARGEST_VOCABULARY_FILE = 50 * 1000 * 1000

_WORD = r"(?:\p{L}\.){2,}|\w+(?:(?:['’\-]|(?<=\p{N})[.,:](?=\p{N}))\w+)*(?:(?<=[sS])['’](?!\S))?"
_MARK = r"\.\.\.|--|[^\s\w]"
_ONLY_MARKS = r"\A[^\w]+\z"

# (split, punctuation) -> pre-tokenizer. The patterns are unambiguous, so they run in linear time.
SPLITTERS: dict[tuple[str, str], pre_tokenizers.PreTokenizer] = {
    ("words", "keep"): pre_tokenizers.Split(Regex(f"{_WORD}|{_MARK}"), "removed", invert=True),
    ("words", "strip"): pre_tokenizers.Split(Regex(_WORD), "removed", invert=True),
    ("spaces", "keep"): pre_tokenizers.WhitespaceSplit(),
    ("spaces", "strip"): pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(_ONLY_MARKS), "removed")]
    ),
}

# Tokens are joined by one space; each rule then removes some spaces. Matches do not overlap, so `\K` (keep the match so
# far) finds every second quotation mark of the pairs.
_JOINTS = (
    (r"(?<!\S)'(?!\S).*?\K '(?!\S)", "'"),  # before a closing '
    (r"(?<=\A'| ') ", ""),  # after an opening '
    (r'"[^"]*\K "', '"'),  # before a closing "
    (r'(?<=\A"| ") ', ""),  # after an opening "
    (r" (?=[,.!?;:%)\]}…”’»—/]|--)", ""),
    (r"(?<=[(\[{“‘«¿¡$£€#@—/]|--) ", ""),
)
# No token begins with the prefix, so every token except the first gets a space before it.
_APART = decoders.WordPiece(prefix=" ", cleanup=False)
PROSE = decoders.Sequence([_APART, decoders.Fuse(), *(decoders.Replace(Regex(old), new) for old, new in _JOINTS)])
# Text that was split at spaces stays split at spaces: decoding can then be encoded again unchanged.
SPACED = decoders.Sequence([_APART, decoders.Fuse()])

OWN_PATTERNS = frozenset({f"{_WORD}|{_MARK}", _WORD, _ONLY_MARKS, *(old for old, _ in _JOINTS)})


def fit_words(settings: TokenizerSettings, documents: Iterable[str]) -> library.Tokenizer:
    """Return a tokenizer of the most frequent words; equally frequent words are ordered by code points."""
    fitted = _word_level({UNK: 0}, settings)
    # The library counts with the same parts that encode, on all cores; ids are assigned below.
    trainer = trainers.WordLevelTrainer(vocab_size=1 << 62, min_frequency=settings.min_frequency, show_progress=False)
    fitted.train_from_iterator(cut_texts(documents), trainer)
    by_frequency = sorted(fitted.get_vocab(with_added_tokens=False).items(), key=lambda item: item[1])
    return _word_level(_numbered((word for word, _ in by_frequency), "word", settings), settings)


def fit_characters(settings: TokenizerSettings, documents: Iterable[str]) -> library.Tokenizer:
    """Return a tokenizer of the most frequent characters, including white space and line ends."""
    normalizer = build_normaliser(settings)
    found = Counter[str]()
    for piece in cut_texts(documents):
        found.update(normalizer.normalize_str(piece) if normalizer else piece)
    kept = sorted((-times, one) for one, times in found.items() if times >= settings.min_frequency)
    # BPE without merges: the same ids as a pattern that splits at every character, four times as fast.
    model = models.BPE(_numbered((one for _, one in kept), "character", settings), [], unk_token=UNK)
    return _assembled(model, normalizer, None, decoders.Fuse())


def read_words(settings: TokenizerSettings) -> library.Tokenizer:
    """Return a tokenizer of the words of a vocabulary file. Line numbers from 0 are the ids."""
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
            fix = "write one token on each line (the line number is its id)"
            raise UserError("the vocabulary has an empty line", where, fix=fix, code="tokenizer.invalid")
        if line.split() != [line]:
            what = f"a token must not contain white space (got {line[:40]!r})"
            fix = "write one token on each line, without counts or columns"
            raise UserError(what, where, fix=fix, code="tokenizer.invalid")
        if line in ids:
            what = f"the vocabulary contains {line[:40]!r} twice, first in line {ids[line] + 1}"
            raise UserError(what, where, fix="remove one of the two lines", code="tokenizer.invalid")
        ids[line] = number
    if not ids.keys() & {*UNKNOWNS}:
        what = f"the vocabulary must contain {UNK}, the token for unknown words (got no such line)"
        fix = f"add a line {UNK} at its id in training, or at the end"
        raise UserError(what, str(path), fix=fix, code="tokenizer.invalid")
    find_specials(ids, str(path))
    return _word_level(ids, settings)


def kind_of(parts: dict[str, Any]) -> str | None:
    """Return `word` or `character` if a tokenizer.json has the parts that this module builds, else None."""
    model, before = parts["model"], parts["pre_tokenizer"]
    if model["type"] == "WordLevel" and before in _SPLITTER_PARTS:
        return "word"
    plain = model["type"] == "BPE" and not model["merges"] and before is None
    return "character" if plain and parts["decoder"] == {"type": "Fuse"} else None


def _word_level(ids: dict[str, int], settings: TokenizerSettings) -> library.Tokenizer:
    unknown = next(name for name in UNKNOWNS if name in ids)
    splitter = SPLITTERS[settings.split, settings.punctuation]
    decoder = PROSE if settings.split == "words" else SPACED
    return _assembled(models.WordLevel(ids, unk_token=unknown), build_normaliser(settings), splitter, decoder)


def _assembled(
    model: models.Model,
    normalizer: normalizers.Normalizer | None,
    splitter: pre_tokenizers.PreTokenizer | None,
    decoder: decoders.Decoder,
) -> library.Tokenizer:
    inner = library.Tokenizer(model)
    inner.normalizer, inner.pre_tokenizer, inner.decoder = normalizer, splitter, decoder
    # Not <unk>: decoding omits special tokens, and a text without its unknown words would look complete.
    names = [name for name in (SOS, EOS, PAD) if inner.token_to_id(name) is not None]
    inner.add_special_tokens([library.AddedToken(name, special=True, normalized=False) for name in names])
    return inner


def _numbered(by_frequency: Iterable[str], noun: str, settings: TokenizerSettings) -> dict[str, int]:
    """Assign the ids: special tokens get the ids of the settings, the others the remaining ids by frequency."""
    requested = {SOS: settings.sos_id, EOS: settings.eos_id, PAD: settings.pad_id, UNK: settings.unk_id}
    specials = {name: number for name, number in requested.items() if number is not None}
    assert UNK in specials, "unknown_token_rules ensures this"
    most = settings.max_vocabulary
    if most is not None and most <= len(specials):
        what = f"max_vocabulary must be larger than the number of special tokens, {len(specials)} (got {most})"
        fix = f"set tokenizer.max_vocabulary to {len(specials) + 1} or more"
        raise UserError(what, fix=fix, code="setting.value", setting="tokenizer.max_vocabulary")
    words = (word for word in by_frequency if word not in specials)
    kept = list(words if most is None else islice(words, most - len(specials)))
    if not kept:
        what = f"no {noun} of the training split occurs at least {settings.min_frequency:,} times"
        fix = "set tokenizer.min_frequency to a smaller number, or add text"
        raise UserError(what, fix=fix, code="data.empty", setting="tokenizer.min_frequency")
    size = len(specials) + len(kept)
    for name, number in specials.items():
        if number >= size:
            setting = f"tokenizer.{name.strip('<>')}_id"
            what = f"the id of {name} must be from 0 to {size - 1:,}, the ids of the vocabulary (got {number:,})"
            raise UserError(what, fix=f"set {setting} to less than {size:,}", code="setting.value", setting=setting)
    free = (number for number in count() if number not in specials.values())
    return specials | dict(zip(kept, free, strict=False))


def _part(splitter: pre_tokenizers.PreTokenizer) -> Any:
    inner = library.Tokenizer(models.BPE())
    inner.pre_tokenizer = splitter
    return json.loads(inner.to_str())["pre_tokenizer"]


_SPLITTER_PARTS = [_part(splitter) for splitter in SPLITTERS.values()]
