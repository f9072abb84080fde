"""Normalisation: the tokens of a text are those of the plain tokenizer on the text that Python normalises."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.text_corpora import write
from lilliput.data import tokenizers as module
from lilliput.data.prepare import prepare
from lilliput.data.tokenizers import TokenDecoder, Tokenizer, make_tokenizer, normalisers
from lilliput.data.tokenizers import text_chunks as cutting
from lilliput.data.tokenizers import untrusted_files as untrusted
from lilliput.data.tokenizers.normalisers import build_normaliser
from lilliput.errors import UserErrors
from lilliput.settings.loading import load_config
from lilliput.settings.tree import NORMALISATION, TokenizerSettings

KINDS = ("word", "character", "bpe", "byte")
# Written by code point, independently of the module's table.
REPLACED = {
    "'": (0x2018, 0x2019, 0x201A, 0x201B, 0x2039, 0x203A, 0x2032, 0xB4, 0x2BC),
    '"': (0x201C, 0x201D, 0x201E, 0x201F, 0xAB, 0xBB, 0x2033),
    "-": (0x2010, 0x2011, 0x2012, 0x2013, 0x2212),
    "--": (0x2014, 0x2015),
    "...": (0x2026,),
}
MARKS = {point: ascii_text for ascii_text, points in REPLACED.items() for point in points}
WHITE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
# Similar characters that stay: zero-width space, byte order mark, file separator, backtick, underscore.
OTHER = "aAbÉéIİΣσß1sS.,-'\"`_!世😀\u0301\u200b\ufeff\x1c"
texts = st.text(st.sampled_from("".join(map(chr, MARKS)) + WHITE + "  \n\n" + OTHER), max_size=60)
# Every affected character, alone and in runs.
DOCUMENTS = [
    f"“{''.join(map(chr, MARKS))}” She’s here…  “Go—now”\n\n\n {WHITE}x",
    "It’s ‹a› «b» \u20135 \u2212 3\u2010x ABC ΣΑΣ",
    " ".join(OTHER),
    *(f"a{one}b {one} c{one}{one}d" for one in [*map(chr, MARKS), *WHITE]),
]
CHOICES = [dict(zip(NORMALISATION, chosen, strict=True)) for chosen in itertools.product((False, True), repeat=3)]
ALL = CHOICES[-1]


def expected(text: str, lowercase: bool, ascii_punctuation: bool, single_spaces: bool) -> str:
    """Return the normalised text, in plain Python."""
    if ascii_punctuation:
        text = text.translate(MARKS)
    if single_spaces:
        text = re.sub(f"[{WHITE}]+", " ", text)
    return "".join(one.lower() for one in text) if lowercase else text


def made(kind: str, documents: list[str], **changes: Any) -> Tokenizer:
    return make_tokenizer(TokenizerSettings(kind=kind, vocab_size=300, **changes), documents)


PAIRS = {
    f"{kind}-{'-'.join(name for name in NORMALISATION if chosen[name])}": (
        made(kind, DOCUMENTS, **chosen),
        made(kind, [expected(text, **chosen) for text in DOCUMENTS]),
        chosen,
    )
    for kind in KINDS
    for chosen in CHOICES
}
every = pytest.mark.parametrize("name", PAIRS)


@every
@given(generated=texts)
def test_tokens_are_those_of_the_plain_tokenizer_on_normalised_text(name: str, generated: str) -> None:
    tokenizer, plain, chosen = PAIRS[name]
    for text in (generated, *DOCUMENTS[:3]):
        normalised = expected(text, **chosen)
        assert tokenizer.normalise(text) == normalised
        ids = tokenizer.encode(text)
        assert ids == plain.encode(normalised)
        if tokenizer.byte_level:
            assert tokenizer.decode(ids) == normalised
            decoder = TokenDecoder(tokenizer)
            assert "".join([*map(decoder.push, ids), decoder.flush()]) == normalised


@every
@given(parts=st.lists(texts, max_size=5))
def test_pieces_of_long_texts_give_the_same_tokens(name: str, parts: list[str]) -> None:
    tokenizer, text = PAIRS[name][0], " ".join(parts)
    whole = tokenizer.encode(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "PIECE", 4)
        patch.setattr(module, "GROUP", 9)
        assert tokenizer.encode_batch([text, "", text]) == [whole, [], whole]


@every
def test_attributes(name: str) -> None:
    tokenizer, plain, chosen = PAIRS[name]
    assert tokenizer.kind == plain.kind == name.partition("-")[0]
    assert tokenizer.lossy == (plain.lossy or any(chosen.values()))
    assert (tokenizer.vocab_size, tokenizer.end, tokenizer.unknown) == (plain.vocab_size, plain.end, plain.unknown)
    assert tokenizer.byte_level == plain.byte_level


@every
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    tokenizer = PAIRS[name][0]
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path)
    assert (again.to_json(), again.kind, again.lossy) == (tokenizer.to_json(), tokenizer.kind, tokenizer.lossy)
    assert [again.encode(text) for text in DOCUMENTS] == [tokenizer.encode(text) for text in DOCUMENTS]
    # Own patterns are trusted: loading starts no process to test them.
    own = json.loads(tokenizer.to_json())["normalizer"]
    assert normalisers.is_own(own)
    assert {*untrusted._patterns(own)} <= normalisers.OWN_PATTERNS


def test_transformers_reads_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for kind in KINDS:
        tokenizer = made(kind, DOCUMENTS, **ALL)
        tokenizer.save(tmp_path / "tokenizer.json")
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
        assert [theirs(text)["input_ids"] for text in DOCUMENTS] == [tokenizer.encode(text) for text in DOCUMENTS]


def test_every_choice_is_another_tokenizer() -> None:
    assert len({made("byte", [], **chosen).sha256 for chosen in CHOICES}) == len(CHOICES)


def test_one_step_needs_no_sequence() -> None:
    """A lower-case tokenizer has the hash of earlier versions."""
    assert type(build_normaliser(TokenizerSettings(lowercase=True))).__name__ == "Lowercase"
    assert build_normaliser(TokenizerSettings()) is None


def test_a_foreign_normaliser_is_not_cut_into_pieces() -> None:
    parts = json.loads(made("bpe", DOCUMENTS).to_json())
    parts["normalizer"] = {"type": "Replace", "pattern": {"String": "a b"}, "content": "c"}
    tokenizer = Tokenizer.from_json(json.dumps(parts))
    assert (tokenizer.byte_level, tokenizer.lossy) == (True, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "PIECE", 1)
        assert tokenizer.decode(tokenizer.encode("xa bx")) == "xcx"


@pytest.mark.parametrize("kind", KINDS)
def test_prepared_bytes_are_those_of_the_original(kind: str, tmp_path: Path) -> None:
    documents = [f"{text.strip()} {number}" for number, text in enumerate(DOCUMENTS)]
    source, cache = write(tmp_path / "text.txt", documents), str(tmp_path / "cache")
    settings = {"tokenizer.kind": kind, "tokenizer.vocab_size": "300", "data.cache": cache}
    plain = prepare(load_config(str(source), settings))
    found = prepare(load_config(str(source), settings | {f"tokenizer.{name}": "true" for name in NORMALISATION}))
    assert found.folder != plain.folder
    assert found.manifest["tokenizer"]["lossy"]
    for split in found.splits:
        assert found.split(split).document_bytes.tolist() == plain.split(split).document_bytes.tolist()
    held_out = found.split("validation")
    first = held_out.tokens[held_out.offsets[0] : held_out.offsets[1] - 1].tolist()
    assert first in [found.tokenizer.encode(expected(text, **ALL)) for text in documents]


@pytest.mark.parametrize("settings", [{"tokenizer.kind": "gpt2"}, {"tokenizer.path": "tokenizer.json"}])
@pytest.mark.parametrize("name", ["ascii_punctuation", "single_spaces"])
def test_fixed_tokenizers_have_no_normalisation(settings: dict[str, str], name: str) -> None:
    with pytest.raises(UserErrors) as found:
        load_config("storybook", {**settings, f"tokenizer.{name}": "true"})
    assert [(one.code, one.setting) for one in found.value.errors] == [("setting.conflict", f"tokenizer.{name}")]


def test_lowercase_of_a_fixed_tokenizer_is_ignored() -> None:
    """Runs of earlier versions may have it."""
    assert load_config("storybook", {"tokenizer.kind": "gpt2", "tokenizer.lowercase": "true"}).tokenizer.lowercase
