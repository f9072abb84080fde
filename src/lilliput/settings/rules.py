"""Cross-field rules: settings that are each valid and conflict with each other.

Owns: the rules that no single choice owns; a setting without effect where it is set counts as a conflict. The rules of a
choice are in its entry (`choice_tables`). Does not own: the settings and their bounds (`tree`), or where a value came from
(`loading`).
"""

from __future__ import annotations

from lilliput.settings.choice_tables import TABLES, Choice, Conflict
from lilliput.settings.tree import BUDGETS, NORMALISATION, Config, GenerateSettings, TokenizerSettings

SHAPE_A_DRAW = (
    "final_temperature",
    "entropy_temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical",
)  # `generate.*` settings without effect unless tokens are sampled


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
    if model.head_dim is None and model.dim % model.heads:
        what = f"model.dim {model.dim} is not divisible by model.heads {model.heads}"
        fix = f"set model.dim to a multiple of {model.heads}, change model.heads, or set model.head_dim"
        found.append(Conflict("model.heads", what, fix))
    if model.kv_heads and model.heads % model.kv_heads:
        what = f"model.heads {model.heads} is not divisible by model.kv_heads {model.kv_heads}"
        found.append(Conflict("model.kv_heads", what, "set model.kv_heads to a divisor of model.heads"))
    if isinstance(model.window, tuple) and not model.window:
        what = "model.window must be a width or a list of widths (got an empty list)"
        found.append(Conflict("model.window", what, "set model.window to a width, a list of widths or none"))
    if model.tied and vectors.width not in (None, model.dim):
        what = f"a tied head requires vectors of width model.dim (got {vectors.width}, model.dim {model.dim})"
        found.append(Conflict("model.tied", what, "set model.tied to false"))
    if not vectors.projection and vectors.width not in (None, model.dim):
        what = (
            f"the vectors have width {vectors.width}, model.dim is {model.dim}; without a projection both must be equal"
        )
        fix = f"set vectors.projection to true, or set model.dim to {vectors.width}"
        found.append(Conflict("vectors.projection", what, fix))
    if model.tied and vectors.source is not None and vectors.frozen:
        what = "a tied head requires trainable vectors (got vectors.frozen true)"
        found.append(Conflict("model.tied", what, "set vectors.frozen to false or model.tied to false"))
    if model.tied and config.optimizer.head_lr is not None:
        what = "optimizer.head_lr has no effect on a tied head"
        found.append(Conflict("optimizer.head_lr", what, "set optimizer.embedding_lr instead"))
    return found


def data_rules(config: Config) -> list[Conflict]:
    tests, found = config.data.tests, list[Conflict]()
    names = [name for name, equals, source in (test.partition("=") for test in tests) if equals and source]
    if len(names) < len(tests) or len({*names, "train", "validation", ""}) < len(names) + 3:
        what = f"a test set must be name=source with a unique name other than train and validation (got {', '.join(tests)})"
        found.append(Conflict("data.tests", what, "write each test set as name=source"))
    if not all(name.replace("-", "_").isidentifier() for name in names):
        what = f"names of test sets must consist of letters, digits, _ and - (got {', '.join(names)})"
        found.append(Conflict("data.tests", what, "rename the test set"))
    return found


def tokenizer_rules(config: Config) -> list[Conflict]:
    tokenizer, found = config.tokenizer, list[Conflict]()
    specials = {name: getattr(tokenizer, name) for name in ("sos_id", "eos_id", "pad_id", "unk_id")}
    used = [number for number in specials.values() if number is not None]
    if len(set(used)) < len(used):
        ids = ", ".join(f"{name} {number}" for name, number in specials.items())
        what = f"special tokens must have different ids (got {ids})"
        found.append(Conflict("tokenizer.sos_id", what, "set a different id for each special token"))
    if tokenizer.vocabulary is not None and tokenizer.kind != "word":
        what = f"a vocabulary file requires tokenizer.kind word (got {tokenizer.kind})"
        found.append(
            Conflict("tokenizer.vocabulary", what, "set tokenizer.kind to word or remove tokenizer.vocabulary")
        )
    if tokenizer.path is not None:
        found += normalisation_conflicts(tokenizer, "a tokenizer that is read from a file")
    return found


def normalisation_conflicts(tokenizer: TokenizerSettings, fixed: str) -> list[Conflict]:
    """Return a conflict for each normalisation that `fixed`, a tokenizer which Lilliput does not build, does not have.

    Earlier versions ignored `lowercase` there, and their runs must load.
    """
    given = [name for name in NORMALISATION if name != "lowercase" and getattr(tokenizer, name)]
    fix = "set it to false, or use a tokenizer of the kind bpe, byte, character or word"
    return [Conflict(f"tokenizer.{name}", f"tokenizer.{name} has no effect on {fixed}", fix) for name in given]


def training_rules(config: Config) -> list[Conflict]:
    train, found = config.train, list[Conflict]()
    if train.recompute is None and train.recompute_every > 1:
        what = "train.recompute_every has no effect without train.recompute"
        found.append(Conflict("train.recompute_every", what, "set train.recompute to block or feed-forward"))
    given = [f"train.{budget}" for budget in BUDGETS if getattr(train, budget) is not None]
    if len(given) != 1:
        what = f"a run must have exactly one budget (got {' and '.join(given) or 'none'})"
        found.append(
            Conflict("train.steps", what, f"set exactly one of {', '.join(f'train.{name}' for name in BUDGETS)}")
        )
    return found


def bigram_rules(config: Config) -> list[Conflict]:
    """Return why a model cannot be initialised from bigram counts: its blocks must leave the embedding as it is."""
    model, found = config.model, list[tuple[str, str]]()
    if not config.train.pair_updates:
        return []
    if model.tied:
        what = "bigram counts require an untied head"
        found.append((what, "set model.tied to false"))
    if not TABLES["model.initialisation"][model.initialisation].identity_blocks or model.norm_placement != "pre":
        what = "bigram counts require blocks that are the identity at the start"
        found.append((what, "set model.initialisation to zero-residual and model.norm_placement to pre"))
    if model.positions is not None and TABLES["model.positions"][model.positions].adds:
        what = f"bigram counts require an unchanged embedding, but {model.positions} positions are added to it"
        found.append((what, "set model.positions to rotary or none"))
    return [Conflict("train.pair_updates", what, f"{fix}, or set train.pair_updates to 0") for what, fix in found]


BEAM_DEFAULTS = {
    "length_penalty": 1.0,
    "early_stop": "bound",
    "beam_groups": 1,
    "diversity": 0.5,
    "sample_beams": False,
}


def writing_conflicts(generate: GenerateSettings) -> list[Conflict]:
    """Return the conflicts within `generate.*`. Each names the setting that can be removed."""
    found = list[Conflict]()

    def conflict(name: str, what: str, fix: str = "") -> None:
        found.append(Conflict(f"generate.{name}", what, fix or f"remove generate.{name}"))

    beams = generate.beams
    for name in SHAPE_A_DRAW:
        if not generate.is_drawn and getattr(generate, name) is not None:
            if beams is None or generate.sample_beams:
                conflict(name, f"generate.{name} has no effect at generate.temperature 0 (greedy decoding)")
            else:
                what = f"generate.{name} has no effect on a beam search without generate.sample_beams"
                conflict(name, what, f"set generate.sample_beams to true or remove generate.{name}")
    if generate.sample_beams and beams is not None and generate.temperature == 0.0:
        what = "generate.sample_beams requires a generate.temperature above 0 (got 0)"
        conflict("sample_beams", what, "set generate.temperature to 1 or remove generate.sample_beams")
    for name, default in BEAM_DEFAULTS.items():
        if beams is None and getattr(generate, name) != default:
            what = f"generate.{name} requires a beam search"
            conflict(name, what, f"set generate.beams or remove generate.{name}")
    if beams is not None and beams % generate.beam_groups:
        what = f"generate.beams {beams} is not divisible by generate.beam_groups {generate.beam_groups}"
        conflict("beam_groups", what, "set generate.beam_groups to a divisor of generate.beams")
    if beams is not None and generate.sample_beams and generate.beam_groups > 1:
        conflict("beam_groups", "generate.beam_groups cannot be combined with generate.sample_beams")
    if beams is not None and generate.beam_groups == 1 and generate.diversity != 0.5:
        what = "generate.diversity has no effect on a single group of beams"
        conflict("diversity", what, "set generate.beam_groups to 2 or more, or remove generate.diversity")
    if generate.min_tokens > generate.tokens:
        what = f"generate.min_tokens {generate.min_tokens} is greater than generate.tokens {generate.tokens}"
        conflict("min_tokens", what, f"set generate.min_tokens to at most {generate.tokens}")
    if generate.final_temperature is not None and generate.entropy_temperature is not None:
        what = "generate.entropy_temperature cannot be combined with generate.final_temperature"
        conflict("entropy_temperature", what, "set one of them to none")
    penalties = (generate.repetition_penalty, generate.frequency_penalty, generate.presence_penalty)
    if not generate.penalise_prompt and penalties == (1.0, 0.0, 0.0) and generate.no_repeat_ngram is None:
        conflict("penalise_prompt", "generate.penalise_prompt has no effect without a penalty")
    if generate.repetition_window is not None and penalties == (1.0, 0.0, 0.0):
        what = "generate.repetition_window has no effect without a repetition, frequency or presence penalty"
        conflict("repetition_window", what, "set generate.repetition_penalty or remove generate.repetition_window")
    for name in ("bad_words", "forced_words", "stop"):
        if "" in getattr(generate, name):
            conflict(name, f"generate.{name} contains an empty string", "remove the empty string")
    for word in sorted({*generate.bad_words} & {*generate.forced_words} - {""}):
        what = f"{word!r} is in both generate.bad_words and generate.forced_words"
        conflict("forced_words", what, "remove it from one of them")
    if generate.quantise is not None and generate.engine in ("torch", "uncached"):
        what = f'{generate.quantise} weights require engine "numba" (got "{generate.engine}")'
        conflict("quantise", what, 'set generate.engine to "numba" or remove generate.quantise')
    return found
