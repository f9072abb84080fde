"""The formulas of `counting`, compared with real models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from helpers.tiny_models import VARIANTS, draw_ids, name_variant, tiny_model, tiny_settings
from lilliput.model.counting import activations, count, keys_seen, recomputed_flops, value_layers
from lilliput.model.embeddings import ValueEmbedding
from lilliput.model.recompute import measure_kept, use_recompute
from lilliput.model.transformer import Transformer, build_model
from lilliput.settings.loading import load_config
from lilliput.settings.tree import VectorSettings


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
def test_layers_with_value_embeddings(kind: str | None, layers: int, chosen: set[int]) -> None:
    assert value_layers(tiny_settings(value_embeddings=kind, layers=layers)) == chosen
    blocks = tiny_model(value_embeddings=kind, layers=layers).blocks
    assert {layer for layer, block in enumerate(blocks) if has_table(block)} == chosen


@pytest.mark.parametrize("variant", VARIANTS, ids=name_variant)
def test_parameters_equal_those_of_the_model(variant: dict[str, Any]) -> None:
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


def test_task_both_costs_a_language_model_plus_a_head() -> None:
    """The label head is applied once per row and adds no FLOPs per token; a tied language head has no parameters."""
    both, plain = (tiny_model(tied=True, **case).count() for case in ({"task": "both", "classes": 3}, {}))
    assert both.flops_per_token == plain.flops_per_token and both.cache_bytes == plain.cache_bytes
    assert both.parameters.head == (16 + 1 + 3) * 100 + 3 and plain.parameters.head == 0
    assert both.parameters.total - plain.parameters.total == both.parameters.head


@pytest.mark.parametrize(
    ("recipe", "total"), [("published-gpt2", 70_419_537), ("speech-lm", 863_243), ("speech-classifier", 576_467)]
)
def test_published_counts(recipe: str, total: int) -> None:
    config = load_config(recipe)
    assert count(config.model, config.vectors).parameters.total == total
    assert sum(weight.numel() for weight in build_model(config.model, device="meta").parameters()) == total


@pytest.mark.parametrize(("head_dim", "heads_width"), [(None, 16), (6, 24), (1, 4)])
def test_flops_equal_the_formula(head_dim: int | None, heads_width: int) -> None:
    model = tiny_model(feed_forward="gelu", tied=True, head_dim=head_dim)
    dim, layers, context = 16, 3, 24
    matrices = sum(weight.numel() for weight in model.blocks.parameters() if weight.dim() == 2) + 17 * dim
    assert model.count().flops_per_token == 6 * matrices + 6 * layers * context * heads_width


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 5, 24, 100])
def test_keys_seen_equals_the_mean_of_the_mask(window: int | None, causal: bool) -> None:
    from lilliput.model.attention_mask import visible

    pos = torch.arange(24)[None]
    seen = visible(pos, pos, torch.ones_like(pos), torch.ones_like(pos), causal, window).double().sum(-1).mean().item()
    # The published formula leaves out half of the diagonal: a difference of at most half a key.
    assert keys_seen(window, 24, causal) == pytest.approx(seen, abs=0.51 if causal else 1e-9)


@pytest.mark.parametrize("head_dim", [None, 6, 1])
@pytest.mark.parametrize("window", [None, 4, (3, None)])
def test_cache_bytes_of_a_full_context(window: Any, head_dim: int | None) -> None:
    settings = tiny_settings(window=window, kv_heads=2)
    model = tiny_model(window=window, kv_heads=2, head_dim=head_dim, positions="sinusoidal")
    cache = model.new_cache(1)
    with torch.inference_mode():
        model(draw_ids(1, settings.context), cache=cache)
    held = sum(layer.held[:, :, :, : layer.bound(settings.context)].nbytes for layer in cache.layers)
    assert model.count().cache_bytes == held
    if window is None:
        assert held == 8 * 2 * 2 * (head_dim or 4) * 3 * settings.context


def saved_bytes(model: Transformer, ids: torch.Tensor) -> int:
    return measure_kept(model, lambda: model.trunk(ids, model.begin(ids, None, None)))


@pytest.mark.parametrize("norm", ["layer", "layer-unbiased", "rms"])
@pytest.mark.parametrize("positions", ["learned", "rotary", None])
@pytest.mark.parametrize("qk_norm", [True, False])
@pytest.mark.parametrize("feed_forward", ["relu", "gelu", "relu2", "swiglu"])
@pytest.mark.parametrize("tricks", [{}, {"value_embeddings": "all", "head_dim": 12}], ids=str)
def test_activation_bytes_equal_what_autograd_saves(
    norm: str, positions: Any, qk_norm: bool, feed_forward: str, tricks: dict[str, Any]
) -> None:
    shape = {"dim": 32, "hidden": 96, "kv_heads": 2, "context": 64}
    choices = {"norm": norm, "positions": positions, "qk_norm": qk_norm, "feed_forward": feed_forward, **tricks}
    one, two = (tiny_model(**shape, **choices, layers=layers).train() for layers in (2, 3))
    ids = draw_ids(4, 64)
    block = (saved_bytes(two, ids) - saved_bytes(one, ids)) / ids.numel()
    counted = two.count().activation_bytes_per_token - one.count().activation_bytes_per_token
    assert counted == pytest.approx(block, rel=0.01)


@pytest.mark.parametrize("tricks", [{}, {"value_embeddings": "all"}], ids=str)
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("kind", ["block", "feed-forward"])
def test_activation_bytes_with_recomputation(kind: Any, every: int, placement: str, tricks: dict[str, Any]) -> None:
    shape = {"dim": 32, "hidden": 96, "kv_heads": 2, "context": 64, "norm_placement": placement, **tricks}
    one, two = (tiny_model(**shape, layers=layers).train() for layers in (2, 4))
    for model in (one, two):
        use_recompute(model, kind, every)
    ids = draw_ids(4, 64)
    measured = (saved_bytes(two, ids) - saved_bytes(one, ids)) / ids.numel()
    counted = [8 * sum(activations(model.settings, kind, every).kept) for model in (two, one)]
    assert counted[0] - counted[1] == pytest.approx(measured, rel=0.01)


def test_peak_of_activations() -> None:
    settings = tiny_settings(layers=5)
    plain = activations(settings)
    whole = plain.whole[0]
    assert plain.kept == plain.whole and plain.most == 5 * whole
    assert activations(settings, "block").most == 4 * settings.dim + whole
    assert (
        activations(settings, "block", 2).most == 2 * settings.dim + 3 * whole
    )  # blocks 0, 2 and 4; block 4 is whole at the peak
    half = activations(settings, "feed-forward")
    assert settings.dim < half.kept[0] < whole and half.most == 4 * half.kept[0] + whole


def test_saved_megabytes_of_the_published_benchmark() -> None:
    """12 layers, dim 192, 8 x 256 tokens save 343 MB; with recomputation 20.5, 182 and 173 MB."""
    settings = tiny_settings(dim=192, layers=12, heads=6, kv_heads=6, hidden=768, context=256, qk_norm=True)
    kinds = ((), ("block",), ("block", 2), ("feed-forward",))
    kept = [sum(activations(settings, *kind).kept) for kind in kinds]  # type: ignore[arg-type]
    megabytes = [8 * 256 * 4 * (numbers + settings.dim) / 1e6 for numbers in kept]  # plus the input of the final norm
    assert megabytes == pytest.approx([343, 20.5, 182, 173], rel=0.005)


@pytest.mark.parametrize("head_dim", [None, 6])
def test_recomputed_flops(head_dim: int | None) -> None:
    settings = tiny_settings(layers=4, window=(5, None), head_dim=head_dim)
    head = 6 * settings.dim * 17
    of_blocks = count(settings, VectorSettings()).flops_per_token - head
    assert recomputed_flops(settings, "block", 1) == pytest.approx(of_blocks / 3, abs=1)
    assert recomputed_flops(settings, None, 1) == 0
    # With every second block: only the layers with window 5, or two feed-forwards.
    assert recomputed_flops(settings, "block", 2) < of_blocks / 6
    matrices = sum(weight.numel() for weight in tiny_model(layers=4).blocks[0].feed_forward.inner.parameters())
    assert recomputed_flops(settings, "feed-forward", 2) == 2 * 2 * matrices
