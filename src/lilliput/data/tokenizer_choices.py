"""The kinds of tokenizers by name.

Owns: the table of `tokenizer.kind`. It is outside the package `tokenizers`, whose library takes time to import.
Does not own: the tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lilliput.settings.choice_tables import TABLES, Choice, ChoiceTable, Conflict
from lilliput.settings.rules import normalisation_conflicts
from lilliput.settings.tree import Config, TokenizerSettings


def unknown_size(settings: TokenizerSettings) -> int | None:
    """Return the largest vocabulary that the settings allow; None if only the text decides."""
    return settings.max_vocabulary


@dataclass(frozen=True, kw_only=True)
class TokenizerChoice(Choice):
    """A kind of tokenizer. `builds` takes its settings and the training documents, and returns a `Tokenizer`."""

    learns: bool = True  # whether it is fitted to the training split
    vocab_size: Callable[[TokenizerSettings], int | None] = unknown_size


def size_rules(config: Config) -> list[Conflict]:
    """Refuse a size that the 256 bytes and end-of-text exceed, or that another kind of tokenizer would ignore."""
    kind, size = config.tokenizer.kind, config.tokenizer.vocab_size
    if size >= 257:
        return []
    if kind == "bpe":
        what, fix = (
            f"a bpe tokenizer has at least 257 tokens (got tokenizer.vocab_size {size})",
            "set it to 257 or more",
        )
    else:
        what, fix = (
            f"tokenizer.vocab_size is only for bpe (got tokenizer.kind {kind})",
            "set tokenizer.max_vocabulary instead",
        )
    return [Conflict("tokenizer.vocab_size", what, fix)]


def byte_rules(config: Config) -> list[Conflict]:
    size = config.model.vocab_size
    if size is None or size >= 257:
        return []
    what = f"256 bytes and end-of-text require a model.vocab_size of at least 257 (got {size})"
    return [Conflict("model.vocab_size", what, "set model.vocab_size to 257 or remove it")]


def unknown_token_rules(config: Config) -> list[Conflict]:
    tokenizer, found = config.tokenizer, size_rules(config)
    if tokenizer.unk_id is None and tokenizer.vocabulary is None and tokenizer.path is None:
        what = f"a {tokenizer.kind} tokenizer requires an id for tokens outside its vocabulary (got none)"
        found.append(Conflict("tokenizer.unk_id", what, "set tokenizer.unk_id to an id, such as 3"))
    return found


def gpt2_rules(config: Config) -> list[Conflict]:
    # The rule for tokenizer.path reports the same conflict.
    return [] if config.tokenizer.path is not None else normalisation_conflicts(config.tokenizer, "GPT-2's tokenizer")


TOKENIZERS: ChoiceTable[TokenizerChoice] = TABLES["tokenizer.kind"]
TOKENIZERS.kind = TokenizerChoice
TOKENIZERS.add(
    TokenizerChoice(
        name="bpe",
        builds="lilliput.data.tokenizers:trained_bpe",
        vocab_size=lambda settings: settings.vocab_size,
        rules=size_rules,
    ),
    TokenizerChoice(
        name="byte",
        builds="lilliput.data.tokenizers:all_bytes",
        learns=False,
        vocab_size=lambda settings: 257,
        rules=byte_rules,
    ),
    TokenizerChoice(name="character", builds="lilliput.data.tokenizers:characters", rules=unknown_token_rules),
    TokenizerChoice(name="word", builds="lilliput.data.tokenizers:words_of", rules=unknown_token_rules),
    TokenizerChoice(
        name="gpt2",
        builds="lilliput.data.tokenizers:gpt2_own",
        learns=False,
        vocab_size=lambda settings: 50_257,
        rules=gpt2_rules,
    ),
)
