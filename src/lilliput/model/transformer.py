"""The transformer: a causal language model, an encoder classifier, or a decoder that also predicts a label.

Owns: building the model from the selected parts, the forward pass, and creating its cache. Does not own: the parts
(`model_choices`), initial weights (`initialisation`), the losses (`language_loss`, `classifier_loss`), the counts
(`counting`), text, or training. `forward` reads no settings: they are applied when the model is built.

B rows, T positions, C dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from lilliput.kernels.dropout import Dropout
from lilliput.kernels.openmp_waiting import adapt_waiting
from lilliput.model import model_choices as choices
from lilliput.model.attention import Capture, PassState, SelfAttention
from lilliput.model.counting import Count, count
from lilliput.model.embeddings import Unmixed, ValueEmbedding
from lilliput.model.initialisation import initialise
from lilliput.model.kv_cache import Cache, LayerCache
from lilliput.model.layers import PreNorm
from lilliput.model.norms import QueryKeyNorm
from lilliput.model.shapes import head_width, layer_windows
from lilliput.model.task_choices import TASKS
from lilliput.settings.tree import ModelSettings, VectorSettings

Part = Callable[[Tensor, PassState], Tensor]
Runner = Callable[[Part, Tensor, PassState], Tensor]


def run_straight(part: Part, x: Tensor, state: PassState) -> Tensor:
    return part(x, state)


class Block(nn.Module):
    """Attention and feed-forward. `recompute` replaces `run_block` and `run_feed_forward` (to save less for the backward pass)
    and `call` (to compile each half)."""

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
    """A model, built by `build_model`. Returns logits: (B, classes) for model.task classifier, else (B, T, V)."""

    def __init__(self, settings: ModelSettings, vectors: VectorSettings) -> None:
        super().__init__()
        vocab_size, hidden, kv_heads = settings.vocab_size, settings.hidden, settings.kv_heads
        assert vocab_size is not None and hidden is not None and kv_heads is not None, "settings must be resolved"
        self.settings, self.vectors = settings, vectors
        task, norm = TASKS[settings.task], choices.NORMS[settings.norm]
        placement, feed_forward = (
            choices.NORM_PLACEMENTS[settings.norm_placement],
            choices.FEED_FORWARDS[settings.feed_forward],
        )
        self.causal = task.tokens
        self.head_dim = head_width(settings)
        self.windows = layer_windows(settings.window, settings.layers)
        self.embedding = choices.embedding_of(vectors).build(settings, vectors)
        self.positions = choices.positions_of(settings).build(settings)
        self.dropout = Dropout(settings.dropout)
        with_values = choices.value_layers(settings)
        blocks = []
        for layer, window in enumerate(self.windows):
            attention = SelfAttention(
                settings.dim,
                settings.heads,
                kv_heads,
                self.head_dim,
                window,
                QueryKeyNorm(settings.heads, kv_heads, self.head_dim) if settings.qk_norm else nn.Identity(),
                ValueEmbedding(vocab_size, kv_heads * self.head_dim) if layer in with_values else Unmixed(),
                dropout=settings.dropout,
                bias_input=settings.bias_attention_input,
                bias_output=settings.bias_attention_output,
                layer=layer,
            )
            inner = feed_forward.build(settings.dim, hidden, settings.bias_feed_forward)
            blocks.append(
                Block(
                    placement.build(norm.build(settings.dim), attention, settings.dropout),
                    placement.build(norm.build(settings.dim), inner, settings.dropout),
                )
            )
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm.build(settings.dim) if settings.final_norm else nn.Identity()
        self.head = task.build(settings)
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
        """Return the logits for ids (B, T).

        `pos`: positions within the document, -1 for padding (None: consecutive, after the tokens in the cache). `doc`:
        document numbers of packed rows, 0 for padding (None: a row is one document). `cache`: keys and values of earlier
        tokens; the new ones are added.
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
        adapt_waiting()
        state = PassState(ids, self.causal, pos, doc, cache, capture, self.positions)
        state.turn = self.positions.turn(state.pos[:1] if state.plain else state.pos, self.embedding.table.weight.dtype)
        return state

    def trunk(self, ids: Tensor, state: PassState) -> Tensor:
        """Return the hidden states (B, T, C) that the head takes."""
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
        """Return the parameters by part, FLOPs per token, and bytes of activations and cache."""
        return count(self.settings, self.vectors, next(self.parameters()).element_size())

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch the model to evaluation mode (no dropout), and back on exit."""
    was_training = model.training
    if was_training:  # decoding enters this for every token: do not visit all modules without need
        model.eval()
    try:
        yield
    finally:
        if was_training:
            model.train()


def build_model(
    settings: ModelSettings,
    vectors: VectorSettings | None = None,
    seed: int | None = None,
    device: str | torch.device = "cpu",
) -> Transformer:
    """Build a model with new weights. A seed gives the same weights on every device, because they are drawn on the CPU.

    Without a seed the weights are torch's defaults, for callers that load weights or count parameters on device "meta".
    """
    with torch.device("cpu" if seed is not None else device):
        model = Transformer(settings, vectors or VectorSettings())
    if seed is not None:
        rule = choices.INITIALISERS[settings.initialisation]
        initialise(model, rule.build(model, torch.Generator().manual_seed(seed)))
    return model.to(device)


def weights(model: Transformer) -> dict[str, Tensor]:
    """Return the weights by name; the matrix of a tied head is listed once, as the embedding."""
    tensors = dict(model.state_dict())
    if model.settings.tied:
        del tensors["head.project.weight"]
    return tensors


def load_weights(model: Transformer, tensors: dict[str, Tensor]) -> None:
    if model.settings.tied:
        tensors = tensors | {"head.project.weight": tensors["embedding.table.weight"]}
    model.load_state_dict(tensors)
