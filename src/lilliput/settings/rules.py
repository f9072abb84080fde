"""Settings that are each right and do not fit each other.

Owns: the sentences about them; one that would do nothing where it is set is among them, so that nobody waits
for its effect. Does not own: the settings and the bounds of each (`tree`), nor where a value was said
(`loading`).
"""

from __future__ import annotations

from lilliput.settings.tree import BUDGETS, Config, GenerateSettings, ModelSettings

SHAPE_A_DRAW = ("final_temperature", "top_k", "top_p", "min_p", "typical")  # of `generate.*`: nothing without a draw


def conflicts(config: Config) -> list[tuple[str, str]]:
    """All of them: (dotted name, sentence)."""
    model, train, found = config.model, config.train, []
    if model.dim % model.heads:
        found.append(("model.heads", f"model.dim {model.dim} is not divisible by model.heads {model.heads}"))
    elif model.positions == "rotary" and (model.dim // model.heads) % 2:
        found.append(
            ("model.heads", f"rotary positions need an even dim per head, and {model.dim} / {model.heads} is odd")
        )
    if model.kv_heads and model.heads % model.kv_heads:
        found.append(
            ("model.kv_heads", f"model.heads {model.heads} is not divisible by model.kv_heads {model.kv_heads}")
        )
    if model.positions == "sinusoidal" and model.dim % 2:
        found.append(("model.dim", f"sinusoidal positions need an even model.dim, not {model.dim}"))
    if isinstance(model.window, tuple) and not model.window:
        found.append(("model.window", "an empty pattern of windows says nothing"))
    if model.task == "language" and model.classes is not None:
        found.append(("model.classes", "a language model has no classes: set model.task to classifier or both"))
    if model.initialisation == "copying" and model.kv_heads not in (None, model.heads):
        found.append(("model.initialisation", "copying needs as many model.kv_heads as model.heads"))
    if model.soft_cap is not None and model.task == "classifier":
        found.append(("model.soft_cap", "a classifier has no logits of tokens to bound: model.soft_cap none"))
    if model.tied and (model.task == "classifier" or config.vectors.width not in (None, model.dim)):
        found.append(("model.tied", "a tied head needs a language model whose embedding has width model.dim"))
    if model.tied and config.vectors.source is not None and config.vectors.frozen:
        found.append(
            ("model.tied", "a tied head learns, so vectors that it shares cannot be frozen: vectors.frozen false")
        )
    if (model.vocab_size and config.tokenizer.kind == "byte") and model.vocab_size < 257:
        found.append(("model.vocab_size", "bytes and end-of-text need model.vocab_size 257 or more"))
    names = [name for name, equals, source in (test.partition("=") for test in config.data.tests) if equals and source]
    if len(names) < len(config.data.tests) or len({*names, "train", "validation", ""}) < len(names) + 3:
        found.append(
            ("data.tests", "each test set is name=source, with a name of its own that is not train or validation")
        )
    if not all(name.replace("-", "_").isidentifier() for name in names):
        found.append(("data.tests", "the name of a test set has letters, digits, _ and - only"))
    if model.task != "language" and not config.data.labelled:
        who = "a classifier" if model.task == "classifier" else "model.task both"
        found.append(
            ("data.labelled", f"{who} needs labelled documents: data.labelled true, and a source that has labels")
        )
    if model.task == "both" and config.data.windows == "overlapping":
        found.append(
            ("data.windows", "model.task both learns each label once, with its document's first aligned window")
        )
    if model.task == "both" and train.language_weight + train.label_weight == 0.0:
        found.append(("train.language_weight", "with train.label_weight 0 too there is nothing to learn"))
    for name in ("language_weight", "label_weight"):
        if model.task != "both" and getattr(train, name) != 1.0:
            found.append((f"train.{name}", f"model.task {model.task} has one loss, and nothing to weigh it against"))
    if model.task == "language" and train.balance_labels:
        found.append(("train.balance_labels", "a language model has no labels: set model.task to classifier or both"))
    if model.task == "classifier" and train.z_loss:
        found.append(("train.z_loss", "a classifier has no logits of tokens to keep small: train.z_loss 0"))
    if train.pair_updates:
        found += [("train.pair_updates", why) for wrong, why in no_pairs(model) if wrong]
    if train.recompute is None and train.recompute_every > 1:
        found.append(("train.recompute_every", "nothing is recomputed: set train.recompute to block or feed-forward"))
    tokenizer = config.tokenizer
    specials = {name: getattr(tokenizer, name) for name in ("sos_id", "eos_id", "pad_id", "unk_id")}
    used = [number for number in specials.values() if number is not None]
    if len(set(used)) < len(used):
        found.append(
            (
                "tokenizer.sos_id",
                "two special tokens have the same id: " + ", ".join(f"{k} {v}" for k, v in specials.items()),
            )
        )
    if (
        tokenizer.kind in ("word", "character")
        and tokenizer.unk_id is None
        and tokenizer.vocabulary is None
        and tokenizer.path is None
    ):
        found.append(
            ("tokenizer.unk_id", f"a {tokenizer.kind} tokenizer needs an id for what is not in its vocabulary")
        )
    if tokenizer.vocabulary is not None and tokenizer.kind != "word":
        found.append(("tokenizer.vocabulary", "a vocabulary file is for tokenizer.kind word"))
    if config.schedule.kind == "inverse-sqrt" and not config.schedule.warmup:
        found.append(("schedule.warmup", "inverse-sqrt counts its fall in warm-ups: schedule.warmup 1 or more"))
    if model.tied and config.optimizer.head_lr is not None:
        found.append(("optimizer.head_lr", "a tied head is the embedding's table: optimizer.embedding_lr is its rate"))
    if sum(getattr(train, budget) is not None for budget in BUDGETS) != 1:
        found.append(("train.steps", "one budget is needed, and only one: train.steps, train.tokens or train.minutes"))
    return found + writing_conflicts(config.generate)


def no_pairs(model: ModelSettings) -> list[tuple[bool, str]]:
    """Why a net may not begin as a model of pairs of tokens."""
    return [
        (model.task == "classifier", "a classifier predicts no tokens: train.pair_updates 0"),
        (model.tied, "a tied head cannot tell which token of a pair comes first: model.tied false"),
        (
            model.initialisation != "zero-residual" or model.norm_placement != "pre",
            "only blocks that begin as the identity leave pairs as they were learned: "
            "model.initialisation zero-residual and model.norm_placement pre",
        ),
        (
            model.positions in ("learned", "sinusoidal"),
            f"{model.positions} positions stand in the way of pairs from the start: model.positions rotary or none",
        ),
    ]


def writing_conflicts(how: GenerateSettings) -> list[tuple[str, str]]:
    """Those of `generate.*` by themselves; each is named after the setting that could be left out."""
    found = []
    for name in SHAPE_A_DRAW:
        if not how.is_drawn and getattr(how, name) is not None:
            if how.beams is None or how.sample_beams:
                why = "at generate.temperature 0 nothing is drawn"
            else:
                why = "beams are not drawn without generate.sample_beams"
            found.append((f"generate.{name}", f"{why}, so generate.{name} would do nothing"))
    if how.sample_beams and how.beams is not None and how.temperature == 0.0:
        found.append(("generate.sample_beams", "beams cannot be drawn at generate.temperature 0"))
    for name, off in (
        ("length_penalty", 1.0),
        ("early_stop", "bound"),
        ("beam_groups", 1),
        ("diversity", 0.5),
        ("sample_beams", False),
    ):
        if how.beams is None and getattr(how, name) != off:
            found.append((f"generate.{name}", f"generate.{name} is for a beam search: set generate.beams, too"))
    if how.beams is not None and how.beams % how.beam_groups:
        found.append(
            (
                "generate.beam_groups",
                f"generate.beams {how.beams} is not divisible by generate.beam_groups {how.beam_groups}",
            )
        )
    if how.beams is not None and how.sample_beams and how.beam_groups > 1:
        why = "drawn beams have no groups: a draw without replacement (generate.sample_beams) finds different texts by itself"
        found.append(("generate.beam_groups", why))
    if how.beams is not None and how.beam_groups == 1 and how.diversity != 0.5:
        found.append(("generate.diversity", "one group has none to be led away from: set generate.beam_groups, too"))
    if how.min_tokens > how.tokens:
        found.append(
            ("generate.min_tokens", f"generate.min_tokens {how.min_tokens} is more than generate.tokens {how.tokens}")
        )
    penalties = (how.repetition_penalty, how.frequency_penalty, how.presence_penalty)
    if not how.penalise_prompt and penalties == (1.0, 0.0, 0.0) and how.no_repeat_ngram is None:
        found.append(("generate.penalise_prompt", "there is no penalty and no generate.no_repeat_ngram to count for"))
    for name in ("bad_words", "forced_words", "stop"):
        if "" in getattr(how, name):
            found.append((f"generate.{name}", f"generate.{name} has an empty text, which stands everywhere"))
    for word in sorted({*how.bad_words} & {*how.forced_words} - {""}):
        found.append(("generate.forced_words", f"{word!r} is both a bad word and a forced one"))
    if how.quantise is not None and how.engine in ("torch", "uncached"):
        what = f"the {how.engine} engine has no weights of one byte: generate.engine numba"
        found.append(("generate.quantise", what))
    return found
