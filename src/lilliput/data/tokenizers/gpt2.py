"""GPT-2's byte-level BPE: the map of bytes to printable characters, and GPT-2's vocabulary.

Owns: finding and reading GPT-2's files in all their forms (encoder.json and vocab.bpe, vocab.json and merges.txt,
tiktoken's ranks, the Hugging Face hub). Does not own: BPE itself (the tokenizers library), or tokenizer.json
(`tokenizers`). Every form gives the same tokenizer, bit for bit, so cached prepared data stays valid.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from itertools import pairwise
from pathlib import Path

import tokenizers as library
from tokenizers import decoders, models, pre_tokenizers

from lilliput.data.corpora import END_OF_TEXT
from lilliput.data.tokenizers.special_tokens import ENDS, PADS, STARTS
from lilliput.data.tokenizers.untrusted_files import read_text
from lilliput.errors import UserError
from lilliput.storage.atomic_files import parse_json

LARGEST_FILE = 50 * 1000 * 1000
PAIRS = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
HUB_NAME = "openai-community/gpt2"
HUB_SECONDS = 5.0  # for the first answer of the hub
RANKS = 50_256  # files of ranks in tiktoken's cache with another length belong to other models
LAST_PIECE = "Ġgazed"  # GPT-2's last merge: no other vocabulary has it at this id
WAYS = (
    "set tokenizer.path to a folder with encoder.json and vocab.bpe, or set TIKTOKEN_CACHE_DIR, or run this command once with "
    "an internet connection"
)

_CACHE_NAME = re.compile(r"[0-9a-f]{40}")  # tiktoken names a file by the SHA-1 of its URL

Merges = list[tuple[str, str]]


def _byte_characters() -> list[str]:
    """Return GPT-2's printable character for each byte (bytes_to_unicode of its encoder.py)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


BYTE_CHARACTERS = _byte_characters()
CHARACTER_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def byte_level(model: models.BPE, use_regex: bool = True) -> library.Tokenizer:
    """Return a byte-level BPE without special tokens. The regular expression prevents merges across words."""
    inner = library.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    inner.decoder = decoders.ByteLevel()
    return inner


def find_gpt2() -> library.Tokenizer:
    """Return GPT-2's tokenizer from TIKTOKEN_CACHE_DIR or LILLIPUT_DATA, else from the hub."""
    data = os.environ.get("LILLIPUT_DATA")
    places = [os.environ.get("TIKTOKEN_CACHE_DIR"), data and str(Path(data) / "gpt2-bpe")]
    for place in places:
        if place and Path(place).is_dir() and (found := read_folder(Path(place))):
            return found
    return _from_hub()


def read_folder(folder: Path) -> library.Tokenizer | None:
    """Return the tokenizer of GPT-2's files in this folder or a direct subfolder; None if there are none."""
    try:
        below = sorted(path for path in folder.iterdir() if path.is_dir())
        for place in (folder, *below):
            for vocabulary, merges in PAIRS:
                if (place / vocabulary).is_file() and (place / merges).is_file():
                    return _assembled(place / vocabulary, place / merges)
            if found := _from_tiktoken(place):
                return found
    except OSError as error:
        what = f"cannot read the tokenizer's folder: {error.strerror}"
        where, fix = str(error.filename or folder), "check its permissions"
        raise UserError(what, where, fix=fix, code="file.unreadable", setting="tokenizer.path") from error
    return None


def _from_tiktoken(folder: Path) -> library.Tokenizer | None:
    """Return the tokenizer of tiktoken's cache. Its file names are hashes, so files are recognised by their first bytes."""
    kinds: dict[str, list[Path]] = {"vocabulary": [], "merges": [], "ranks": []}
    for path in sorted(folder.iterdir()):
        if _CACHE_NAME.fullmatch(path.name) and path.is_file():
            with open(path, "rb") as file:
                start = file.read(8)
            for kind, sign in (("vocabulary", b'{"!": 0,'), ("merges", b"#version"), ("ranks", b"IQ== 0\nI")):
                if start == sign:
                    kinds[kind].append(path)
    if kinds["vocabulary"] and kinds["merges"]:
        return _assembled(kinds["vocabulary"][0], kinds["merges"][0])
    for path in kinds["ranks"]:
        text = read_text(path, "file of ranks", LARGEST_FILE)
        if text.count("\n") == RANKS:
            return _built(*merges_of_ranks(read_ranks(text, str(path))), str(path))
    return None


def _from_hub() -> library.Tokenizer:
    try:
        from huggingface_hub import HfApi, hf_hub_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError as error:
        what = "GPT-2's tokenizer is not on this machine, and huggingface_hub is not installed"
        fix = f'run pip install "lilliput[data]", or {WAYS}'
        raise UserError(what, None, fix=fix, code="package.missing", setting="tokenizer.path") from error
    try:
        try:  # files in the cache need no connection
            vocabulary, merges = (Path(hf_hub_download(HUB_NAME, name, local_files_only=True)) for name in PAIRS[1])
        except LocalEntryNotFoundError:
            HfApi().model_info(HUB_NAME, timeout=HUB_SECONDS)  # one attempt: a download would be tried again for 22 s
            vocabulary, merges = (Path(hf_hub_download(HUB_NAME, name)) for name in PAIRS[1])
    except Exception as error:  # network, hub or cache: the fix is the same
        what = "GPT-2's tokenizer is not on this machine, and the hub cannot be reached"
        raise UserError(what, HUB_NAME, fix=WAYS, code="hub.offline", setting="tokenizer.path") from error
    return _assembled(vocabulary, merges)


def _assembled(vocabulary: Path, merges: Path) -> library.Tokenizer:
    return _built(_read_vocabulary(vocabulary), _read_merges(merges), str(vocabulary))


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        found = parse_json(read_text(path, "vocabulary", LARGEST_FILE))
    except ValueError as error:
        what, fix = f"the vocabulary is not valid JSON: {error}", "give GPT-2's encoder.json"
        raise UserError(what, str(path), fix=fix, code="file.syntax") from error
    if not isinstance(found, dict) or not all(isinstance(one, int) and 0 <= one < 1 << 32 for one in found.values()):
        what, fix = "the vocabulary must be a JSON object of tokens and ids", 'write it as in {"!": 0, "\\"": 1}'
        raise UserError(what, str(path), fix=fix, code="tokenizer.invalid")
    return found


def _read_merges(path: Path) -> Merges:
    merges: Merges = []
    for number, line in enumerate(read_text(path, "file of merges", LARGEST_FILE).split("\n"), start=1):
        if (number == 1 and line.startswith("#version")) or not line.strip():
            continue
        pair = line.removesuffix("\r").split(" ")
        if len(pair) != 2 or not all(pair):
            what = f"a merge must be two pieces separated by a space (got {line[:40]!r})"
            raise UserError(what, f"{path}, line {number}", fix="give GPT-2's vocab.bpe", code="tokenizer.invalid")
        merges.append((pair[0], pair[1]))
    return merges


def read_ranks(text: str, where: str) -> list[bytes]:
    """Return the pieces in the order of their ranks, from tiktoken's lines `base64 rank`."""
    pieces = []
    for rank, line in enumerate(text.splitlines()):
        try:
            piece, number = line.split(" ")
            if int(number) != rank:
                raise ValueError(f"expected rank {rank}")
            pieces.append(base64.b64decode(piece, validate=True))
        except (ValueError, binascii.Error) as error:
            what = f"a line of ranks must be base64, a space and the next rank: {error}"
            fix = "delete the file and download it again with tiktoken"
            raise UserError(what, f"{where}, line {rank + 1}", fix=fix, code="tokenizer.invalid") from error
    return pieces


def merges_of_ranks(pieces: list[bytes]) -> tuple[dict[str, int], Merges]:
    """Return GPT-2's vocabulary and merges, computed from the ranks alone.

    A piece is the merge of the two pieces that remain of its bytes after all earlier merges.
    """
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    merges = []
    for rank, piece in enumerate(pieces):
        if len(piece) == 1:
            continue
        parts = [piece[at : at + 1] for at in range(len(piece))]
        while len(parts) > 2:
            found = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
            at = min(range(len(found)), key=found.__getitem__)
            if found[at] >= rank:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:  # otherwise no merge makes the piece: it is in the vocabulary and never used
            merges.append((_written(parts[0]), _written(parts[1])))
    return {_written(piece): rank for rank, piece in enumerate(pieces)}, merges


def _written(piece: bytes) -> str:
    return "".join(BYTE_CHARACTERS[byte] for byte in piece)


def _built(vocabulary: dict[str, int], merges: Merges, where: str) -> library.Tokenizer:
    # tiktoken's ranks lack end-of-text. If it is the last id, it is removed here and added below, as for the ranks.
    pieces = dict(vocabulary)
    if pieces.get(END_OF_TEXT) == len(pieces) - 1:
        del pieces[END_OF_TEXT]
    try:
        inner = byte_level(models.BPE(pieces, merges))
    except Exception as error:  # the library raises nothing narrower
        what = f"vocabulary and merges do not match: {' '.join(str(error).split())[:200]}"
        raise UserError(what, where, fix="give both files of one model", code="tokenizer.invalid") from error
    made = {left + right for left, right in merges}
    # Names that no merge makes are special tokens: other models in GPT-2's format list them in the vocabulary.
    names = [name for name in (*STARTS, *ENDS, *PADS) if name in pieces and name not in made]
    inner.add_special_tokens([library.AddedToken(name, special=True, normalized=False) for name in names])
    if END_OF_TEXT in vocabulary or not {*names} & {*ENDS}:
        inner.add_special_tokens([library.AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return inner
