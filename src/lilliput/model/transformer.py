"""The family: one trunk for the decoder language model, the encoder classifier, and the decoder that also tells a
label.


Owns: putting the chosen parts together once, initialisation, the forward pass, and the model's own cache.
Does not own: the parts, the loss (`loss`), the counts (`counting`), text, or training. `forward` asks no
setting anything: every choice was made when the model was built.

B rows, T positions, C dim, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lilliput.model.attention import Capture, PassState, SelfAttention
from lilliput.model.counting import Count, count, learned_rows, spans, value_layers
from lilliput.model.kv_cache import Cache, LayerCache
from lilliput.model.layers import (
    ACTIVATIONS,
    PLACEMENTS,
    BothHeads,
    ClassifierHead,
    FeedForward,
    LanguageHead,
    LearnedEmbedding,
    MendedEmbedding,
    PreNorm,
    PretrainedEmbedding,
)
from lilliput.model.mixing import Unmixed, ValueEmbedding
from lilliput.model.norms import QueryKeyNorm, build_norm
from lilliput.model.positions import build_positions
from lilliput.settings.tree import ModelSettings, VectorSettings

Part = Callable[[Tensor, PassState], Tensor]
Runner = Callable[[Part, Tensor, PassState], Tensor]


def run_straight(part: Part, x: Tensor, state: PassState) -> Tensor:
    return part(x, state)


class Block(nn.Module):
    """`run_block` and `run_feed_forward` are how much of either is kept for the backward pass, `call` is how each half is
    called: straight, unless `recompute` has set them."""

    run_block: Runner
    run_feed_forward: Runner
    call: Runner

    def __init__(self, attention: PreNorm, feed_forward: PreNorm) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.run_block = self.run_feed_forward = self.call = run_straight

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        return self.run_block(self.compute, x, state)

    def compute(self, x: Tensor, state: PassState) -> Tensor:
        attended = self.call(self.attention, x, state)
        return self.run_feed_forward(partial(self.call, self.feed_forward), attended, state)


class Transformer(nn.Module):
    """Built by `build_model`. Integers in, logits out: (B, T, V) for language and for both, (B, classes) for a classifier."""

    def __init__(self, settings: ModelSettings, vectors: VectorSettings) -> None:
        super().__init__()
        vocab_size, hidden, kv_heads = settings.vocab_size, settings.hidden, settings.kv_heads
        assert vocab_size is not None and hidden is not None and kv_heads is not None, "settings must be resolved"
        self.settings, self.vectors = settings, vectors
        self.causal = settings.task != "classifier"
        self.head_dim = settings.dim // settings.heads
        self.windows = spans(settings.window, settings.layers)
        self.embedding = build_embedding(settings, vectors)
        self.positions = build_positions(settings)
        self.dropout = nn.Dropout(settings.dropout)
        placement, activation = PLACEMENTS[settings.norm_placement], ACTIVATIONS[settings.feed_forward]
        with_table = value_layers(settings.value_embeddings, settings.layers)
        blocks = []
        for layer, window in enumerate(self.windows):
            attention = SelfAttention(
                settings.dim,
                settings.heads,
                kv_heads,
                window,
                self.positions,
                QueryKeyNorm(settings.heads, kv_heads, self.head_dim) if settings.qk_norm else nn.Identity(),
                ValueEmbedding(vocab_size, kv_heads * self.head_dim) if layer in with_table else Unmixed(),
                dropout=settings.dropout,
                bias_input=settings.bias_attention_input,
                bias_output=settings.bias_attention_output,
                layer=layer,
            )
            feed_forward = FeedForward(settings.dim, hidden, activation, settings.bias_feed_forward)
            blocks.append(
                Block(
                    placement(build_norm(settings.norm, settings.dim), attention, settings.dropout),
                    placement(build_norm(settings.norm, settings.dim), feed_forward, settings.dropout),
                )
            )
        self.blocks = nn.ModuleList(blocks)
        self.norm = build_norm(settings.norm, settings.dim) if settings.final_norm else nn.Identity()
        self.head = build_head(settings)
        if settings.tied:
            self.head.project.weight = self.embedding.table.weight

    def forward(
        self,
        ids: Tensor,
        pos: Tensor | None = None,
        doc: Tensor | None = None,
        cache: Cache | None = None,
        capture: Capture | None = None,
    ) -> Tensor:
        """Logits for ids (B, T).

        `pos`: positions within the document, -1 for padding (None: in order after what the cache holds). `doc`:
        document numbers of packed rows, 0 for padding (None: a row is one document). `cache`: of earlier tokens, which
        is advanced.
        """
        state = self.begin(ids, pos, doc, cache, capture)
        logits: Tensor = self.head(self.trunk(ids, state), state)
        return logits

    def begin(
        self,
        ids: Tensor,
        pos: Tensor | None,
        doc: Tensor | None,
        cache: Cache | None = None,
        capture: Capture | None = None,
    ) -> PassState:
        state = PassState(ids, self.causal, pos, doc, cache, capture)
        state.turn = self.positions.turn(state.pos[:1] if state.plain else state.pos, self.embedding.table.weight.dtype)
        return state

    def trunk(self, ids: Tensor, state: PassState) -> Tensor:
        """(B, T, C): everything but the head."""
        x = self.dropout(self.positions.embed(self.embedding(ids), state.pos))
        for block in self.blocks:
            x = block(x, state)
        if state.cache is not None:
            state.cache.advance(ids.shape[1])
        normed: Tensor = self.norm(x)
        return normed

    def new_cache(self, rows: int) -> Cache:
        like = next(self.blocks.parameters())
        kv_heads = self.settings.kv_heads
        assert kv_heads is not None and self.causal, "an encoder has nothing to cache"
        return Cache([LayerCache(rows, kv_heads, self.head_dim, window, like) for window in self.windows], rows)

    def count(self) -> Count:
        """Parameters by part, FLOPs per token, bytes of activations and cache."""
        return count(self.settings, self.vectors, next(self.parameters()).element_size())

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, and back to what it was."""
    was = model.training
    if was:  # else every module would be walked through for nothing, at every token that is written
        model.eval()
    try:
        yield
    finally:
        if was:
            model.train()


def build_embedding(settings: ModelSettings, vectors: VectorSettings) -> LearnedEmbedding | PretrainedEmbedding:
    assert settings.vocab_size is not None
    if vectors.width is not None:
        scale = math.sqrt(vectors.width) if vectors.scaled else 1.0
        if rows := learned_rows(vectors):
            return MendedEmbedding(settings.vocab_size, vectors.width, settings.dim, scale, rows)
        return PretrainedEmbedding(settings.vocab_size, vectors.width, settings.dim, scale, vectors.frozen)
    # Sines of size one would drown a small table: Vaswani et al. 2017, section 3.4, scale it up.
    scale = math.sqrt(settings.dim) if settings.positions == "sinusoidal" else 1.0
    return LearnedEmbedding(settings.vocab_size, settings.dim, scale)


def build_head(settings: ModelSettings) -> LanguageHead | ClassifierHead:
    dim, hidden, classes = settings.dim, settings.classifier_hidden, settings.classes
    assert settings.vocab_size is not None
    if settings.task == "language":
        return LanguageHead(dim, settings.vocab_size, settings.bias_head, settings.soft_cap)
    assert classes is not None
    if settings.task == "classifier":
        return ClassifierHead(dim, hidden, classes)
    return BothHeads(dim, settings.vocab_size, settings.bias_head, settings.soft_cap, hidden, classes)


def build_model(
    settings: ModelSettings,
    vectors: VectorSettings | None = None,
    seed: int | None = None,
    device: str | torch.device = "cpu",
) -> Transformer:
    """A model with fresh weights. The same seed gives the same weights on every device: they are drawn on the CPU.

    Without a seed the weights are as torch leaves them, for those who load their own (or count on device "meta").
    """
    with torch.device("cpu" if seed is not None else device):
        model = Transformer(settings, vectors or VectorSettings())
    if seed is not None:
        initialise(model, settings, torch.Generator().manual_seed(seed))
    return model.to(device)


def weights(model: Transformer) -> dict[str, Tensor]:
    """Weights by name; a tied head is the embedding's and does not come twice."""
    tensors = dict(model.state_dict())
    if model.settings.tied:
        del tensors["head.project.weight"]
    return tensors


def load_weights(model: Transformer, tensors: dict[str, Tensor]) -> None:
    if model.settings.tied:
        tensors = tensors | {"head.project.weight": tensors["embedding.table.weight"]}
    model.load_state_dict(tensors)


@torch.no_grad()
def put_vectors(model: Transformer, table: NDArray[np.float32], covered: NDArray[np.bool_]) -> None:
    """Word vectors (tokens, width) into a model with fresh weights; `covered` tells which tokens have one.

    The model's vocabulary may have more tokens, which are not covered. Rows that are to be learned keep the numbers that
    they were initialised with, and so depend on the seed alone, but stretched to the size of a vector's: else a special
    token would be drowned by words, or drown them.
    """
    embedding = model.embedding
    assert isinstance(embedding, PretrainedEmbedding), "the settings have no vectors"
    weight, given = embedding.table.weight, torch.from_numpy(np.array(table)).to(embedding.table.weight)
    known = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
    known[: len(covered)] = torch.from_numpy(np.array(covered)).to(weight.device)
    assert known.any() and given.shape == (len(covered), weight.shape[1]), "no vectors, or not this model's"
    vectors = given[known[: len(given)]]
    weight[known] = vectors
    if model.vectors.uncovered == "average":
        weight[~known] = vectors.mean(dim=0)
        return
    size = vectors.square().mean().sqrt()
    if isinstance(embedding, MendedEmbedding):
        embedding.row.copy_(torch.where(known, -1, torch.cumsum(~known, dim=0) - 1))
        assert int((~known).sum()) == len(embedding.learned.weight), "vectors.rows is not the number of such rows"
        rows = embedding.learned.weight
        rows.mul_(size / rows.square().mean().sqrt())
        weight[~known] = rows  # never looked up; a tied head reads them
    elif not known.all():
        assert weight.requires_grad, "rows of a frozen table are not learned: vectors.rows is missing"
        rows = weight[~known]
        weight[~known] = rows * (size / rows.square().mean().sqrt())


@torch.no_grad()
def initialise(model: Transformer, settings: ModelSettings, generator: torch.Generator) -> None:
    """Matrices by the chosen rule, in the order of the modules; biases 0, norms 1.

    xavier: Glorot and Bengio 2010, uniform. gpt2: Radford et al. 2019, normal 0.02, and the projections that write into
    the residual stream divided by sqrt(2 x layers). zero-residual: as xavier, but those projections are 0 and the two
    ends small, so that a block begins as the identity and the loss at log V. copying: see `begin_by_copying`.
    """
    rule = settings.initialisation
    writers = [module for module in model.modules() if isinstance(module, SelfAttention | FeedForward)]
    residual = {id(module.out if isinstance(module, SelfAttention) else module.down) for module in writers}
    ends = {id(model.head.project)} if isinstance(model.head, LanguageHead) else set()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            std = (
                1.0 / math.sqrt(module.embedding_dim) if rule in ("xavier", "copying") else 0.02
            )  # unit length, or small
            module.weight.normal_(0.0, std, generator=generator)
        elif isinstance(module, nn.Linear):
            if id(module) in ends and settings.tied:
                pass  # drawn as the embedding
            elif rule == "gpt2":
                down = math.sqrt(2 * settings.layers) if id(module) in residual else 1.0
                module.weight.normal_(0.0, 0.02 / down, generator=generator)
            elif rule != "xavier" and id(module) in residual:
                module.weight.zero_()
            elif rule != "xavier" and id(module) in ends:
                module.weight.normal_(0.0, 0.02, generator=generator)
            else:
                nn.init.xavier_uniform_(module.weight, generator=generator)
            if module.bias is not None:
                module.bias.zero_()
    if rule == "copying":
        begin_by_copying([module for module in writers if isinstance(module, SelfAttention)][1:], generator)


def begin_by_copying(attentions: list[SelfAttention], generator: torch.Generator) -> None:
    """Values and output projection as an orthogonal matrix and half its transpose: what a head looks at is passed on as
    it is, and a tied head reads it as the token that it was. To recall a word, the model has only to learn where to look.
    """
    for attention in attentions:
        values = nn.init.orthogonal_(torch.empty_like(attention.out.weight), generator=generator)
        attention.qkv.weight[-len(values) :] = values
        attention.out.weight.copy_(0.5 * values.t())
