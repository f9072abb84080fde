"""Cross-field rules: settings that are each valid and conflict with each other.

Owns: the rules that no single choice owns; a setting without effect where it is set counts as a conflict. The rules of a
choice are in its entry (`choice_tables`). Does not own: the settings and their bounds (`tree`), or where a value came from
(`loading`).
"""

from __future__ import annotations

from lilliput.settings.choice_tables import TABLES, Choice, Conflict
from lilliput.settings.tree import BUDGETS, Config, GenerateSettings

SHAPE_A_DRAW = ("final_temperature", "top_k", "top_p", "min_p", "typical")  # of `generate.*`: nothing without a draw


def conflicts(config: Config) -> list[Conflict]:
    """Return all conflicts: those of each choice (its entry in a table), then those that no single choice owns."""
    found = [conflict for choice in chosen(config) for conflict in choice.rules(config)]
    for rules in (shape_rules, data_rules, tokenizer_rules, training_rules, bigram_rules):
        found += rules(config)
    return found + writing_conflicts(config.generate)


def chosen(config: Config) -> list[Choice]:
    """Return the entry of each choice that the settings make."""
    values = {name: getattr(getattr(config, name.split(".")[0]), name.split(".")[1]) for name in TABLES}
    listed = {name: value if isinstance(value, tuple) else (value,) for name, value in values.items()}
    return [TABLES[name][one] for name, some in listed.items() for one in some if one is not None]


def shape_rules(config: Config) -> list[Conflict]:
    model, vectors, found = config.model, config.vectors, list[Conflict]()
    if model.dim % model.heads:
        found.append(("model.heads", f"model.dim {model.dim} is not divisible by model.heads {model.heads}"))
    if model.kv_heads and model.heads % model.kv_heads:
        found.append(
            ("model.kv_heads", f"model.heads {model.heads} is not divisible by model.kv_heads {model.kv_heads}")
        )
    if isinstance(model.window, tuple) and not model.window:
        found.append(("model.window", "a pattern of windows has at least one value (got an empty list)"))
    if model.tied and vectors.width not in (None, model.dim):
        found.append(("model.tied", "a tied head requires a language model whose embedding has width model.dim"))
    if model.tied and vectors.source is not None and vectors.frozen:
        found.append(("model.tied", "a tied head is trained and shares the vectors; set vectors.frozen to false"))
    if model.tied and config.optimizer.head_lr is not None:
        found.append(("optimizer.head_lr", "a tied head is the embedding's table; set optimizer.embedding_lr instead"))
    return found


def data_rules(config: Config) -> list[Conflict]:
    tests, found = config.data.tests, list[Conflict]()
    names = [name for name, equals, source in (test.partition("=") for test in tests) if equals and source]
    if len(names) < len(tests) or len({*names, "train", "validation", ""}) < len(names) + 3:
        reason = "each test set is name=source, with a unique name that is not train or validation"
        found.append(("data.tests", reason))
    if not all(name.replace("-", "_").isidentifier() for name in names):
        found.append(("data.tests", "the name of a test set has letters, digits, _ and - only"))
    return found


def tokenizer_rules(config: Config) -> list[Conflict]:
    tokenizer, found = config.tokenizer, list[Conflict]()
    specials = {name: getattr(tokenizer, name) for name in ("sos_id", "eos_id", "pad_id", "unk_id")}
    used = [number for number in specials.values() if number is not None]
    if len(set(used)) < len(used):
        ids = ", ".join(f"{name} {number}" for name, number in specials.items())
        found.append(("tokenizer.sos_id", f"special tokens must have different ids (got {ids})"))
    if tokenizer.vocabulary is not None and tokenizer.kind != "word":
        found.append(("tokenizer.vocabulary", f"a vocabulary file requires tokenizer.kind word (got {tokenizer.kind})"))
    return found


def training_rules(config: Config) -> list[Conflict]:
    train, found = config.train, list[Conflict]()
    if train.recompute is None and train.recompute_every > 1:
        reason = "train.recompute_every has no effect without train.recompute; set it to block or feed-forward"
        found.append(("train.recompute_every", reason))
    given = [f"train.{budget}" for budget in BUDGETS if getattr(train, budget) is not None]
    if len(given) != 1:
        reason = f"set exactly one of train.steps, train.tokens and train.minutes (got {' and '.join(given) or 'none'})"
        found.append(("train.steps", reason))
    return found


def bigram_rules(config: Config) -> list[Conflict]:
    """Return why a model cannot be initialised from bigram counts: its blocks must leave the embedding as it is."""
    model, found = config.model, list[str]()
    if not config.train.pair_updates:
        return []
    if model.tied:
        found.append("a tied head cannot represent which token of a pair comes first; set model.tied to false")
    if not TABLES["model.initialisation"][model.initialisation].identity_blocks or model.norm_placement != "pre":
        found.append(
            "bigram counts require blocks that begin as the identity; "
            "set model.initialisation to zero-residual and model.norm_placement to pre"
        )
    if model.positions is not None and TABLES["model.positions"][model.positions].adds:
        found.append(f"{model.positions} positions change the embedding; set model.positions to rotary or none")
    return [("train.pair_updates", reason) for reason in found]


def writing_conflicts(generate: GenerateSettings) -> list[tuple[str, str]]:
    """Those of `generate.*` by themselves; each is named after the setting that could be left out."""
    found = []
    for name in SHAPE_A_DRAW:
        if not generate.is_drawn and getattr(generate, name) is not None:
            if generate.beams is None or generate.sample_beams:
                why = "at generate.temperature 0 nothing is drawn"
            else:
                why = "beams are not drawn without generate.sample_beams"
            found.append((f"generate.{name}", f"{why}, so generate.{name} would do nothing"))
    if generate.sample_beams and generate.beams is not None and generate.temperature == 0.0:
        found.append(("generate.sample_beams", "beams cannot be drawn at generate.temperature 0"))
    for name, off in (
        ("length_penalty", 1.0),
        ("early_stop", "bound"),
        ("beam_groups", 1),
        ("diversity", 0.5),
        ("sample_beams", False),
    ):
        if generate.beams is None and getattr(generate, name) != off:
            found.append((f"generate.{name}", f"generate.{name} is for a beam search: set generate.beams, too"))
    if generate.beams is not None and generate.beams % generate.beam_groups:
        found.append(
            (
                "generate.beam_groups",
                f"generate.beams {generate.beams} is not divisible by generate.beam_groups {generate.beam_groups}",
            )
        )
    if generate.beams is not None and generate.sample_beams and generate.beam_groups > 1:
        why = "drawn beams have no groups: a draw without replacement (generate.sample_beams) finds different texts by itself"
        found.append(("generate.beam_groups", why))
    if generate.beams is not None and generate.beam_groups == 1 and generate.diversity != 0.5:
        found.append(("generate.diversity", "one group has none to be led away from: set generate.beam_groups, too"))
    if generate.min_tokens > generate.tokens:
        found.append(
            (
                "generate.min_tokens",
                f"generate.min_tokens {generate.min_tokens} is more than generate.tokens {generate.tokens}",
            )
        )
    penalties = (generate.repetition_penalty, generate.frequency_penalty, generate.presence_penalty)
    if not generate.penalise_prompt and penalties == (1.0, 0.0, 0.0) and generate.no_repeat_ngram is None:
        found.append(("generate.penalise_prompt", "there is no penalty and no generate.no_repeat_ngram to count for"))
    for name in ("bad_words", "forced_words", "stop"):
        if "" in getattr(generate, name):
            found.append((f"generate.{name}", f"generate.{name} has an empty text, which stands everywhere"))
    for word in sorted({*generate.bad_words} & {*generate.forced_words} - {""}):
        found.append(("generate.forced_words", f"{word!r} is both a bad word and a forced one"))
    if generate.quantise is not None and generate.engine in ("torch", "uncached"):
        what = f"the {generate.engine} engine has no weights of one byte: generate.engine numba"
        found.append(("generate.quantise", what))
    return found
