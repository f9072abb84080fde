"""Text as ids and back: byte-level BPE trained on the user's text, bytes, and any tokenizer.json that fits.

Owns: training, loading and saving of tokenizers, exact encoding of texts of any length, decoding that streams. Does not
own: which text is trained on (`prepare` gives the training split) or how ids are stored. The work is done by the
tokenizers library, and a saved tokenizer is its tokenizer.json, which transformers reads.

End-of-text is the last id, as in GPT-2: bytes and pieces keep their ids whatever is added after them. A new kind of
tokenizer is one entry of `KINDS`.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path

import tokenizers as library
from tokenizers import decoders, models, pre_tokenizers, trainers

from lilliput.data.corpora import END_OF_TEXT
from lilliput.errors import UserError, nearest
from lilliput.settings import TokenizerSettings

# Above GPT-4's largest (about 20 MB); parsing takes several times the file's size in memory.
LARGEST_FILE = 50 * 1000 * 1000
PIECE = 1 << 16
LONGEST_PIECE = 1 << 20
GROUP = 64  # pieces that the library holds at once
LONGEST_WORD = 256


def _byte_characters() -> list[str]:
    """The printable character with which GPT-2 writes each byte (bytes_to_unicode of its encoder.py)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


BYTE_CHARACTERS = _byte_characters()
CHARACTER_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


class Tokenizer:
    """A tokenizer of the library, with the promises that the rest of Lilliput relies on.

    `encode` never makes a special id, not even of the text "<|endoftext|>": a user's words cannot end a document.
    Where `lossy` is False, `decode(encode(text)) == text` for every text.
    """

    def __init__(self, inner: library.Tokenizer, where: str = "tokenizer.json") -> None:
        if inner.token_to_id(END_OF_TEXT) is None:
            raise UserError(f"the tokenizer has no {END_OF_TEXT} token", where, "add it to added_tokens, or train one")
        # A tokenizer that knows the token only as a word would write it into decoded text.
        inner.add_special_tokens([library.AddedToken(END_OF_TEXT, special=True, normalized=False)])
        inner.no_truncation()
        inner.no_padding()
        inner.encode_special_tokens = True  # specials in a text are text
        self._inner = inner
        end = inner.token_to_id(END_OF_TEXT)
        assert end is not None
        self.end: int = end
        vocabulary = inner.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocabulary.values()) + 1
        if self.vocab_size > 2 * len(vocabulary):
            what = f"ids run to {self.vocab_size - 1:,} but there are only {len(vocabulary):,} tokens"
            raise UserError(what, where, "give a tokenizer.json with ids from 0 on")
        parts = json.loads(inner.to_str())
        model, before, after = parts["model"], parts["pre_tokenizer"] or {}, parts["decoder"] or {}
        exact = before.get("type") == after.get("type") == "ByteLevel" and not before["add_prefix_space"]
        self.byte_level: bool = exact and not parts["normalizer"] and CHARACTER_BYTES.keys() <= model["vocab"].keys()
        # Anything that is not known to be exact is marked: normalizers, unknown words, added spaces.
        self.lossy: bool = not self.byte_level
        plain = self.byte_level and not before["use_regex"] and model["vocab"] == CHARACTER_BYTES
        self.kind: str = "byte" if plain else "bpe" if self.byte_level else str(model["type"]).lower()
        unknown = model.get("unk_token")
        self.unknown: int | None = None if unknown is None else inner.token_to_id(unknown)
        # Added tokens that are not special are matched in the text itself, perhaps across a border of pieces.
        self._cuttable: bool = self.byte_level and all(token["special"] for token in parts["added_tokens"])

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text: in parallel over cores, and without holding the interpreter."""
        try:
            if self.kind == "byte":  # ids are bytes; 20 times faster than asking the library for the same
                return [list(text.encode()) for text in texts]
            if not self._cuttable or all(len(text) <= PIECE for text in texts):
                return [found.ids for found in self._inner.encode_batch_fast(texts, add_special_tokens=False)]
            pieces = [list(cut_text(text)) for text in texts]
            flat = [piece for text in pieces for piece in text]
            groups = (flat[start : start + GROUP] for start in range(0, len(flat), GROUP))
            found = chain.from_iterable(
                self._inner.encode_batch_fast(group, add_special_tokens=False) for group in groups
            )
            return [[one for _ in text for one in next(found).ids] for text in pieces]
        except (UnicodeEncodeError, TypeError):
            # Half a surrogate pair (a terminal's broken byte, say) is no text: it becomes U+FFFD, as everywhere else.
            mended = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
            if mended == texts:
                raise
            return self.encode_batch(mended)

    def decode(self, ids: Iterable[int]) -> str:
        """The text, without special tokens; ids that the vocabulary lacks are skipped."""
        return self._inner.decode(list(ids), skip_special_tokens=True)

    def token(self, token_id: int) -> str:
        """One piece for a human reader: its text, or its bytes as <0xE2> where they are no whole character."""
        if self.byte_level and (raw := self.token_bytes(token_id)):
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return "".join(f"<0x{byte:02X}>" for byte in raw)
        return self._inner.id_to_token(token_id) or f"<unused {token_id}>"

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token of a byte-level vocabulary stands for; none for special and unused ids."""
        assert self.byte_level, "only byte-level tokens stand for bytes"
        return self._bytes.get(token_id, b"")

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        added = self._inner.get_added_tokens_decoder()
        return {
            # A piece with a character outside GPT-2's table is written as it is, as the library's decoder does.
            token_id: bytes(map(CHARACTER_BYTES.__getitem__, piece))
            if CHARACTER_BYTES.keys() >= set(piece)
            else piece.encode()
            for piece, token_id in self._inner.get_vocab(with_added_tokens=True).items()
            if token_id not in added or not added[token_id].special
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
            if not isinstance(json.loads(text), dict):
                raise ValueError("no JSON object")
        except (ValueError, RecursionError) as error:
            reason = "too deeply nested" if isinstance(error, RecursionError) else error
            raise UserError(f"the tokenizer is not JSON: {reason}", where, "give a whole tokenizer.json") from error
        try:
            inner = library.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            reason = " ".join(str(error).split())[:200]
            hint = "give the tokenizer.json of the tokenizers library"
            raise UserError(f"the tokenizer cannot be used: {reason}", where, hint) from error
        return Tokenizer(inner, where)

    @staticmethod
    def load(path: Path) -> Tokenizer:
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            size = file.stat().st_size
            if size > LARGEST_FILE:
                what = f"the tokenizer has {size:,} bytes, and more than {LARGEST_FILE:,} are refused"
                raise UserError(what, str(file), "give a tokenizer.json")
            text = file.read_bytes().decode()
        except FileNotFoundError as error:
            raise UserError("no such tokenizer", str(file), "give the path of a tokenizer.json") from error
        except OSError as error:
            raise UserError(
                f"cannot read the tokenizer: {error.strerror}", str(file), "check its permissions"
            ) from error
        except UnicodeDecodeError as error:
            where = f"{file}, byte {error.start}"
            raise UserError("the tokenizer is not JSON: it is not UTF-8", where, "give a tokenizer.json") from error
        return Tokenizer.from_json(text, str(file))


class Decoder:
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
        # Tokenizers that are not byte-level may rewrite the end of what they wrote (spaces, quotes): the last token
        # waits for the next one. Costs a decoding of all ids for each; a text has some hundreds.
        self._ids.append(token_id)
        return self._emit(self._tokenizer.decode(self._ids[:-1]))

    def flush(self) -> str:
        if self._utf8 is not None:
            return self._utf8.decode(b"", final=True)
        return self._emit(self._tokenizer.decode(self._ids))

    def _emit(self, text: str) -> str:
        if not text.startswith(self._given):
            return ""
        new, self._given = text[len(self._given) :], text
        return new


def cut_text(text: str) -> Iterator[str]:
    """A long text in pieces whose tokens, one after another, are the tokens of the whole.

    GPT-2's pattern never holds white space after anything else inside one word, so the place before such white space
    is a border of words in any case. The library, which needs about 140 bytes for a byte of text, then holds pieces and
    not documents, and shares a long document over cores. A run of a million characters without such a place is cut
    where it is: other tokens than the library's own, but the same text.
    """
    start = 0
    while len(text) - start > PIECE:
        found = _BORDER.search(text, start + PIECE, start + LONGEST_PIECE)
        end = found.start() if found else start + LONGEST_PIECE
        yield text[start:end]
        start = end
    if start < len(text) or not text:
        yield text[start:]


_BORDER = re.compile(r"(?<=\S)[ \n]")
_WORD = re.compile(rf"\s*\S{{1,{LONGEST_WORD}}}|\s+")


def train_bpe(documents: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE with GPT-2's split pattern; smaller than asked for where the text has no more pairs to merge."""
    assert vocab_size >= 257, "256 bytes and end-of-text"
    inner = library.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,  # a pair seen once is no pattern
        show_progress=False,
        initial_alphabet=BYTE_CHARACTERS,
    )
    inner.train_from_iterator(_trainable(documents), trainer)
    inner.add_special_tokens([library.AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return Tokenizer(inner)


def _trainable(documents: Iterable[str]) -> Iterator[str]:
    """Documents whose endless words are cut: training costs (length of a word) x (merges in it) for each word."""
    for document in documents:
        if len(document) > LONGEST_WORD and max(map(len, document.split()), default=0) > LONGEST_WORD:
            yield from (found[0] for found in _WORD.finditer(document))
        else:
            yield document


def byte_tokenizer() -> Tokenizer:
    """256 ids that are the bytes, and end-of-text: nothing to train, nothing unknown, nothing lost."""
    inner = library.Tokenizer(models.BPE(vocab=CHARACTER_BYTES, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([library.AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return Tokenizer(inner)


Constructor = Callable[[TokenizerSettings, Iterable[str]], Tokenizer]
KINDS: dict[str, Constructor] = {
    "bpe": lambda settings, documents: train_bpe(documents, settings.vocab_size),
    "byte": lambda settings, documents: byte_tokenizer(),
}


def make_tokenizer(settings: TokenizerSettings, documents: Iterable[str]) -> Tokenizer:
    """The tokenizer that the settings ask for; `documents` (the training split) are read only by kinds that learn."""
    if settings.path is not None:
        return Tokenizer.load(Path(settings.path))
    if settings.kind not in KINDS:
        raise UserError(
            f"no such kind of tokenizer: {settings.kind}", None, nearest(settings.kind, KINDS) or ", ".join(KINDS)
        )
    return KINDS[settings.kind](settings, documents)
