"""The typed, frozen tree of settings: every choice that a user can make, with its default and its meaning.

Owns: names, types, bounds, defaults, one-line descriptions (they are the help, the JSON schema and the docs).
Does not own: which of them fit each other (`rules`), where values come from (`loading`), nor what is built
from them (each room looks its choice up when it builds).

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


def describe(description: str, default: Any) -> Any:
    return Field(default=default, description=description)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataSettings:
    """Where the text comes from, how it is cut into documents, splits and windows, and who prepares it."""

    source: str = describe(
        "storybook, tinystories, a file or folder of texts, a loader.py:function, or a data set of the hub by its name",
        "storybook",
    )
    validation_source: str | None = describe("a source of its own for validation (none: a share of source)", None)
    validation_share: Annotated[float, Field(gt=0.0, lt=1.0)] = describe("share of documents kept for validation", 0.1)
    tests: tuple[str, ...] = describe("named test sets, as name=source: each is measured by itself at the end", ())
    separator: Literal["auto", "endoftext", "blank-line", "line", "file"] = describe(
        "what ends a document in a .txt file (auto: <|endoftext|> where it occurs, else the end of the file)", "auto"
    )
    text_field: str = describe(
        "the field of a .jsonl line, or the column of a table (its name, or its number from 1), that holds the text",
        "text",
    )
    labelled: bool = describe("documents have labels: label TAB text on a line, or a field of their own", False)
    label_field: str = describe("the field or column that holds the label", "label")
    documents: Count | None = describe("use only the first n documents (storybook: write n, 20,000 if none)", None)
    seed: Seed = describe("seed of the split, and of the stories of the storybook", 1)
    windows: Literal["aligned", "overlapping"] = describe(
        "aligned: each prediction once an epoch, in windows from the document's start; overlapping: a window at every offset",
        "aligned",
    )
    drop_duplicates: Literal["exact", "near"] | None = describe(
        "leave out of training what stands there twice or stands in validation or a test", None
    )
    workers: Count | None = describe("processes that prepare (none: one for each core)", None)
    cache: str = describe("folder of prepared token files", "prepared")


SpecialId = Annotated[int, Field(ge=0, lt=1_000_000)] | None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TokenizerSettings:
    """How text becomes integers."""

    kind: Annotated[str, OneOf("tokenizer.kind")] = describe(
        "bpe: byte-level BPE trained on the training split; byte: 256 bytes; character; word; gpt2: GPT-2's own BPE",
        "bpe",
    )
    vocab_size: Annotated[int, Field(ge=257)] = describe("size of the vocabulary to train (bpe)", 2048)
    path: str | None = describe(
        "use this tokenizer.json, or the folder of GPT-2's files or of a tiktoken cache, instead of training one", None
    )
    lowercase: bool = describe("write all words in small letters (word, character)", False)
    punctuation: Literal["keep", "strip"] = describe("marks as tokens of their own, or left out (word)", "keep")
    split: Literal["words", "spaces"] = describe(
        "words: at white space and around marks; spaces: the text is tokenised already, at white space only (word)",
        "words",
    )
    min_frequency: Count = describe("fewest occurrences of a word or character that gets an id (word, character)", 1)
    max_vocabulary: Count | None = describe(
        "most ids, special tokens included: the most frequent stay (word, character)", None
    )
    vocabulary: str | None = describe(
        "a vocabulary file, one token a line, whose line numbers are the ids (word)", None
    )
    sos_id: SpecialId = describe("id of <sos>, which begins a document (word, character; none: no such token)", 0)
    eos_id: SpecialId = describe("id of <eos>, which ends a document (word, character; none: no such token)", 1)
    pad_id: SpecialId = describe("id of <pad> (word, character; none: no such token)", 2)
    unk_id: SpecialId = describe("id of <unk>, for what is not in the vocabulary (word, character)", 3)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class VectorSettings:
    """Pretrained word vectors in place of the learned embedding table."""

    source: str | None = describe(
        "a file of FastText or word2vec (.vec, .txt, .bin; text also .gz, .xz, .zst), or train: FastText on the training split",
        None,
    )
    width: Count | None = describe(
        "width of the vectors (none: the file's, or 100 to train; no source: model.dim)", None
    )
    frozen: bool = describe("keep the vectors as they are; false: tune them", True)
    scaled: bool = describe("multiply the vectors by the square root of their width", True)
    uncovered: Literal["learned", "average"] = describe(
        "the rows of special tokens and of words without a vector: learned, or the mean of the others", "learned"
    )
    rows: Annotated[int, Field(ge=0)] | None = describe(
        "number of such rows that are learned (none: as many as are found)", None
    )
    case: bool = describe("a word without a vector takes that of its lower-case, then of its capitalised form", True)
    apostrophes: bool = describe(
        "and that of the word with plain apostrophes, then without 's or apostrophes around it", True
    )
    epochs: Count = describe("passes over the training split (source train)", 5)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelSettings:
    """The family: one trunk, a value for each choice."""

    task: Annotated[str, OneOf("model.task")] = describe(
        "language: causal decoder; classifier: encoder + mean pool; both: a decoder that also tells the label",
        "language",
    )
    vocab_size: Count | None = describe("size of the vocabulary (none: the tokenizer's)", None)
    dim: Count = describe("width of the residual stream", 256)
    layers: Annotated[int, Field(ge=1, le=1000)] = describe("number of blocks", 4)
    heads: Count = describe("attention heads", 4)
    kv_heads: Count | None = describe("heads of keys and values (none: as many as heads)", None)
    hidden: Count | None = describe("width inside the feed-forward (none: 4 x dim; gated kinds take 2/3 of it)", None)
    context: Count = describe("the most tokens that the model sees at once", 256)
    window: Count | tuple[Count | None, ...] | None = describe(
        "keys that a position sees, itself included: none, a number, or a pattern repeated over the layers", None
    )
    norm: Annotated[str, OneOf("model.norm")] = describe("LayerNorm or RMSNorm", "rms")
    norm_placement: Annotated[str, OneOf("model.norm_placement")] = describe(
        "pre: x + f(norm(x)); post: norm(x + f(x))", "pre"
    )
    final_norm: bool = describe("a norm after the last block", True)
    positions: Annotated[str, OneOf("model.positions")] | None = describe(
        "positional encoding: sinusoidal, learned, rotary, or none", "rotary"
    )
    rotary_base: Positive = describe("base of the rotary angles", 10_000.0)
    feed_forward: Annotated[str, OneOf("model.feed_forward")] = describe("kind of feed-forward", "relu2")
    qk_norm: bool = describe("normalise queries and keys per head", True)
    dropout: Share = describe("share of activations dropped in training", 0.0)
    tied: bool = describe("the head shares the embedding's table", False)
    soft_cap: Positive | None = describe("bound of the logits: cap x tanh(logits / cap)", None)
    value_embeddings: Annotated[str, OneOf("model.value_embeddings")] | None = describe(
        "layers whose values also have a table by token: ends (first and last), alternate (every second, the last one too), all",
        None,
    )
    bias_attention_input: bool = describe("biases of the query, key and value projections", False)
    bias_attention_output: bool = describe("bias of the attention's output projection", False)
    bias_feed_forward: bool = describe("biases of the feed-forward", False)
    bias_head: bool = describe("bias of the head", False)
    initialisation: Annotated[str, OneOf("model.initialisation")] = describe(
        "xavier; gpt2: normal 0.02, residual projections scaled down by depth; zero-residual: blocks begin as identity; "
        "copying: as that, but attention after the first layer begins by passing on half of what it looks at",
        "zero-residual",
    )
    classes: Count | None = describe("number of labels (classifier; none: as many as the training split has)", None)
    classifier_hidden: Count = describe("width inside the classifier's head", 100)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OptimizerSettings:
    """How gradients become steps."""

    kind: Annotated[str, OneOf("optimizer.kind")] = describe(
        "sgd; adam (decay in the gradient); adamw; or muon for the matrices of the blocks and adamw for the rest",
        "adamw",
    )
    lr: Positive = describe("peak learning rate (muon: of what is no matrix of a block)", 2e-3)
    matrix_lr: Positive = describe("peak learning rate of the matrices of the blocks (muon)", 0.02)
    embedding_lr: Positive | None = describe("peak learning rate of the tables of tokens (none: optimizer.lr)", None)
    head_lr: Positive | None = describe("peak learning rate of an untied head (none: optimizer.lr)", None)
    momentum: Share = describe("momentum (sgd), and of the matrices of the blocks (muon)", 0.95)
    betas: tuple[Share, Share] = describe("decay of the moments", (0.9, 0.95))
    epsilon: Positive = describe("added to the root of the second moment", 1e-8)
    weight_decay: NotNegative = describe(
        "decay of matrices; vectors are never decayed (sgd, adam: in the gradient)", 0.1
    )
    clip: Positive | None = describe("largest norm of the whole gradient", 1.0)
    average: Annotated[float, Field(gt=0.0, lt=1.0)] | None = describe(
        "decay of an exponential moving average of the weights, which is then what is judged, kept and used", None
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ScheduleSettings:
    """How the learning rate moves over the budget, whatever the budget is counted in."""

    kind: Annotated[str, OneOf("schedule.kind")] = describe(
        "shape of the fall to the final rate; inverse-sqrt: a level of peak x sqrt(warmup / step), and a linear fall from it",
        "cosine",
    )
    decay: Annotated[float, Field(ge=0.0, le=1.0)] = describe(
        "share of the budget, at its end, over which the rate falls (0.2: warm-up, stable, decay; 0: there is no fall)",
        1.0,
    )
    warmup: Annotated[int, Field(ge=0)] = describe("steps of linear warm-up", 50)
    final: Annotated[float, Field(ge=0.0, le=1.0)] = describe("learning rate at the end, as a share of the peak", 0.05)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainSettings:
    """The budget, the batch, the machine, and what is kept on disk. One budget of steps, tokens, minutes and epochs is set."""

    batch: Count = describe("rows of one micro-batch, over all processes", 16)
    accumulate: Count = describe("micro-batches in one update", 1)
    steps: Count | None = describe("budget in updates", None)
    tokens: Count | None = describe("budget in tokens seen", None)
    minutes: Positive | None = describe("budget in minutes", 10.0)
    epochs: Positive | None = describe("budget in passes over the training split", None)
    save_every: Count = describe("steps between checkpoints", 250)
    keep: Count = describe("newest checkpoints to keep (best and last are always kept)", 2)
    device: Literal["auto", "cpu", "cuda", "mps"] = describe("where to compute", "auto")
    precision: Literal["auto", "float32", "float64", "bfloat16", "float16"] = describe(
        "type of the numbers; 16 bits: of products only (auto: bfloat16 where it is measured to be faster, else float32)",
        "auto",
    )
    threads: Count | None = describe("CPU threads (none: as many as torch chooses)", None)
    parallel: Literal["replicate", "shard"] = describe(
        "with several processes: replicate (DDP: each has the whole model) or shard (FSDP2: each has a part)",
        "replicate",
    )
    recompute: Literal["block", "feed-forward"] | None = describe(
        "keep less for the backward pass and compute it again there: whole blocks, or their feed-forwards only", None
    )
    recompute_every: Count = describe("of every n blocks, recompute one", 1)
    compile: bool = describe("compile the blocks with torch.compile", False)
    label_smoothing: Share = describe("share of the target's probability that is spread over all tokens or labels", 0.0)
    z_loss: NotNegative = describe(
        "weight of the squared log-sum-exp of the tokens' logits, which keeps them small", 0.0
    )
    pair_updates: Annotated[int, Field(ge=0)] = describe(
        "updates of embedding and head by the counts of all pairs of tokens, before the first step (their time counts)",
        0,
    )
    language_weight: NotNegative = describe("weight of the next token's loss (model.task both)", 1.0)
    label_weight: NotNegative = describe("weight of the label's loss (model.task both)", 1.0)
    balance_labels: bool = describe(
        "weigh documents by their labels, so that a rare label counts as much as a frequent one (classifier, both)",
        False,
    )
    patience: Count | None = describe(
        "evaluations without a lower validation loss after which training ends (the best weights are kept anyway)", None
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvaluateSettings:
    """Validation."""

    every: Count | Literal["epoch"] = describe("steps between evaluations during training, or epoch", 250)
    at: tuple[Annotated[int, Field(ge=0)], ...] = describe(
        "further steps to evaluate after (0: before the first step)", ()
    )
    rows: Count = describe("rows of the fixed sample of the validation split that is evaluated during training", 64)
    train_rows: Count | None = describe("rows of a fixed sample of the training split to evaluate, too", None)
    tests: bool = describe("evaluate every test set during training, too (never used to choose the best)", False)
    test_rows: Count | None = describe("rows of a fixed sample of each test set (none: all rows)", None)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GenerateSettings:
    """How sample texts are written while training, and the defaults of `lilliput generate`."""

    prompt: str = describe("text to go on from (empty: a new document)", "")
    tokens: Count = describe("most tokens to write", 256)
    min_tokens: Annotated[int, Field(ge=0)] = describe(
        "the text does not end before so many tokens, unless at a stop string", 0
    )
    temperature: NotNegative = describe("0 is greedy; 1 is the model's own distribution", 0.7)
    final_temperature: Positive | None = describe("temperature of the last token, reached in equal steps", None)
    top_k: Count | None = describe("choose among the k likeliest tokens only", None)
    top_p: Probability | None = describe("choose among the likeliest tokens that together have this probability", None)
    min_p: Probability | None = describe(
        "only tokens with at least this share of the likeliest one's probability", None
    )
    typical: Probability | None = describe(
        "choose among the tokens nearest to the expected surprise that together have this probability", None
    )
    repetition_penalty: Positive = describe("above 1: tokens that were used lose; 1 is off (Keskar et al. 2019)", 1.0)
    frequency_penalty: float = describe("taken off a token's logit for each time that it was used", 0.0)
    presence_penalty: float = describe("taken off the logit of every token that was used", 0.0)
    penalise_prompt: bool = describe("do the penalties and no_repeat_ngram count the prompt's tokens, too?", True)
    no_repeat_ngram: Count | None = describe("no sequence of so many tokens comes twice", None)
    bad_words: tuple[str, ...] = describe("words or phrases that are never written", ())
    forced_words: tuple[str, ...] = describe("words or phrases that must come before the text ends", ())
    stop: tuple[str, ...] = describe("the text ends before any of these", ())
    processors: tuple[Annotated[str, OneOf("generate.processors")], ...] = describe(
        "registered logit processors to apply before temperature and filters (CONTRIBUTING.md)", ()
    )
    beams: Count | None = describe("width of a beam search, in place of choosing token by token", None)
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = describe(
        "beams are compared by log-probability / length ^ this", 1.0
    )
    early_stop: Literal["bound", "first", "never"] = describe(
        "a beam search ends when no beam can become better, as soon as it has enough ended texts, or at the most tokens",
        "bound",
    )
    beam_groups: Count = describe("so many groups of beams, each led away from the words of those before it", 1)
    diversity: NotNegative = describe("how strongly groups are led away from each other", 0.5)
    sample_beams: bool = describe("draw the beams' next tokens in place of taking the best", False)
    engine: Literal["auto", "torch", "numba", "uncached"] = describe(
        "who computes: numba is made for few rows on a CPU; uncached reads all again for each token, to be measured against",
        "auto",
    )
    quantise: Literal["int8"] | None = describe("weights of one byte each for the numba engine", None)

    @property
    def is_drawn(self) -> bool:
        """Whether chance has a part in it, so that another seed gives another text."""
        return self.temperature != 0.0 and (self.beams is None or self.sample_beams)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LogSettings:
    """What is written down and shown."""

    folder: str = describe("folder of runs", "runs")
    every: Count = describe("steps between lines of metrics.jsonl", 10)
    sample_seconds: Positive | None = describe(
        "least seconds between sample texts on the console, which come with evaluations", 60.0
    )
    tensorboard: bool = describe("also write TensorBoard's files into the run's folder", False)
    trackio: bool = describe("also log to trackio", False)
    wandb: bool = describe("also log to Weights & Biases (offline where there is no network)", False)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    """Everything that one run is made of."""

    name: str | None = describe("name of the run (none: the recipe's)", None)
    seed: Seed = describe("seed of weights, order of the data and dropout (the split has data.seed)", 1)
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

# A dial for those who do not want to think about shapes; `--size` writes these out, and they are saved as such.
SIZES: dict[str, dict[str, int]] = {
    "nano": {"dim": 64, "layers": 2, "heads": 2, "hidden": 256, "context": 128},
    "tiny": {"dim": 128, "layers": 4, "heads": 4, "hidden": 512, "context": 256},
    "small": {"dim": 256, "layers": 6, "heads": 8, "hidden": 1024, "context": 256},
    "base": {"dim": 512, "layers": 8, "heads": 8, "hidden": 2048, "context": 512},
}
