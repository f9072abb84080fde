"""The predictions of each layer equal those of a plain second implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from helpers.attention_pages import small_writer
from helpers.plain_transformer import PlainTransformer
from helpers.tiny_models import VARIANTS, assert_same, draw_ids, name_variant, tiny_model
from helpers.user_errors import refused
from lilliput.interpret import lens
from lilliput.interpret.logit_lens import residual_streams, stage_logits

TEXT = "A bee saw the sea."


@pytest.mark.parametrize("case", VARIANTS, ids=name_variant)
def test_logits_of_every_layer_equal_a_plain_pass(case: dict[str, Any]) -> None:
    model, ids = tiny_model(**case), draw_ids(1, 9)
    plain = PlainTransformer(model)
    expected = plain.run(ids[0].tolist())
    with torch.inference_mode():
        streams = residual_streams(model, ids)
        assert len(streams) == len(expected.streams) == 4
        for own, other in zip(streams, expected.streams, strict=True):
            assert_same(own[0], other, 1e-9)
            assert_same(stage_logits(model, ids, own), plain.output(other), 1e-9)
        assert_same(stage_logits(model, ids, streams[-1]), model(ids)[0])


@pytest.mark.parametrize("changes", [{}, {"task": "both", "classes": 2, "norm_placement": "post"}])
def test_predictions_of_a_text(changes: dict[str, Any]) -> None:
    writer = small_writer(**changes)
    found = lens(writer, TEXT, top=2)
    ids = [writer.tokenizer.start, *writer.tokenizer.encode(TEXT)]
    assert found.tokens == [writer.tokenizer.token(id_) for id_ in ids]
    assert found.stages == ["embedding", "layer 0", "layer 1"] and found.unread == 0
    plain = PlainTransformer(writer.model)
    for stage, x in enumerate(plain.run(ids).streams):
        shares = plain.output(x).softmax(dim=-1).numpy()
        for at, target in enumerate(ids[1:]):
            assert np.isclose(found.probability[stage, at], shares[at, target], rtol=1e-9)
            assert found.rank[stage, at] == 1 + (shares[at] > shares[at, target]).sum()
        for at in range(len(ids)):
            order = np.argsort(-shares[at])[:2]
            assert found.top[stage][at] == [writer.tokenizer.token(int(id_)) for id_ in order]
            assert np.allclose(found.top_probability[stage, at], shares[at, order], rtol=1e-9)
        nats = [-np.log(shares[at, target]) for at, target in enumerate(ids[1:])]
        assert np.isclose(found.loss[stage], np.mean(nats), rtol=1e-9)


def test_as_dict_has_every_stage_and_token() -> None:
    found = lens(small_writer(), "bee", top=1).as_dict()
    assert [stage["layer"] for stage in found["stages"]] == [None, 0, 1]
    for stage in found["stages"]:
        assert [one["next"] for one in stage["predictions"]] == ["b", "e", "e", None]
        assert stage["predictions"][-1]["rank"] is None and len(stage["predictions"][-1]["top"]) == 1


def test_long_and_empty_texts() -> None:
    writer = small_writer()
    found = lens(writer, "bee " * 20)
    assert (len(found.tokens), found.unread) == (32, 81 - 32)
    assert refused(lambda: lens(writer, "")).code == "interpret.text"
    assert refused(lambda: lens(small_writer(task="classifier", classes=3), TEXT)).code == "model.task"
