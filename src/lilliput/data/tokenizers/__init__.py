"""Tokenizers: the class that all kinds share, and the functions that build each kind.

Owns: loading and saving tokenizers, exact encoding of texts of any length in bounded memory, decoding, and training
of BPE and byte tokenizers. Does not own: word and character tokenizers (`word_level`), GPT-2's files (`gpt2`), or
storage of ids. The tokenizers library does the work; a saved tokenizer is a tokenizer.json, which transformers reads.

End-of-text is the last id of BPE and byte tokenizers, as in GPT-2, so that added tokens change no id. A new kind of
tokenizer needs one function and one entry in `tokenizer_choices`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as library
from numpy.typing import NDArray
from tokenizers import models, normalizers, trainers

from lilliput.data.corpora import END_OF_TEXT
from lilliput.data.tokenizer_choices import TOKENIZERS
from lilliput.data.tokenizers import gpt2, normalisers
from lilliput.data.tokenizers import word_level as words
from lilliput.data.tokenizers.gpt2 import BYTE_CHARACTERS, CHARACTER_BYTES
from lilliput.data.tokenizers.special_tokens import find_specials, find_unknown
from lilliput.data.tokenizers.text_chunks import cut_endless_words, cut_text
from lilliput.data.tokenizers.token_decoder import TokenDecoder as TokenDecoder
from lilliput.data.tokenizers.untrusted_files import catch_panics, check_patterns, read_text
from lilliput.errors import UserError, blame
from lilliput.settings.tree import TokenizerSettings
from lilliput.storage.atomic_files import parse_json

# Larger than GPT-4's (about 20 MB). Parsing takes several times the file's size in memory.
LARGEST_FILE = 50 * 1000 * 1000
GROUP = 1 << 20  # characters passed to the library at once; it needs about 140 bytes for each

Ids = NDArray[np.uint32]


class Tokenizer:
    """A tokenizer of the tokenizers library, with additional guarantees.

    `encode` never returns a special id, not even for the text "<|endoftext|>": a text cannot end a document. If `lossy`
    is False, `decode(encode(text)) == text` for every text. `start` is the first input of a document; it equals `end`
    if the vocabulary has no start token. If `ends` is False, the vocabulary has no end token: `end` is then the padding
    token, which separates documents and is never predicted.
    """

    def __init__(self, inner: library.Tokenizer, where: str = "tokenizer.json") -> None:
        # Checked first: the library serialises a vocabulary by counting from 0 to its largest id.
        vocabulary = inner.get_vocab(with_added_tokens=True)
        self.vocab_size: int = _checked_size(vocabulary, where)
        parts = json.loads(inner.to_str())
        model, added = parts["model"], {token["content"] for token in parts["added_tokens"]}
        # A BPE piece that only looks like a special token was learned from text (<s> is also HTML).
        specials = find_specials(added if model["type"] == "BPE" else vocabulary, where)
        # If they were ordinary words, they would appear in decoded text.
        names = {specials.start, specials.end, *filter(None, [specials.pad])}
        inner.add_special_tokens([library.AddedToken(name, special=True, normalized=False) for name in sorted(names)])
        inner.no_truncation()
        inner.no_padding()
        if model.get("dropout") is not None:
            inner.model.dropout = None  # encoding is deterministic
        inner.encode_special_tokens = True  # names of special tokens in a text are encoded as text
        self._inner, self._where = inner, where
        self.start: int = vocabulary[specials.start]
        self.end: int = vocabulary[specials.end]
        self.ends: bool = specials.ends
        self.pad: int | None = None if specials.pad is None else vocabulary[specials.pad]
        self.unknown: int | None = find_unknown(model, vocabulary, where)
        before, after = parts["pre_tokenizer"] or {}, parts["decoder"] or {}
        exact = before.get("type") == after.get("type") == "ByteLevel" and not before["add_prefix_space"]
        self.byte_level: bool = exact and CHARACTER_BYTES.keys() <= model["vocab"].keys()
        # Lossy unless known to be exact: normalizers, unknown words and added spaces lose text.
        self.lossy: bool = not self.byte_level or bool(parts["normalizer"])
        self.kind: str = _kind(parts, self.byte_level)
        # Added tokens that are not special are matched in the text, possibly across a border of two pieces.
        special = all(token["special"] for token in parts["added_tokens"])
        known = normalisers.is_own(parts["normalizer"]) and (self.byte_level or self.kind in ("word", "character"))
        self._cuttable: bool = special and known
        self._forged: Ids | None = None if self.byte_level else self._find_forged(names, vocabulary)

    def _find_forged(self, names: set[str], vocabulary: dict[str, int]) -> Ids | None:
        """Return a map of ids that replaces special ids by `unknown`: a vocabulary may contain their names as words."""
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
        """Return the ids of each text. Runs on all cores, without the GIL, in bounded memory.

        `unknown_words` is updated with the words, as spelled in the texts, that were encoded as `unknown`.
        """
        counted: Counter[str] = Counter()
        try:
            if self.kind == "byte" and not self.lossy:  # ids are bytes; 20 times faster than the library
                return [np.frombuffer(text.encode(), np.uint8).astype(np.uint32) for text in texts]
            with catch_panics("the tokenizer fails on a text", self._where):
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
            # Only the slower function returns the position of a token in the text.
            encode = self._inner.encode_batch if located else self._inner.encode_batch_fast
            for (number, piece), found in zip(group, encode(pieces, add_special_tokens=False), strict=True):
                ids = np.array(found.ids, dtype=np.uint32)
                if self._forged is not None:
                    ids = self._forged[ids]
                parts[number].append(ids)
                if located and unknown_words is not None:
                    spans = (found.token_to_chars(int(at)) for at in np.flatnonzero(ids == self.unknown))
                    unknown_words.update(piece[slice(*span)] for span in spans if span)
        return [found[0] if len(found) == 1 else np.concatenate(found) for found in parts]

    def _groups(self, texts: list[str]) -> Iterator[list[tuple[int, str]]]:
        """Yield groups of about `GROUP` characters: pieces, each with the index of its text."""
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

    def encode_spans(self, text: str) -> list[tuple[int, int, int]]:
        """Return (id, start, end) of each token of `encode`: the characters of `mend(text)` from which it comes."""
        found, start = list[tuple[int, int, int]](), 0
        for piece in cut_text(mend(text)) if self._cuttable else (mend(text),):
            with catch_panics("the tokenizer fails on a text", self._where):
                encoding = self._inner.encode(piece, add_special_tokens=False)
            ids = encoding.ids if self._forged is None else self._forged[encoding.ids].tolist()
            found += [(id_, start + a, start + b) for id_, (a, b) in zip(ids, encoding.offsets, strict=True)]
            start += len(piece)
        return found

    def normalise(self, text: str) -> str:
        """Return the text after the tokenizer's normalisation (such as lowercasing)."""
        normaliser = self._inner.normalizer
        return normaliser.normalize_str(mend(text)) if normaliser else mend(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text without special tokens. Ids outside the vocabulary are skipped."""
        with catch_panics("the tokenizer fails to decode", self._where):
            return self._inner.decode(list(ids), skip_special_tokens=True)

    def token(self, token_id: int) -> str:
        """Return a printable form of a token: its text, or bytes like <0xE2> if it is not whole characters."""
        if self.byte_level and (raw := self.token_bytes(token_id)):
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return "".join(f"<0x{byte:02X}>" for byte in raw)
        return self._inner.id_to_token(token_id) or f"<unused {token_id}>"

    def piece(self, token_id: int) -> str | None:
        """Return the token as spelled in the vocabulary; None for ids that decoding skips."""
        return None if token_id in self._skipped else self._inner.id_to_token(token_id)

    @cached_property
    def _skipped(self) -> set[int]:
        return {token_id for token_id, token in self._inner.get_added_tokens_decoder().items() if token.special}

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token of a byte-level vocabulary; empty for special and unused ids."""
        assert self.byte_level, "only byte-level tokens have bytes"
        return self._bytes.get(token_id, b"")

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        return {
            # A piece with a character outside GPT-2's table is encoded as UTF-8, as in the library's decoder.
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
        """SHA-256 of the canonical JSON: equal for equal tokenizers, independent of the layout of their files."""
        canonical = json.dumps(json.loads(self.to_json()), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def save(self, path: Path) -> None:
        path.write_bytes(self.to_json().encode())

    @staticmethod
    def from_json(text: str, where: str = "tokenizer.json") -> Tokenizer:
        try:
            parts = parse_json(text)
            if not isinstance(parts, dict):
                raise ValueError("expected a JSON object")
            check_patterns(parts, words.OWN_PATTERNS | normalisers.OWN_PATTERNS, where)
        except ValueError as error:
            what, fix = f"the tokenizer is not valid JSON: {error}", "give a complete tokenizer.json"
            raise UserError(what, where, fix=fix, code="file.syntax") from error
        try:
            with catch_panics("the tokenizer cannot be used", where):
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
        """Load a tokenizer.json, or a folder that contains one or GPT-2's files."""
        file = path / "tokenizer.json" if path.is_dir() else path
        if path.is_dir() and not file.exists():
            if found := gpt2.read_folder(path):
                return Tokenizer(found, str(path))
            fix = "give a folder with tokenizer.json, or with encoder.json and vocab.bpe, or tiktoken's cache"
            what = "the folder contains no tokenizer"
            raise UserError(what, str(file), fix=fix, code="tokenizer.missing", setting="tokenizer.path")
        return Tokenizer.from_json(read_text(file, "tokenizer", LARGEST_FILE), str(file))


def mend(text: str) -> str:
    """Replace unpaired surrogates (such as a broken byte from a terminal) by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _checked_size(vocabulary: dict[str, int], where: str) -> int:
    size = max(vocabulary.values(), default=-1) + 1
    if size > 2 * len(vocabulary):
        what = f"the largest id of {len(vocabulary):,} tokens must be below {2 * len(vocabulary):,} (got {size - 1:,})"
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


def train_bpe(documents: Iterable[str], vocab_size: int, normaliser: normalizers.Normalizer | None = None) -> Tokenizer:
    """Train byte-level BPE with GPT-2's split pattern. The vocabulary is smaller if the text has too few pairs to merge."""
    assert vocab_size >= 257, "256 bytes and end-of-text"
    inner = gpt2.byte_level(models.BPE())
    inner.normalizer = normaliser
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,  # a pair that occurs once is not worth a merge
        show_progress=False,
        initial_alphabet=BYTE_CHARACTERS,
    )
    inner.train_from_iterator(cut_endless_words(documents), trainer)
    return _ended(inner)


def byte_tokenizer(normaliser: normalizers.Normalizer | None = None) -> Tokenizer:
    """Return the tokenizer whose ids are the 256 bytes and end-of-text."""
    inner = gpt2.byte_level(models.BPE(vocab=CHARACTER_BYTES, merges=[]), use_regex=False)
    inner.normalizer = normaliser
    return _ended(inner)


def _ended(inner: library.Tokenizer) -> Tokenizer:
    inner.add_special_tokens([library.AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return Tokenizer(inner)


def trained_bpe(settings: TokenizerSettings, documents: Iterable[str]) -> Tokenizer:
    return train_bpe(documents, settings.vocab_size, normalisers.build_normaliser(settings))


def all_bytes(settings: TokenizerSettings, documents: Iterable[str]) -> Tokenizer:
    return byte_tokenizer(normalisers.build_normaliser(settings))


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
    with blame("tokenizer.eos_id"):  # without this setting a vocabulary may lack an end token
        return Tokenizer(inner, "tokenizer.eos_id")


def learns(settings: TokenizerSettings) -> bool:
    """Return whether the tokenizer is fitted to the training split (and not read from files)."""
    return settings.path is None and settings.vocabulary is None and TOKENIZERS[settings.kind].learns


def make_tokenizer(settings: TokenizerSettings, documents: Iterable[str]) -> Tokenizer:
    """Return the tokenizer of the settings. Only kinds that learn read `documents` (the training split)."""
    if settings.path is not None:
        with blame("tokenizer.path"):
            return Tokenizer.load(Path(settings.path))
    tokenizer: Tokenizer = TOKENIZERS[settings.kind].build(settings, documents)
    return tokenizer
