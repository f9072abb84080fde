"""Ablation equals a plain second implementation in which the heads' outputs are replaced."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.attention_pages import small_writer
from helpers.plain_transformer import PlainTransformer
from helpers.small_runs import trained
from helpers.tiny_models import VARIANTS, assert_same, draw, draw_ids, name_variant, tiny_model
from helpers.user_errors import refused
from lilliput.data.prepare.token_files import TokenFile
from lilliput.decoding.writer import Writer, load
from lilliput.evaluation.evaluate import open_evaluation
from lilliput.evaluation.generated_stories import check_story
from lilliput.evaluation.intervals import ratio_interval
from lilliput.interpret import ablate, ablate_documents, ablate_each
from lilliput.interpret.head_ablation import replacements, without_heads
from lilliput.interpret.head_names import Head
from lilliput.settings.tree import DataSettings, GenerateSettings

TEXT = "A bee saw the sea."


@pytest.mark.parametrize("case", VARIANTS, ids=name_variant)
def test_removed_heads_equal_a_plain_pass(case: dict[str, Any]) -> None:
    model = tiny_model(**case)
    plain, ids = PlainTransformer(model), draw_ids(2, 9)
    replaced = {
        Head(0, 1): torch.zeros(plain.width, dtype=torch.float64),
        Head(2, 0): draw(plain.width, seed=1),
        Head(2, 3): draw(plain.width, seed=2),
    }
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.inference_mode():
        with without_heads(model, replaced):
            removed = model(ids)
        unchanged = model(ids)
    for row in range(2):
        assert_same(removed[row], plain.run(ids[row].tolist(), replaced).logits, 1e-9)
        assert_same(unchanged[row], plain.run(ids[row].tolist()).logits, 1e-9)
    assert (removed - unchanged).abs().max() > 1e-6
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("case", VARIANTS[::4], ids=name_variant)
def test_mean_outputs_exclude_padding(case: dict[str, Any]) -> None:
    model = tiny_model(**case)
    plain, ids = PlainTransformer(model), draw_ids(2, 9)
    real = torch.ones(2, 9, dtype=torch.bool)
    real[1, 5:] = False
    found = replacements(model, [Head(1, 2), Head(2, 0)], "mean", [(ids, real)])
    rows = [plain.run(ids[0].tolist()), plain.run(ids[1, :5].tolist())]
    for head, vector in found.items():
        assert_same(vector, torch.cat([row.outputs[head] for row in rows]).mean(dim=0), 1e-10)


def plain_nats(plain: PlainTransformer, ids: list[int], replaced: dict[tuple[int, int], torch.Tensor]) -> np.ndarray:
    logs = plain.run(ids[:-1], replaced).logits.log_softmax(dim=-1)
    return np.array([-logs[at, target].item() for at, target in enumerate(ids[1:])])


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_a_text(kind: Any) -> None:
    writer = small_writer(window=(3, None), kv_heads=1)
    plain = PlainTransformer(writer.model)
    ids = [writer.tokenizer.start, *writer.tokenizer.encode(TEXT)]
    outputs = plain.run(ids[:-1]).outputs
    heads = [(1, 0), (0, 1)]
    vectors = {head: outputs[head].mean(dim=0) * (kind == "mean") for head in heads}
    found = ablate(writer, TEXT, heads, kind)
    assert found.heads == ((0, 1), (1, 0)) and found.unread == 0 and found.generated is None
    assert found.tokens == list(TEXT)
    assert np.allclose(found.nats, plain_nats(plain, ids, {}), rtol=0, atol=1e-10)
    assert np.allclose(found.ablated_nats, plain_nats(plain, ids, vectors), rtol=0, atol=1e-10)
    every = ablate_each(writer, TEXT, kind)
    assert (every.documents, every.tokens) == (1, len(TEXT)) and math.isclose(every.loss, found.loss)
    assert sorted(cost.heads for cost in every.costs) == [((0, 0),), ((0, 1),), ((1, 0),), ((1, 1),)]
    for cost in every.costs:
        assert cost.interval is None
        assert math.isclose(cost.loss, ablate(writer, TEXT, cost.heads, kind).ablated_loss, rel_tol=1e-12)
    differences = [cost.difference for cost in every.costs]
    assert differences == sorted(differences, reverse=True)


def test_generated_text_is_that_of_the_model_without_the_head() -> None:
    writer = small_writer(initialisation="xavier", norm_placement="post")
    greedy = GenerateSettings(tokens=3, temperature=0.0, engine="numba")
    found = ablate(writer, TEXT, [(0, 0), (1, 1)], generate=8, settings=greedy)
    plain = PlainTransformer(writer.model)
    zero = torch.zeros(plain.width, dtype=torch.float64)
    for text, replaced in ((found.generated, {}), (found.ablated_generated, {(0, 0): zero, (1, 1): zero})):
        ids = [writer.tokenizer.start, *writer.tokenizer.encode(TEXT)]
        new: list[int] = []
        while len(new) < 8 and writer.tokenizer.end not in new:
            new.append(int(plain.run([*ids, *new], replaced).logits[-1].argmax()))
        assert text == writer.tokenizer.decode(new)
    assert found.generated != found.ablated_generated


def test_stories_of_the_storybook_are_checked() -> None:
    writer = small_writer()
    assert ablate(writer, TEXT, [(0, 0)], generate=4).story is None, "the run has another text"
    config = dataclasses.replace(writer.config, data=DataSettings(source="storybook"))
    writer = dataclasses.replace(writer, config=config)
    found = ablate(writer, TEXT, [(0, 0)], generate=4, seed=1)
    assert found.story == check_story(config, TEXT + (found.generated or "")) and found.story
    assert found.ablated_story == check_story(config, TEXT + (found.ablated_generated or ""))
    assert found.story.position == 0 and found.story.scene == "opening"
    assert found.as_dict()["story"] == dataclasses.asdict(found.story)
    assert ablate(writer, TEXT, [(0, 0)]).story is None, "nothing was generated"


def test_generated_text_is_that_of_the_model_without_ngrams() -> None:
    writer = load(trained() / "runs" / "mine")
    alone, mixed = (GenerateSettings(temperature=0.0, mix_ngram=share) for share in (None, 1.0))
    assert writer.samples([TEXT], settings=mixed)[0].text != writer.samples([TEXT], settings=alone)[0].text
    found, expected = (ablate(writer, TEXT, [(0, 0)], generate=8, settings=settings) for settings in (mixed, alone))
    assert (found.generated, found.ablated_generated) == (expected.generated, expected.ablated_generated)


def test_a_long_text_is_truncated() -> None:
    writer = small_writer()
    found = ablate(writer, "bee " * 20, [(0, 0)])
    assert len(found.tokens) == 31 and found.unread == 80 - 31


# Documents ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened() -> tuple[Writer, TokenFile]:
    evaluation = open_evaluation(trained() / "runs" / "mine", str(trained() / "mytext.txt"))
    return evaluation.writer, evaluation.file


def reference_nats(writer: Writer, file: TokenFile, replaced: dict[Any, torch.Tensor]) -> list[float]:
    """Return the nats of each document, window by window, of the second implementation."""
    plain, context, found = PlainTransformer(writer.model), writer.config.model.context, []
    for document in range(file.documents):
        ids = [writer.tokenizer.start, *file.tokens[file.offsets[document] : file.offsets[document + 1]].tolist()]
        windows = [ids[at : at + context + 1] for at in range(0, len(ids) - 1, context)]
        found.append(sum(plain_nats(plain, window, replaced).sum() for window in windows))
    return found


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_documents(opened: tuple[Writer, TokenFile], kind: Any) -> None:
    writer, whole = opened
    short = TokenFile(  # two documents of 40 and 50 tokens: each has two windows
        np.concatenate((whole.tokens[:41], whole.tokens[:1], whole.tokens[1:51], whole.tokens[:1])),
        np.array([1, 42, 93]),
        np.array([40, 50]),
    )
    found = ablate_documents(writer, short, kind=kind, seed=3)
    assert (found.documents, found.tokens, len(found.costs)) == (2, 92, 4)
    counts = np.array([41, 51])
    normal = np.array(reference_nats(writer, short, {}))
    assert math.isclose(found.loss, normal.sum() / 92, rel_tol=1e-9)
    plain = PlainTransformer(writer.model)
    passes = []
    for document in range(2):
        ids = [writer.tokenizer.start, *short.tokens[short.offsets[document] : short.offsets[document + 1] - 1]]
        passes += [plain.run([int(one) for one in ids[at : at + 32]]) for at in range(0, len(ids), 32)]
    for cost in found.costs:
        (head,) = cost.heads
        mean = torch.cat([one.outputs[head] for one in passes]).mean(dim=0)
        nats = np.array(reference_nats(writer, short, {head: mean * (kind == "mean")}))
        assert math.isclose(cost.loss, nats.sum() / 92, rel_tol=1e-9)
        assert math.isclose(cost.difference, (nats - normal).sum() / 92, rel_tol=1e-6)
        assert cost.interval is not None
        assert np.allclose(cost.interval, ratio_interval(nats - normal, counts, seed=3), rtol=1e-6)


def test_documents_are_drawn_with_the_seed(opened: tuple[Writer, TokenFile]) -> None:
    writer, file = opened
    first, again, other = (
        ablate_documents(writer, file, [[(0, 0), (1, 1)]], documents=3, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again and first.loss != other.loss
    assert first.documents == 3 and first.costs[0].heads == ((0, 0), (1, 1))
    chosen = np.sort(np.random.default_rng(1).permutation(file.documents)[:3])
    assert first.loss == ablate_documents(writer, file.select(chosen), [[(0, 0)]]).loss


def test_errors(opened: tuple[Writer, TokenFile]) -> None:
    writer, file = opened
    assert refused(lambda: ablate(writer, TEXT, [(2, 0)])).setting == "ablate"
    assert refused(lambda: ablate(writer, TEXT, [(0, -1)])).code == "interpret.head"
    assert refused(lambda: ablate_documents(writer, file, [[]])).code == "interpret.head"
    assert refused(lambda: ablate(writer, "", [(0, 0)])).code == "interpret.text"
    encoder = small_writer(task="classifier", classes=3)
    assert refused(lambda: ablate(encoder, TEXT, [(0, 0)])).code == "model.task"
    assert refused(lambda: ablate_documents(encoder, file)).code == "model.task"


def test_a_run_loads(tmp_path: Path) -> None:
    writer = load(trained() / "runs" / "mine")
    assert ablate(writer, TEXT, [(0, 0)]).as_dict()["heads"] == ["0.0"]
