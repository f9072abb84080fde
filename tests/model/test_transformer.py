"""Equivalences, properties, weights and learning of models over combinations of all choices."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers.tiny_models import (
    AXES,
    VARIANTS,
    assert_same,
    draw,
    draw_ids,
    gradients,
    name_variant,
    pairs,
    tiny_model,
    tiny_settings,
)
from lilliput.model.transformer import Transformer, build_model, load_weights, weights
from lilliput.settings.tree import ModelSettings, VectorSettings

Case = dict[str, Any]
matrix = pytest.mark.parametrize("case", VARIANTS, ids=name_variant)
# An encoder has no token logits, so neither a tied head nor a soft cap.
ENCODERS = [{**case, "tied": False, "soft_cap": None, "task": "classifier", "classes": 3} for case in VARIANTS]
encoders = pytest.mark.parametrize("case", ENCODERS, ids=name_variant)


def test_variants_contain_every_pair_of_choices() -> None:
    covered = set().union(*(pairs(case) for case in VARIANTS))
    for (a, xs), (b, ys) in itertools.combinations(AXES.items(), 2):
        assert all(((a, x), (b, y)) in covered for x in xs for y in ys), (a, b)


def test_every_block_and_the_order_matter() -> None:
    """The output depends on every block, and on the order if there are positions or a causal mask."""
    for case in VARIANTS:
        model, ids = tiny_model(**case), draw_ids(1, 8)
        whole = model(ids)
        for index in range(3):
            block = model.blocks[index]
            model.blocks[index] = nn.Identity()
            model.blocks[index].forward = lambda x, state: x  # type: ignore[method-assign]
            assert (model(ids) - whole).abs().max() > 1e-3, (case, index)
            model.blocks[index] = block


# ---- equivalences ----------------------------------------------------------------------------------------------------


def left_padded(lengths: tuple[int, ...], total: int) -> Tensor:
    return torch.stack([torch.arange(total) - (total - length) for length in lengths]).clamp(min=-1)


@matrix
@torch.inference_mode()
def test_cached_decoding_equals_one_pass(case: Case) -> None:
    model, ids = tiny_model(**case), draw_ids(2, 12)
    whole, cache = model(ids), model.new_cache(2)
    for at in range(12):
        assert_same(model(ids[:, at : at + 1], cache=cache)[:, 0], whole[:, at])
    assert cache.length == 12


@matrix
@torch.inference_mode()
def test_chunked_prefill_equals_one_pass(case: Case) -> None:
    model, ids = tiny_model(**case), draw_ids(2, 16)
    whole = model(ids)
    for chunks in ((16,), (5, 1, 7, 3), (1, 15), (15, 1), (4, 4, 4, 4)):
        cache, parts = model.new_cache(2), ids.split(chunks, dim=1)
        assert_same(torch.cat([model(part, cache=cache) for part in parts], dim=1), whole)


@matrix
@torch.inference_mode()
def test_left_padded_rows_equal_single_rows(case: Case) -> None:
    """Prefilled in chunks, some of which are only padding, then one token at a time."""
    lengths, total = (12, 7, 2), 12
    model, ids, pos = tiny_model(**case), draw_ids(3, 16), left_padded(lengths, total)
    pos = torch.cat((pos, pos[:, -1:] + torch.arange(1, 5)), dim=1)
    cache = model.new_cache(3)
    logits = torch.cat(
        [
            model(i, pos=p, cache=cache)
            for i, p in zip(ids.split((4, 8, 1, 1, 1, 1), dim=1), pos.split((4, 8, 1, 1, 1, 1), dim=1), strict=True)
        ],
        dim=1,
    )
    for row, length in enumerate(lengths):
        assert_same(logits[row, total - length :], model(ids[row : row + 1, total - length :])[0])
    assert torch.isfinite(logits).all()
    assert_same(model(ids, pos=pos)[pos >= 0], logits[pos >= 0])  # and without a cache


@matrix
def test_packed_documents_equal_single_documents(case: Case) -> None:
    """Logits and gradients of two rows with several documents and padding."""
    lengths = ((4, 6, 3), (9, 2))
    model, ids, towards = tiny_model(**case), draw_ids(2, 15), draw(2, 15, 17, seed=3)
    doc, pos = torch.zeros(2, 15, dtype=torch.long), torch.full((2, 15), -1)
    for row, pieces in enumerate(lengths):
        for number, (start, length) in enumerate(
            zip(itertools.accumulate((0, *pieces)), pieces, strict=False), start=1
        ):
            doc[row, start : start + length], pos[row, start : start + length] = number, torch.arange(length)
    packed = model(ids, pos=pos, doc=doc)
    (packed * towards)[doc != 0].sum().backward()
    together = gradients(model)
    model.zero_grad(set_to_none=True)
    for row in range(2):
        for number in range(1, int(doc[row].max()) + 1):
            here = doc[row] == number
            alone = model(ids[row, here][None])
            assert_same(packed[row, here], alone[0])
            (alone[0] * towards[row, here]).sum().backward()
    apart = gradients(model)
    assert together.keys() == apart.keys()
    for name in apart:
        assert_same(together[name], apart[name], 1e-11)


@matrix
def test_right_padding_has_no_effect(case: Case) -> None:
    """In a causal model, neither the padding tokens nor their marking affects other tokens."""
    model, ids = tiny_model(**case), draw_ids(2, 10)
    longer = torch.cat((ids, draw_ids(2, 4, seed=9)), dim=1)
    pos = torch.arange(14).expand(2, -1).masked_fill(torch.arange(14) >= 10, -1)
    plain = model(ids)
    assert_same(model(longer)[:, :10], plain)
    assert_same(model(longer, pos=pos)[:, :10], plain)
    assert torch.isfinite(model(longer, pos=pos)).all()


@encoders
def test_encoder_ignores_padding(case: Case) -> None:
    """Logits and gradients, for padding on either side, of any ids, marked by position or by document."""
    model, ids = tiny_model(**case), draw_ids(1, 7)
    plain = model(ids)
    plain.square().sum().backward()
    expected = gradients(model)
    for left, filler in ((0, 0), (3, 5), (5, 16)):
        ids_padded, pos = torch.full((1, 12), filler), torch.full((1, 12), -1)
        ids_padded[:, left : left + 7], pos[:, left : left + 7] = ids, torch.arange(7)
        model.zero_grad(set_to_none=True)
        by_pos = model(ids_padded, pos=pos)
        assert_same(by_pos, plain)
        assert_same(model(ids_padded, pos=pos, doc=(pos >= 0).long()), plain)
        by_pos.square().sum().backward()
        for name, grad in gradients(model).items():
            assert_same(grad, expected[name], 1e-11)


@encoders
def test_encoder_batch_equals_single_rows(case: Case) -> None:
    model, ids = tiny_model(**case), draw_ids(3, 9)
    lengths = (9, 4, 1)
    pos = torch.stack([torch.arange(9).masked_fill(torch.arange(9) >= length, -1) for length in lengths])
    together = model(ids, pos=pos)
    assert together.shape == (3, 3)
    for row, length in enumerate(lengths):
        assert_same(together[row], model(ids[row : row + 1, :length])[0])


@matrix
def test_accumulated_gradients_equal_one_batch(case: Case) -> None:
    from lilliput.model.language_loss import IGNORED, language_loss

    model, ids, targets = tiny_model(**case), draw_ids(5, 8), draw_ids(5, 8, seed=1)
    targets[0, 3:], targets[4, :7] = IGNORED, IGNORED
    total = int((targets != IGNORED).sum())
    (language_loss(model, ids, targets, None, None).goal / total).backward()
    whole = gradients(model)
    model.zero_grad(set_to_none=True)
    for rows in ([0], [1, 2, 3], [4]):
        (language_loss(model, ids[rows], targets[rows], None, None).goal / total).backward()
    for name, grad in gradients(model).items():
        assert_same(grad, whole[name])


# ---- properties ------------------------------------------------------------------------------------------------------


def reach(model: Transformer, ids: Tensor, at: int) -> Tensor:
    """Return (T,): the largest gradient of a random mix of the outputs at `at` with respect to each token's embedding."""
    leaves: list[Tensor] = []

    def cut(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[0]

    handle = model.embedding.register_forward_hook(cut)
    out = model.trunk(ids, model.begin(ids, None, None))[0, at]
    handle.remove()
    (out * draw(*out.shape, seed=5)).sum().backward()
    return leaves[0].grad[0].abs().amax(dim=-1)


@matrix
def test_causality_and_receptive_field_of_windows(case: Case) -> None:
    """L layers with window n reach L x (n - 1) tokens back: the gradient is zero exactly outside."""
    model, ids = tiny_model(**case), draw_ids(1, 14)
    furthest = sum(14 if window is None else window - 1 for window in model.windows)
    for at in (0, 5, 13):
        felt = reach(model, ids, at)
        inside = torch.tensor([max(0, at - furthest) <= s <= at for s in range(14)])
        assert not felt[~inside].any()
        assert (felt[inside] > 0).all()


@given(window=st.integers(1, 5), layers=st.integers(1, 3), at=st.integers(0, 12), causal=st.booleans())
@example(window=1, layers=3, at=6, causal=True)
@hypothesis_settings(max_examples=30)
def test_receptive_field_of_any_window(window: int, layers: int, at: int, causal: bool) -> None:
    task: Case = {} if causal else {"task": "classifier", "classes": 2}
    model = tiny_model(window=window, layers=layers, **task)
    felt, furthest = reach(model, draw_ids(1, 13), at), layers * (window - 1)
    inside = torch.tensor([at - furthest <= s <= (at if causal else at + furthest) for s in range(13)])
    assert not felt[~inside].any()
    assert (felt[inside] > 0).all()


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_output_depends_on_positions(positions: str) -> None:
    """A common shift of positions changes the output of absolute encodings, but not of rotary ones."""
    model, ids = tiny_model(positions=positions), draw_ids(1, 6)
    here, there = model(ids), model(ids, pos=torch.arange(6)[None] + 11)
    spread = model(ids, pos=torch.tensor([[0, 2, 3, 7, 8, 20]]))
    assert (spread - here).abs().max() > 1e-3
    assert ((there - here).abs().max() < 1e-12) == (positions == "rotary")


def test_without_positions_order_has_no_effect() -> None:
    model, ids = tiny_model(positions=None, task="classifier", classes=3), draw_ids(1, 8)
    assert_same(model(ids.flip(1)), model(ids))


# ---- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("initialisation", ["xavier", "gpt2", "zero-residual", "copying"])
def test_weights_depend_only_on_the_seed(initialisation: str) -> None:
    settings = tiny_settings(initialisation=initialisation, biases="all", positions="learned", norm="layer")
    torch.manual_seed(1)
    first = weights(build_model(settings, seed=3))
    torch.manual_seed(2)
    again, other = weights(build_model(settings, seed=3)), weights(build_model(settings, seed=4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn = [name for name in first if first[name].dim() > 1 and first[name].any()]
    assert drawn
    assert all(not torch.equal(first[name], other[name]) for name in drawn)
    for name, weight in first.items():
        if weight.dim() == 1:
            assert torch.equal(
                weight, torch.ones_like(weight) if name.endswith("norm.weight") else torch.zeros_like(weight)
            )


def test_gpt2_initialisation() -> None:
    model = build_model(
        tiny_settings(
            initialisation="gpt2", dim=128, hidden=512, vocab_size=500, layers=8, positions="learned", context=64
        ),
        seed=0,
    )
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            expected = 0.02 / math.sqrt(16) if name.endswith(("out.weight", "down.weight")) else 0.02
            assert abs(weight.std().item() / expected - 1) < 0.05, name
            assert abs(weight.mean().item()) < 5 * expected / math.sqrt(weight.numel()), name


@pytest.mark.parametrize("head_dim", [None, 40])
def test_xavier_initialisation(head_dim: int | None) -> None:
    model = build_model(tiny_settings(dim=64, hidden=256, head_dim=head_dim), seed=0)
    assert model.blocks[0].attention.inner.out.weight.shape == (64, 4 * (head_dim or 16))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            bound = math.sqrt(6 / (module.in_features + module.out_features))
            assert 0.98 * bound < module.weight.abs().max() <= bound, name


@pytest.mark.parametrize("head_dim", [None, 6, 2])
def test_copying_initialisation(head_dim: int | None) -> None:
    """The first layer adds nothing; in later layers, attention to one token returns half of its vector.

    Heads that are together narrower than the model return half of a projection to their width.
    """
    model = build_model(tiny_settings(initialisation="copying", head_dim=head_dim), seed=0).double()
    first, *later = [block.attention.inner for block in model.blocks]
    assert not first.out.weight.any()
    ids = draw_ids(2, 1)  # one token, which gets all attention
    x = draw(2, 1, 16)
    for attention in later:
        state = model.begin(ids, None, None)
        copied = attention(x, state)
        expected = 0.5 * x if head_dim != 2 else attention(2 * copied, state)  # a projection, applied twice
        torch.testing.assert_close(copied, expected, rtol=0, atol=1e-6)  # weights were drawn in float32
        assert torch.linalg.matrix_rank(attention.out.weight) == min(16, 4 * model.head_dim)
    assert not any(block.feed_forward.inner.down.weight.any() for block in model.blocks)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_zero_residual_initialisation(placement: str) -> None:
    """The initial logits do not depend on the blocks, and the initial loss is log V."""
    settings = tiny_settings(initialisation="zero-residual", norm_placement=placement, vocab_size=500, dim=64)
    model, ids = build_model(settings, seed=0).double(), draw_ids(4, 20, vocab_size=500)
    logits = model(ids)
    with torch.no_grad():
        for block in model.blocks:
            for weight in (block.attention.inner.qkv.weight, block.feed_forward.inner.up.weight):
                weight.normal_()
    assert torch.equal(model(ids), logits)
    expected = model.embedding(ids)
    if placement == "post":
        for block in model.blocks:
            expected = block.feed_forward.norm(block.attention.norm(expected))
    assert_same(logits, model.head.project(model.norm(expected)))
    loss = F.cross_entropy(logits.flatten(0, 1), draw_ids(80, seed=1, vocab_size=500))
    assert abs(loss.item() - math.log(500)) < 0.1


def test_tied_head_shares_one_parameter() -> None:
    tied, untied = tiny_model(tied=True), tiny_model()
    table = tied.embedding.table.weight
    assert tied.head.project.weight is table
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters()) == 17 * 16
    load_weights(untied, weights(tied) | {"head.project.weight": table.detach()})
    ids, towards = draw_ids(2, 6), draw(2, 6, 17)
    for model in (tied, untied):
        (model(ids) * towards).sum().backward()
    ends = untied.embedding.table.weight.grad, untied.head.project.weight.grad
    assert all(end.abs().sum() > 0 for end in ends)
    assert_same(table.grad, ends[0] + ends[1])


@matrix
def test_weights_load_into_another_model(case: Case) -> None:
    model, other = tiny_model(**case), tiny_model(seed=5, **case)
    carried = weights(model)
    assert len({tensor.data_ptr() for tensor in carried.values()}) == len(
        carried
    )  # safetensors does not accept shared memory
    load_weights(other, carried)
    assert torch.equal(model(draw_ids(1, 5)), other(draw_ids(1, 5)))
    assert (other.head.project.weight is other.embedding.table.weight) == case["tied"]


PUBLISHED = {
    "bias_attention_output": True,
    "bias_feed_forward": True,
    "qk_norm": False,
    "feed_forward": "relu",
    "norm": "layer",
}
SPEECH = {
    **PUBLISHED,
    "vocab_size": 5755,
    "context": 32,
    "positions": "learned",
    "dim": 64,
    "heads": 2,
    "kv_heads": 2,
    "layers": 4,
}
COUNTS = {
    "stories": (
        {**PUBLISHED, "vocab_size": 50257, "dim": 512, "layers": 6, "heads": 8, "kv_heads": 8, "hidden": 2048}
        | {"positions": "sinusoidal", "norm_placement": "post", "bias_head": True},
        {"embedding": 25_731_584, "blocks": 18_905_088, "norm": 1_024, "head": 25_781_841, "total": 70_419_537},
    ),
    "speech": ({**SPEECH, "hidden": 100, "bias_head": True}, {"total": 863_243}),
    "speech classifier": ({**SPEECH, "hidden": 256, "task": "classifier", "classes": 3}, {"total": 576_467}),
}


@pytest.mark.parametrize("published", COUNTS.values(), ids=list(COUNTS))
def test_published_parameter_counts(published: tuple[Case, dict[str, int]]) -> None:
    settings, expected = published
    model = build_model(ModelSettings(**settings), device="meta")
    parts = {
        "embedding": (model.embedding, model.positions),
        "blocks": (model.blocks,),
        "norm": (model.norm,),
        "head": (model.head,),
    }
    counts = {part: sum(p.numel() for m in modules for p in m.parameters()) for part, modules in parts.items()}
    counts["total"] = sum(p.numel() for p in model.parameters())
    assert counts["total"] == sum(counts[part] for part in parts)
    assert {part: counts[part] for part in expected} == expected


def test_pretrained_vectors_can_be_frozen() -> None:
    model = tiny_model(vectors=VectorSettings(width=9))
    assert not model.embedding.table.weight.requires_grad
    assert model.embedding.project.weight.requires_grad


# ---- learning --------------------------------------------------------------------------------------------------------


@matrix
def test_every_variant_overfits_one_batch(case: Case) -> None:
    torch.manual_seed(0)
    model, ids = build_model(tiny_settings(**case), seed=1), draw_ids(4, 9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 2.0 and losses[-1] < 0.1 * losses[0], (losses[0], losses[-1])


@encoders
def test_every_encoder_overfits_one_batch(case: Case) -> None:
    model, ids, labels = build_model(tiny_settings(**case), seed=1), draw_ids(6, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = F.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
