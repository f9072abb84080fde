"""The arithmetic of `count` beside the model that it speaks of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lilliput.config import load_config
from lilliput.model.count import count, keys_seen, value_layers
from lilliput.model.mixing import ValueEmbedding
from lilliput.model.transformer import Transformer, build_model
from lilliput.settings import VectorSettings
from tiny import VARIANTS, draw_ids, name_variant, tiny_model, tiny_settings


def has_table(block: nn.Module) -> bool:
    return isinstance(block.attention.inner.values, ValueEmbedding)


@pytest.mark.parametrize(
    ("kind", "layers", "chosen"),
    [
        (None, 4, set()),
        ("ends", 1, {0}),
        ("ends", 4, {0, 3}),
        ("alternate", 4, {1, 3}),
        ("alternate", 5, {0, 2, 4}),
        ("all", 3, {0, 1, 2}),
    ],
)
def test_layers_with_a_table_of_values(kind: str | None, layers: int, chosen: set[int]) -> None:
    assert value_layers(kind, layers) == chosen
    blocks = tiny_model(value_embeddings=kind, layers=layers).blocks
    assert {layer for layer, block in enumerate(blocks) if has_table(block)} == chosen


@pytest.mark.parametrize("variant", VARIANTS, ids=name_variant)
def test_parameters_are_those_of_the_model(variant: dict[str, Any]) -> None:
    model = tiny_model(**variant)
    parts = model.count().parameters
    assert parts.total == sum(weight.numel() for weight in model.parameters())
    tables = [block.attention.inner.values.table for block in model.blocks if has_table(block)]
    values = sum(table.weight.numel() for table in tables)
    assert parts.blocks == sum(weight.numel() for weight in model.blocks.parameters()) - values
    assert parts.norm == sum(weight.numel() for weight in model.norm.parameters())
    table = [*model.embedding.parameters(), *model.positions.parameters()]
    assert parts.embedding == sum(weight.numel() for weight in table) + values
    assert parts.trainable == parts.total


@pytest.mark.parametrize("frozen", [True, False])
def test_pretrained_vectors(frozen: bool) -> None:
    vectors = VectorSettings(width=10, frozen=frozen)
    model = tiny_model(vectors=vectors)
    parts = model.count().parameters
    assert parts.total == sum(weight.numel() for weight in model.parameters())
    assert parts.trainable == sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert parts.total - parts.trainable == (17 * 10 if frozen else 0)


@pytest.mark.parametrize(
    "case", [{"task": "classifier"}, {"task": "both"}, {"task": "both", "bias_head": True}], ids=str
)
def test_labels(case: dict[str, Any]) -> None:
    model = tiny_model(classes=3, classifier_hidden=5, **case)
    assert model.count().parameters.total == sum(weight.numel() for weight in model.parameters())
    assert model.count().parameters.head == sum(weight.numel() for weight in model.head.parameters())


def test_both_costs_what_the_language_model_does_and_a_second_head() -> None:
    """That is paid once a row, and so counts for nothing by token; a tied head of tokens is the embedding's."""
    both, plain = (tiny_model(tied=True, **case).count() for case in ({"task": "both", "classes": 3}, {}))
    assert both.flops_per_token == plain.flops_per_token and both.cache_bytes == plain.cache_bytes
    assert both.parameters.head == (16 + 1 + 3) * 100 + 3 and plain.parameters.head == 0
    assert both.parameters.total - plain.parameters.total == both.parameters.head


@pytest.mark.parametrize(
    ("recipe", "total"), [("stories-gpt2", 70_419_537), ("speech-lm", 863_243), ("speech-classifier", 576_467)]
)
def test_published_counts(recipe: str, total: int) -> None:
    config = load_config(recipe)
    assert count(config.model, config.vectors).parameters.total == total
    assert sum(weight.numel() for weight in build_model(config.model, device="meta").parameters()) == total


def test_flops_are_six_for_each_number_of_a_matrix_and_the_causal_half_of_attention() -> None:
    model = tiny_model(feed_forward="gelu", tied=True)
    dim, layers, context = 16, 3, 24
    matrices = sum(weight.numel() for weight in model.blocks.parameters() if weight.dim() == 2) + 17 * dim
    assert model.count().flops_per_token == 6 * matrices + 6 * layers * context * dim


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 5, 24, 100])
def test_keys_seen_is_the_mean_of_the_predicate(window: int | None, causal: bool) -> None:
    from lilliput.model.attention import visible

    pos = torch.arange(24)[None]
    seen = visible(pos, pos, torch.ones_like(pos), torch.ones_like(pos), causal, window).double().sum(-1).mean().item()
    # The published formula counts half of a triangle without its diagonal's half: half a key of difference at most.
    assert keys_seen(window, 24, causal) == pytest.approx(seen, abs=0.51 if causal else 1e-9)


@pytest.mark.parametrize("window", [None, 4, (3, None)])
def test_cache_bytes_of_a_full_context(window: Any) -> None:
    settings = tiny_settings(window=window, kv_heads=2)
    model = tiny_model(window=window, kv_heads=2)
    cache = model.new_cache(1)
    with torch.inference_mode():
        model(draw_ids(1, settings.context), cache=cache)
    held = sum(
        (layer.end - layer.start) * (2 * layer.keys.shape[1] * layer.keys.shape[3] * layer.keys.element_size() + 8)
        for layer in cache.layers
    )
    assert model.count().cache_bytes == held


def saved_bytes(model: Transformer, ids: torch.Tensor) -> int:
    """Bytes of distinct storages that autograd keeps for the trunk's backward, weights excluded."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, tuple[int, torch.Tensor]] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.trunk(ids, model.begin(ids, None, None))
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("positions", ["learned", "rotary", None])
@pytest.mark.parametrize("qk_norm", [True, False])
@pytest.mark.parametrize("feed_forward", ["relu", "gelu", "relu2", "swiglu"])
@pytest.mark.parametrize("tricks", [{}, {"mix_embedding": True}, {"value_embeddings": "all"}], ids=str)
def test_activation_bytes_are_what_autograd_keeps(
    norm: str, positions: Any, qk_norm: bool, feed_forward: str, tricks: dict[str, Any]
) -> None:
    shape = {"dim": 32, "hidden": 96, "kv_heads": 2, "context": 64}
    choices = {"norm": norm, "positions": positions, "qk_norm": qk_norm, "feed_forward": feed_forward, **tricks}
    one, two = (tiny_model(**shape, **choices, layers=layers).train() for layers in (2, 3))
    ids = draw_ids(4, 64)
    block = (saved_bytes(two, ids) - saved_bytes(one, ids)) / ids.numel()
    told = two.count().activation_bytes_per_token - one.count().activation_bytes_per_token
    assert told == pytest.approx(block, rel=0.01)
