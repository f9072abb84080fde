"""Text as ids and back: the class that all kinds of tokenizers share, and the table of kinds.

Owns: loading and saving of tokenizers, exact encoding of texts of any length in bounded memory, decoding that
streams, BPE trained on the user's text, and bytes. Does not own: words and characters (`words`), GPT-2's
files (`gpt2`), which text is trained on (`prepare` gives the training split) or how ids are stored. The work
is done by the tokenizers library, and a saved tokenizer is its tokenizer.json, which transformers reads.

End-of-text is the last id of BPE and bytes, as in GPT-2: they keep their ids whatever is added after them. A
new kind of tokenizer is one function and one entry of `tokenizer_choices`.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as library
from numpy.typing import NDArray
from tokenizers import models, trainers

from lilliput.data.corpora import END_OF_TEXT
from lilliput.data.tokenizer_choices import TOKENIZERS
from lilliput.data.tokenizers import gpt2
from lilliput.data.tokenizers import word_level as words
from lilliput.data.tokenizers.gpt2 import BYTE_CHARACTERS, CHARACTER_BYTES
from lilliput.data.tokenizers.special_tokens import find_specials, find_unknown
from lilliput.data.tokenizers.text_chunks import cut_endless_words, cut_text
from lilliput.data.tokenizers.untrusted_files import check_patterns, read_text, told_panics
from lilliput.errors import UserError, blame
from lilliput.settings.tree import TokenizerSettings
from lilliput.storage.atomic_files import parse_json

# Above GPT-4's largest (about 20 MB); parsing takes several times the file's size in memory.
LARGEST_FILE = 50 * 1000 * 1000
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")  # as vocabularies with byte fallback write the bytes of rare characters
GROUP = 1 << 20  # characters that the library holds at once, about 140 bytes for each

Ids = NDArray[np.uint32]


class Tokenizer:
    """A tokenizer of the library, with the promises that the rest of Lilliput relies on.

    `encode` never makes a special id, not even of the text "<|endoftext|>": a user's words cannot end a document.
    Where `lossy` is False, `decode(encode(text)) == text` for every text. `start` is the first input of a document; where
    there is no token for that, it is `end`. Where `ends` is False the vocabulary has no end either: `end` is its padding,
    which separates documents and is never to be predicted.
    """

    def __init__(self, inner: library.Tokenizer, where: str = "tokenizer.json") -> None:
        # First of all: the library writes a vocabulary by counting from 0 to its largest id.
        vocabulary = inner.get_vocab(with_added_tokens=True)
        self.vocab_size: int = _checked_size(vocabulary, where)
        parts = json.loads(inner.to_str())
        model, added = parts["model"], {token["content"] for token in parts["added_tokens"]}
        # A piece of BPE that only looks like a special token was learned from text (<s> is also HTML).
        specials = find_specials(added if model["type"] == "BPE" else vocabulary, where)
        # A tokenizer that knows them only as words would write them into decoded text.
        names = {specials.start, specials.end, *filter(None, [specials.pad])}
        inner.add_special_tokens([library.AddedToken(name, special=True, normalized=False) for name in sorted(names)])
        inner.no_truncation()
        inner.no_padding()
        if model.get("dropout") is not None:
            inner.model.dropout = None  # a text has one encoding
        inner.encode_special_tokens = True  # specials in a text are text
        self._inner, self._where = inner, where
        self.start: int = vocabulary[specials.start]
        self.end: int = vocabulary[specials.end]
        self.ends: bool = specials.ends
        self.pad: int | None = None if specials.pad is None else vocabulary[specials.pad]
        self.unknown: int | None = find_unknown(model, vocabulary, where)
        before, after = parts["pre_tokenizer"] or {}, parts["decoder"] or {}
        exact = before.get("type") == after.get("type") == "ByteLevel" and not before["add_prefix_space"]
        self.byte_level: bool = exact and not parts["normalizer"] and CHARACTER_BYTES.keys() <= model["vocab"].keys()
        # Anything that is not known to be exact is marked: normalizers, unknown words, added spaces.
        self.lossy: bool = not self.byte_level
        self.kind: str = _kind(parts, self.byte_level)
        # Added tokens that are not special are matched in the text itself, perhaps across a border of pieces.
        special = all(token["special"] for token in parts["added_tokens"])
        self._cuttable: bool = special and (self.byte_level or self.kind in ("word", "character"))
        self._forged: Ids | None = None if self.byte_level else self._find_forged(names, vocabulary)

    def _find_forged(self, names: set[str], vocabulary: dict[str, int]) -> Ids | None:
        """What each id becomes that a text gave: models that know a special token as a word must not make it of one."""
        if self.unknown is None:
            return None
        table = np.arange(self.vocab_size, dtype=np.uint32)
        table[[vocabulary[name] for name in names]] = self.unknown
        return table

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [found.tolist() for found in self.encode_arrays(texts)]

    def encode_arrays(self, texts: list[str], unknown_words: Counter[str] | None = None) -> list[Ids]:
        """Ids of each text: in parallel over cores, without holding the interpreter, and in bounded memory.

        `unknown_words` counts, as they stand in the texts, the words that became `unknown`.
        """
        counted: Counter[str] = Counter()
        try:
            if self.kind == "byte":  # ids are bytes; 20 times faster than asking the library for the same
                return [np.frombuffer(text.encode(), np.uint8).astype(np.uint32) for text in texts]
            with told_panics("the tokenizer fails on a text", self._where):
                found = self._encode(texts, counted if unknown_words is not None else None)
        except (UnicodeEncodeError, TypeError):
            mended = [mend(text) for text in texts]
            if mended == texts:
                raise
            return self.encode_arrays(mended, unknown_words)
        if unknown_words is not None:
            unknown_words.update(counted)
        return found

    def _encode(self, texts: list[str], unknown_words: Counter[str] | None) -> list[Ids]:
        parts: list[list[Ids]] = [[] for _ in texts]
        located = unknown_words is not None and self.unknown is not None
        for group in self._groups(texts):
            pieces = [piece for _, piece in group]
            # Only the slower form says where in the text a token stands.
            encode = self._inner.encode_batch if located else self._inner.encode_batch_fast
            for (number, piece), found in zip(group, encode(pieces, add_special_tokens=False), strict=True):
                ids = np.array(found.ids, dtype=np.uint32)
                if self._forged is not None:
                    ids = self._forged[ids]
                parts[number].append(ids)
                if located and unknown_words is not None:
                    places = (found.token_to_chars(int(at)) for at in np.flatnonzero(ids == self.unknown))
                    unknown_words.update(piece[slice(*place)] for place in places if place)
        return [found[0] if len(found) == 1 else np.concatenate(found) for found in parts]

    def _groups(self, texts: list[str]) -> Iterator[list[tuple[int, str]]]:
        """Pieces, each with the number of its text, as many at a time as the library may hold."""
        group: list[tuple[int, str]] = []
        size = 0
        for number, text in enumerate(texts):
            for piece in cut_text(text) if self._cuttable else (text,):
                group.append((number, piece))
                size += len(piece)
                if size >= GROUP:
                    yield group
                    group, size = [], 0
        if group:
            yield group

    def normalise(self, text: str) -> str:
        """The text as its tokens are looked for in it: in small letters, say."""
        normaliser = self._inner.normalizer
        return normaliser.normalize_str(mend(text)) if normaliser else mend(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text, without special tokens; ids that the vocabulary lacks are skipped."""
        with told_panics("the tokenizer fails to decode", self._where):
            return self._inner.decode(list(ids), skip_special_tokens=True)

    def token(self, token_id: int) -> str:
        """One piece for a human reader: its text, or its bytes as <0xE2> where they are no whole character."""
        if self.byte_level and (raw := self.token_bytes(token_id)):
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return "".join(f"<0x{byte:02X}>" for byte in raw)
        return self._inner.id_to_token(token_id) or f"<unused {token_id}>"

    def piece(self, token_id: int) -> str | None:
        """The token as the vocabulary has it; None for ids that decoding skips."""
        return None if token_id in self._skipped else self._inner.id_to_token(token_id)

    @cached_property
    def _skipped(self) -> set[int]:
        return {token_id for token_id, token in self._inner.get_added_tokens_decoder().items() if token.special}

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token of a byte-level vocabulary stands for; none for special and unused ids."""
        assert self.byte_level, "only byte-level tokens stand for bytes"
        return self._bytes.get(token_id, b"")

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        return {
            # A piece with a character outside GPT-2's table is written as it is, as the library's decoder does.
            token_id: bytes(map(CHARACTER_BYTES.__getitem__, piece))
            if CHARACTER_BYTES.keys() >= set(piece)
            else piece.encode()
            for piece, token_id in self._inner.get_vocab(with_added_tokens=True).items()
            if token_id not in self._skipped
        }

    def to_json(self) -> str:
        return self._inner.to_str()

    @cached_property
    def sha256(self) -> str:
        """Of the canonical JSON: equal for equal tokenizers, however their files are laid out."""
        canonical = json.dumps(json.loads(self.to_json()), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def save(self, path: Path) -> None:
        path.write_bytes(self.to_json().encode())

    @staticmethod
    def from_json(text: str, where: str = "tokenizer.json") -> Tokenizer:
        try:
            parts = parse_json(text)
            if not isinstance(parts, dict):
                raise ValueError("no JSON object")
            check_patterns(parts, words.OWN_PATTERNS, where)
        except ValueError as error:
            what, fix = f"the tokenizer is not valid JSON: {error}", "give a complete tokenizer.json"
            raise UserError(what, where, fix=fix, code="file.syntax") from error
        try:
            with told_panics("the tokenizer cannot be used", where):
                inner = library.Tokenizer.from_str(text)
        except UserError:
            raise
        except Exception as error:  # the library raises nothing narrower
            reason = " ".join(str(error).split())[:200]
            fix = "give the tokenizer.json of the tokenizers library"
            raise UserError(
                f"the tokenizer cannot be used: {reason}", where, fix=fix, code="tokenizer.invalid"
            ) from error
        return Tokenizer(inner, where)

    @staticmethod
    def load(path: Path) -> Tokenizer:
        """A tokenizer.json, or a folder with that or with GPT-2's files in one of their forms."""
        file = path / "tokenizer.json" if path.is_dir() else path
        if path.is_dir() and not file.exists():
            if found := gpt2.read_folder(path):
                return Tokenizer(found, str(path))
            fix = "give a folder with tokenizer.json, or with encoder.json and vocab.bpe, or tiktoken's cache"
            what = "the folder has no tokenizer"
            raise UserError(what, str(file), fix=fix, code="tokenizer.missing", setting="tokenizer.path")
        return Tokenizer.from_json(read_text(file, "tokenizer", LARGEST_FILE), str(file))


def mend(text: str) -> str:
    """Half a surrogate pair (a terminal's broken byte, say) is no text: it becomes U+FFFD, as everywhere else."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _checked_size(vocabulary: dict[str, int], where: str) -> int:
    size = max(vocabulary.values(), default=-1) + 1
    if size > 2 * len(vocabulary):
        what = f"the largest id is {size - 1:,}, but there are only {len(vocabulary):,} tokens"
        raise UserError(what, where, fix="give a tokenizer.json with ids that start at 0", code="tokenizer.invalid")
    if len({*vocabulary.values()}) < len(vocabulary):
        (number, _), *_ = Counter(vocabulary.values()).most_common(1)
        first, second, *_ = sorted(token for token, one in vocabulary.items() if one == number)
        what = f"two tokens have the id {number}: {first!r} and {second!r}"
        raise UserError(what, where, fix="give each token its own id", code="tokenizer.invalid")
    return size


def _kind(parts: dict[str, Any], byte_level: bool) -> str:
    model = parts["model"]
    if not byte_level:
        return words.kind_of(parts) or str(model["type"]).lower()
    if not parts["pre_tokenizer"]["use_regex"] and model["vocab"] == CHARACTER_BYTES:
        return "byte"
    return "gpt2" if model["vocab"].get(gpt2.LAST_PIECE) == gpt2.RANKS - 1 else "bpe"


class TokenDecoder:
    """Decodes one id at a time. What `push` gives is certain; half a character waits for the rest of its bytes.

    The parts together equal `tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace") if tokenizer.byte_level else None
        self._ids: list[int] = []
        self._given = ""

    def push(self, token_id: int) -> str:
        if self._utf8 is not None:
            return self._utf8.decode(self._tokenizer.token_bytes(token_id))
        piece = self._tokenizer.piece(token_id)
        if piece is None:
            return ""
        # Tokenizers that are not byte-level may rewrite the end of what they wrote (spaces, quotes): the last token
        # waits for the next one, and bytes wait for the end of their run, which becomes characters as a whole or not
        # at all. Costs a decoding of all ids for each; a text has some hundreds.
        self._ids.append(token_id)
        return "" if _BYTE_PIECE.fullmatch(piece) else self._emit(self._tokenizer.decode(self._ids[:-1]))

    def flush(self) -> str:
        if self._utf8 is not None:
            return self._utf8.decode(b"", final=True)
        return self._emit(self._tokenizer.decode(self._ids))

    def _emit(self, text: str) -> str:
        if not text.startswith(self._given):
            return ""
        new, self._given = text[len(self._given) :], text
        return new


def train_bpe(documents: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE with GPT-2's split pattern; smaller than asked for where the text has no more pairs to merge."""
    assert vocab_size >= 257, "256 bytes and end-of-text"
    inner = gpt2.byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,  # a pair seen once is no pattern
        show_progress=False,
        initial_alphabet=BYTE_CHARACTERS,
    )
    inner.train_from_iterator(cut_endless_words(documents), trainer)
    return _ended(inner)


def byte_tokenizer() -> Tokenizer:
    """256 ids that are the bytes, and end-of-text: nothing to train, nothing unknown, nothing lost."""
    return _ended(gpt2.byte_level(models.BPE(vocab=CHARACTER_BYTES, merges=[]), use_regex=False))


def _ended(inner: library.Tokenizer) -> Tokenizer:
    inner.add_special_tokens([library.AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return Tokenizer(inner)


def trained_bpe(settings: TokenizerSettings, documents: Iterable[str]) -> Tokenizer:
    return train_bpe(documents, settings.vocab_size)


def all_bytes(settings: TokenizerSettings, documents: Iterable[str]) -> Tokenizer:
    return byte_tokenizer()


def characters(settings: TokenizerSettings, documents: Iterable[str]) -> Tokenizer:
    return _fitted(words.fit_characters(settings, documents))


def gpt2_own(settings: TokenizerSettings, documents: Iterable[str]) -> Tokenizer:
    return Tokenizer(gpt2.find_gpt2())


def words_of(settings: TokenizerSettings, documents: Iterable[str]) -> Tokenizer:
    if settings.vocabulary is not None:
        with blame("tokenizer.vocabulary"):
            return Tokenizer(words.read_words(settings), settings.vocabulary)
    return _fitted(words.fit_words(settings, documents))


def _fitted(inner: library.Tokenizer) -> Tokenizer:
    with blame("tokenizer.eos_id"):  # without it a vocabulary may lack a token that ends documents
        return Tokenizer(inner, "tokenizer.eos_id")


def learns(settings: TokenizerSettings) -> bool:
    """Return whether the tokenizer is made from the training split, and not from files that may be gone one day."""
    return settings.path is None and settings.vocabulary is None and TOKENIZERS[settings.kind].learns


def make_tokenizer(settings: TokenizerSettings, documents: Iterable[str]) -> Tokenizer:
    """Make the tokenizer of the settings; `documents` (the training split) are read only by kinds that learn."""
    if settings.path is not None:
        with blame("tokenizer.path"):
            return Tokenizer.load(Path(settings.path))
    tokenizer: Tokenizer = TOKENIZERS[settings.kind].build(settings, documents)
    return tokenizer
