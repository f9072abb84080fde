"""The typed, frozen tree of settings: every setting with its default and its description (for help, JSON schema and docs).

Owns: names, types, bounds and defaults. Does not own: conflicts between settings (`rules`), or loading values (`loading`).

"Off" is None in Python, `"none"` in TOML and on the command line, null in JSON.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from lilliput.settings.choice_tables import OneOf

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
Probability = Annotated[float, Field(gt=0.0, le=1.0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
MixShare = Annotated[float, Field(ge=0.0, le=1.0)] | Literal["auto"]


def describe(description: str, default: Any) -> Any:
    return Field(default=default, description=description)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataSettings:
    """Source of the text, documents, splits and windows, and preparation."""

    source: str = describe(
        "storybook, tinystories, a text file or folder, loader.py:function, or a Hugging Face dataset (owner/name)",
        "storybook",
    )
    files: tuple[str, ...] = describe(
        "patterns of the files to read in a folder, such as *.py (empty: all text files)", ()
    )
    validation_source: str | None = describe("separate source for validation (none: a share of source)", None)
    validation_share: Annotated[float, Field(gt=0.0, lt=1.0)] = describe(
        "share of the documents for validation; a single document is split near its end", 0.1
    )
    tests: tuple[str, ...] = describe("named test sets, as name=source; each is evaluated at the end of training", ())
    separator: Literal["auto", "endoftext", "blank-line", "line", "file"] = describe(
        "what separates documents in a text file (auto: <|endoftext|> if it occurs, else each file is one document)",
        "auto",
    )
    line_ends: Literal["normalise", "keep"] = describe(
        "normalise: CRLF and CR become LF (bits per byte count the original bytes); keep: unchanged", "normalise"
    )
    text_field: str = describe(
        "field of a .jsonl line, or column of a table (name, or number from 1), that holds the text", "text"
    )
    labelled: bool = describe("documents have labels: lines of label TAB text, or a label field", False)
    label_field: str = describe("field or column that holds the label", "label")
    documents: Count | None = describe(
        "use only the first N documents (storybook: number of training stories, 20,000 if none)", None
    )
    seed: Seed = describe("seed of the split and of the storybook", 1)
    windows: Literal["aligned", "overlapping"] = describe(
        "aligned: consecutive windows without overlap; overlapping: one training window per token offset", "aligned"
    )
    drop_duplicates: Literal["exact", "near"] | None = describe(
        "drop repeated training documents (the first copy stays) and those that occur in validation or a test set", None
    )
    workers: Count | None = describe("preparation processes (none: one per core)", None)
    cache: str = describe("folder of prepared token files", "prepared")


SpecialId = Annotated[int, Field(ge=0, lt=1_000_000)] | None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TokenizerSettings:
    """Tokenizer."""

    kind: Annotated[str, OneOf("tokenizer.kind")] = describe(
        "bpe: byte-level BPE trained on the training split; byte; character; word; gpt2: the BPE of GPT-2", "bpe"
    )
    vocab_size: Count = describe("vocabulary size to train, at least 257 (bpe)", 2048)
    path: str | None = describe(
        "existing tokenizer.json, or folder of GPT-2 files or a tiktoken cache, to use instead of training one", None
    )
    lowercase: bool = describe("convert text to lower case (word, character, bpe, byte)", False)
    ascii_punctuation: bool = describe(
        "replace typographic quotation marks, dashes and ellipses by ASCII: ' \" - -- ... (word, character, bpe, byte)",
        False,
    )
    single_spaces: bool = describe(
        "replace each run of white space, line ends included, by one space (word, character, bpe, byte)", False
    )
    punctuation: Literal["keep", "strip"] = describe("keep punctuation as separate tokens, or strip it (word)", "keep")
    split: Literal["words", "spaces"] = describe(
        "words: at white space and around punctuation; spaces: at white space only, for tokenised text (word)", "words"
    )
    min_frequency: Count = describe(
        "a word or character must occur this often in the training text to get an id (word, character)", 1
    )
    max_vocabulary: Count | None = describe(
        "maximum vocabulary size, special tokens included; keeps the most frequent (word, character)", None
    )
    vocabulary: str | None = describe("vocabulary file with one token per line; the first line has id 0 (word)", None)
    sos_id: SpecialId = describe("id of <sos>, the start of a document (word, character; none: no such token)", 0)
    eos_id: SpecialId = describe("id of <eos>, the end of a document (word, character; none: no such token)", 1)
    pad_id: SpecialId = describe("id of <pad> (word, character; none: no such token)", 2)
    unk_id: SpecialId = describe("id of <unk>, for tokens outside the vocabulary; required (word, character)", 3)


NORMALISATION = ("lowercase", "ascii_punctuation", "single_spaces")  # settings that change the text before it is split


@dataclass(frozen=True, kw_only=True, config=STRICT)
class VectorSettings:
    """Pretrained word vectors that start the embedding."""

    source: str | None = describe(
        "FastText or word2vec file (.vec, .txt, .bin; text files may be compressed), or the value train: train FastText vectors",
        None,
    )
    width: Count | None = describe(
        "width of the vectors (none: same as the file; 100 if source is train); unused without a source", None
    )
    frozen: bool = describe("do not train the vectors", True)
    scaled: bool = describe("multiply the vectors by the square root of their width", True)
    projection: bool = describe(
        "project the vectors to model.dim by a learned matrix (false: use them as they are; requires width model.dim)",
        True,
    )
    uncovered: Literal["learned", "average"] = describe(
        "vectors of special tokens and of words that the file lacks: learned, or the average of the others", "learned"
    )
    rows: Annotated[int, Field(ge=0)] | None = describe(
        "number of learned vectors for words that the file lacks (none, the usual value: counted in the data)", None
    )
    case: bool = describe("for a word without a vector, try its lower-case and then its capitalised form", True)
    apostrophes: bool = describe(
        "for a word without a vector, try plain apostrophes, then the word without 's or surrounding apostrophes", True
    )
    epochs: Count = describe("passes over the training split (if source is train)", 5)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelSettings:
    """Architecture: one transformer with a named choice for each part."""

    task: Annotated[str, OneOf("model.task")] = describe(
        "language: causal decoder; classifier: encoder with mean pooling; both: decoder that also predicts the label",
        "language",
    )
    vocab_size: Count | None = describe("vocabulary size (none, the usual value: size of the tokenizer)", None)
    dim: Count = describe("width of the residual stream", 256)
    layers: Annotated[int, Field(ge=1, le=1000)] = describe("number of blocks", 4)
    heads: Count = describe("number of attention heads", 4)
    kv_heads: Count | None = describe("number of key and value heads (none: same as heads)", None)
    head_dim: Count | None = describe("width of a head (none: dim / heads)", None)
    hidden: Count | None = describe(
        "width of the feed-forward layer (none: 4 x dim); swiglu uses 2/3 of this value, also if you set it", None
    )
    context: Count = describe("context length in tokens", 256)
    window: Count | tuple[Count | None, ...] | None = describe(
        "sliding attention window in tokens: none, 64, or a pattern over the layers such as 64,64,none", None
    )
    norm: Annotated[str, OneOf("model.norm")] = describe(
        "normalisation: layer (LayerNorm), layer-unbiased (divides by the unbiased standard deviation + 1e-6), rms (RMSNorm)",
        "rms",
    )
    norm_placement: Annotated[str, OneOf("model.norm_placement")] = describe(
        "pre: x + f(norm(x)); post: norm(x + f(x))", "pre"
    )
    final_norm: bool = describe("normalise after the last block", True)
    positions: Annotated[str, OneOf("model.positions")] | None = describe(
        "positional encoding: sinusoidal, learned, rotary, or none", "rotary"
    )
    rotary_base: Positive = describe("base of the rotary angles", 10_000.0)
    feed_forward: Annotated[str, OneOf("model.feed_forward")] = describe(
        "activation of the feed-forward layer", "relu2"
    )
    qk_norm: bool = describe("normalise queries and keys per head", True)
    dropout: Share = describe("dropout probability in training", 0.0)
    tied: bool = describe("share the weights of the embedding and the output head", False)
    soft_cap: Positive | None = describe("bound of the logits: cap x tanh(logits / cap)", None)
    value_embeddings: Annotated[str, OneOf("model.value_embeddings")] | None = describe(
        "layers that add an embedding of the token to the values: ends (first and last), alternate, all", None
    )
    bias_attention_input: bool = describe("biases of the query, key and value projections", False)
    bias_attention_output: bool = describe("bias of the attention output projection", False)
    bias_feed_forward: bool = describe("biases of the feed-forward layer", False)
    bias_head: bool = describe("bias of the output head", False)
    initialisation: Annotated[str, OneOf("model.initialisation")] = describe(
        "xavier; gpt2: normal 0.02, residual projections scaled by depth; zero-residual: blocks start as the identity; "
        "copying: as zero-residual, but in every layer except the first, attention adds half the weighted mean of what it reads",
        "zero-residual",
    )
    classes: Count | None = describe("number of labels (classifier, both; none: number in the training split)", None)
    classifier_hidden: Count = describe("hidden width of the classification head (classifier, both)", 100)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OptimizerSettings:
    """Optimizer."""

    kind: Annotated[str, OneOf("optimizer.kind")] = describe(
        "sgd; adam (weight decay in the gradient); adamw; muon for the weight matrices of the blocks, adamw for the rest",
        "adamw",
    )
    lr: Positive = describe(
        "base learning rate, multiplied by warm-up and decay; with muon, the matrices of the blocks use matrix_lr instead",
        2e-3,
    )
    matrix_lr: Positive = describe("base learning rate of the weight matrices of the blocks (muon)", 0.02)
    embedding_lr: Positive | None = describe("base learning rate of the token embeddings (none: optimizer.lr)", None)
    head_lr: Positive | None = describe("base learning rate of an untied head (none: optimizer.lr)", None)
    momentum: Share = describe("momentum of sgd; with muon, of the weight matrices of the blocks", 0.95)
    betas: tuple[Share, Share] = describe("decay rates of the first and second moments", (0.9, 0.95))
    epsilon: Positive = describe("added to the root of the second moment", 1e-8)
    weight_decay: NotNegative = describe("weight decay of matrices (sgd, adam: added to the gradient)", 0.1)
    clip: Positive | None = describe("maximum norm of the gradient", 1.0)
    average: Annotated[float, Field(gt=0.0, lt=1.0)] | None = describe(
        "decay of an exponential moving average of the weights; the average is evaluated, saved and used", None
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ScheduleSettings:
    """Learning rate schedule, relative to the budget."""

    kind: Annotated[str, OneOf("schedule.kind")] = describe(
        "how the learning rate falls; inverse-sqrt: lr x sqrt(warmup / step) after the warm-up, and the fall of schedule.decay",
        "cosine",
    )
    decay: Annotated[float, Field(ge=0.0, le=1.0)] = describe(
        "last part of the budget, in which the rate falls to final (1: the whole run; 0.2: the last 20%; 0: none)", 1.0
    )
    warmup: Annotated[int, Field(ge=0)] = describe("linear warm-up steps", 50)
    final: Annotated[float, Field(ge=0.0, le=1.0)] = describe("final learning rate as a share of the base rate", 0.05)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainSettings:
    """Budget (exactly one of steps, tokens, minutes and epochs), time limit, batch, hardware and checkpoints."""

    batch: Count = describe("sequences of model.context tokens per micro-batch, in total over all processes", 16)
    accumulate: Count = describe("micro-batches per step (gradient accumulation)", 1)
    steps: Count | None = describe("budget in steps", None)
    tokens: Count | None = describe("budget in training tokens", None)
    minutes: Positive | None = describe("budget in minutes (the default, if no other budget is set)", 10.0)
    epochs: Positive | None = describe("budget in passes over the training split", None)
    max_minutes: Positive | None = describe(
        "time limit of the training; if the budget does not fit into it, the schedule ends with the limit", None
    )
    save_every: Count = describe("steps between checkpoints", 250)
    keep: Count = describe("number of newest checkpoints to keep, in addition to the best one", 2)
    device: Literal["auto", "cpu", "cuda", "mps"] = describe("device to compute on", "auto")
    precision: Literal["auto", "float32", "float64", "bfloat16", "float16"] = describe(
        "floating-point type; 16-bit types only in matrix products (auto: bfloat16 if its steps are faster, else float32)",
        "auto",
    )
    threads: Count | None = describe("CPU threads (none: the default of torch, or 1 if its steps are faster)", None)
    parallel: Literal["replicate", "shard"] = describe(
        "with several processes: replicate (DDP, a full model each) or shard (FSDP2, a part each)", "replicate"
    )
    recompute: Literal["block", "feed-forward"] | None = describe(
        "activation checkpointing: recompute whole blocks, or only feed-forward layers, in the backward pass", None
    )
    recompute_every: Count = describe("recompute one of every N blocks", 1)
    compile: bool = describe("compile the blocks with torch.compile", False)
    label_smoothing: Share = describe("probability spread evenly over all tokens or labels", 0.0)
    z_loss: NotNegative = describe("weight of the squared log-sum-exp of the token logits, which keeps them small", 0.0)
    pair_updates: Annotated[int, Field(ge=0)] = describe(
        "extra steps before training: only embedding and head learn the bigram counts (their time counts in train.minutes)",
        0,
    )
    language_weight: NotNegative = describe("weight of the next-token loss (model.task both)", 1.0)
    label_weight: NotNegative = describe("weight of the label loss (model.task both)", 1.0)
    balance_labels: bool = describe(
        "weight documents by label, so that rare and frequent labels count equally (classifier, both)", False
    )
    patience: Count | None = describe("stop after this number of evaluations without a lower validation loss", None)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvaluateSettings:
    """Evaluations during training."""

    every: Count | Literal["epoch"] = describe("steps between evaluations, or epoch for one per epoch", 250)
    at: tuple[Annotated[int, Field(ge=0)], ...] = describe(
        "additional steps to evaluate (0: before the first step)", ()
    )
    rows: Count = describe("sequences of the fixed validation sample that is evaluated during training", 64)
    train_rows: Count | None = describe(
        "sequences of a fixed training sample that is also evaluated, without dropout (none: no such sample)", None
    )
    tests: bool = describe(
        "evaluate the test sets at every evaluation, not only at the end (they never select the best checkpoint)", False
    )
    test_rows: Count | None = describe(
        "sequences of a fixed sample of each test set during training (none: all); the end of training uses all", None
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GenerateSettings:
    """Text generation: samples during training, and defaults of `lilliput generate`."""

    prompt: str = describe("text to continue (empty: a new document)", "")
    tokens: Count = describe("maximum number of tokens to generate", 256)
    min_tokens: Annotated[int, Field(ge=0)] = describe("minimum number of tokens (a stop string may come earlier)", 0)
    temperature: NotNegative = describe("sampling temperature; 0: greedy, 1: the distribution of the model", 0.7)
    final_temperature: Positive | None = describe(
        "temperature at the last of generate.tokens tokens; it changes linearly from generate.temperature", None
    )
    entropy_temperature: Positive | None = describe(
        "temperature at the highest entropy of the next token; it changes linearly from generate.temperature at zero entropy",
        None,
    )
    top_k: Count | None = describe("sample from the K most likely tokens", None)
    top_p: Probability | None = describe("sample from the most likely tokens with this total probability", None)
    min_p: Probability | None = describe("sample from tokens with at least this share of the highest probability", None)
    typical: Probability | None = describe(
        "locally typical sampling: sample from the tokens whose surprise is closest to the entropy, up to this total probability",
        None,
    )
    mix_ngram: MixShare | None = describe(
        "share (0 to 1) of an n-gram model of the training text in a mixture; auto: the best on validation", None
    )
    repetition_penalty: Positive = describe("penalty factor of used tokens; 1: off (Keskar et al. 2019)", 1.0)
    frequency_penalty: float = describe("subtracted from the logit of a token for each use", 0.0)
    presence_penalty: float = describe("subtracted from the logit of each token that was used", 0.0)
    penalise_prompt: bool = describe("apply penalties and no_repeat_ngram to prompt tokens too", True)
    repetition_window: Count | None = describe(
        "apply the penalties to uses among the last N tokens only (none: the whole text)", None
    )
    no_repeat_ngram: Count | None = describe("forbid repeated n-grams of this length", None)
    bad_words: tuple[str, ...] = describe("words or phrases that are never generated", ())
    forced_words: tuple[str, ...] = describe("words or phrases that must occur in the text", ())
    stop: tuple[str, ...] = describe("stop strings: the text ends before the first of them", ())
    processors: tuple[Annotated[str, OneOf("generate.processors")], ...] = describe(
        "registered logit processors, applied before temperature", ()
    )
    beams: Count | None = describe("beam width (none: no beam search)", None)
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = describe(
        "p in the beam score: log-probability / length ^ p", 1.0
    )
    early_stop: Literal["bound", "first", "never"] = describe(
        "when a beam search stops; bound: when no unfinished beam can win; first: when the number of finished texts "
        "equals the number of beams; never: only at the maximum length",
        "bound",
    )
    beam_groups: Count = describe("number of beam groups; each is penalised for tokens of earlier groups", 1)
    diversity: NotNegative = describe("strength of the penalty between beam groups", 0.5)
    sample_beams: bool = describe("stochastic beam search: distinct texts, sampled from the model", False)
    engine: Literal["auto", "torch", "numba", "uncached"] = describe(
        "numba: fast for few texts at once on a CPU; uncached: torch without a KV cache, for reference", "auto"
    )
    quantise: Literal["int8"] | None = describe("quantise the weights to int8 (numba)", None)

    @property
    def is_drawn(self) -> bool:
        """Whether the text depends on the seed."""
        return self.temperature != 0.0 and (self.beams is None or self.sample_beams)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LogSettings:
    """Logs and console output."""

    folder: str = describe("folder of runs", "runs")
    every: Count = describe("steps between lines of metrics.jsonl", 10)
    sample_seconds: Positive | None = describe(
        "minimum seconds between two printed sample texts; the first follows after 15 seconds (none: no samples)", 60.0
    )
    tensorboard: bool = describe("also write TensorBoard files to the run folder", False)
    trackio: bool = describe("also log to trackio", False)
    wandb: bool = describe("also log to Weights & Biases (offline without a network)", False)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    """All settings of a run."""

    name: str | None = describe("name of the run (none: name of the recipe)", None)
    seed: Seed = describe("seed of weights, data order and dropout (the split uses data.seed)", 1)
    data: DataSettings = Field(default_factory=DataSettings)
    tokenizer: TokenizerSettings = Field(default_factory=TokenizerSettings)
    vectors: VectorSettings = Field(default_factory=VectorSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = Field(default_factory=ScheduleSettings)
    train: TrainSettings = Field(default_factory=TrainSettings)
    evaluate: EvaluateSettings = Field(default_factory=EvaluateSettings)
    generate: GenerateSettings = Field(default_factory=GenerateSettings)
    log: LogSettings = Field(default_factory=LogSettings)


BUDGETS = ("steps", "tokens", "minutes", "epochs")
TIME_LIMIT = "max_minutes"  # belongs to the budget it is set with
