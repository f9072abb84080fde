"""Tests of GGUF files: read back with gguf's reader, computed by a second implementation, and refused by setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.exported_models import BY_ARCHITECTURE, Case, case_name, cases, exact_model, random_ids, small_tokenizer
from helpers.gguf_forward import GgufModel
from helpers.shared_data import DATA, needs_data
from helpers.tiny_models import tiny_model
from helpers.user_errors import refused
from lilliput.data.tokenizers import Tokenizer
from lilliput.exporting.comparison import encode_document
from lilliput.exporting.comparison_texts import BUILT_IN, EDGE_CASES
from lilliput.exporting.gguf_comparison import compare_metadata, compare_tensor, described_model
from lilliput.exporting.gguf_file import PRECISIONS, Precision, modelfile, tensor_type, write_file
from lilliput.exporting.gguf_file_reader import encode
from lilliput.exporting.gguf_tokenizer import check_settings, check_tokenizer, token_arrays
from lilliput.exporting.portability import choose_architecture
from lilliput.model.transformer import Transformer
from lilliput.settings.tree import GenerateSettings, TokenizerSettings

BYTES = {"vocab_size": 257}


def write(
    folder: Path, model: Transformer, precision: Precision = "f32", kind: str = "byte"
) -> tuple[Any, dict[str, Any]]:
    from gguf import GGUFReader

    file = folder / "model.gguf"
    written = write_file(file, "small", model, small_tokenizer(kind), choose_architecture(model), precision)
    reader = GGUFReader(str(file))
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    compare_metadata(written, metadata, "test")
    return reader, metadata


@pytest.mark.parametrize(("name", "case"), cases(BY_ARCHITECTURE), ids=case_name)
def test_a_file_read_back_computes_the_logits(name: str, case: Case, tmp_path: Path) -> None:
    model = exact_model(case, **BYTES)
    architecture = choose_architecture(model)
    reader, metadata = write(tmp_path, model)
    assert metadata["general.architecture"] == architecture.name == name
    tensors = {one.name: np.array(one.data) for one in reader.tensors}
    expected = architecture.tensors(model)
    assert tensors.keys() == expected.keys()
    for key, tensor in expected.items():
        assert np.array_equal(tensors[key], tensor.numpy()), key
    other, described = GgufModel(metadata, tensors), described_model(model, "f32").double()
    with torch.inference_mode():
        for ids in random_ids(model)[::4]:
            gap = np.abs(described(ids)[0].numpy() - other.logits(ids[0].tolist())).max()
            assert gap < 1e-5


def test_metadata(tmp_path: Path) -> None:
    model = exact_model(BY_ARCHITECTURE["apertus"][1], **BYTES)
    _, found = write(tmp_path, model)
    expected = {
        "apertus.context_length": 24,
        "apertus.block_count": 3,
        "apertus.attention.head_count_kv": 2,
        "apertus.attention.key_length": 6,
        "apertus.rope.freq_base": 10_000.0,
        "apertus.vocab_size": 257,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 256,
        "tokenizer.ggml.padding_token_id": 256,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
    }
    assert {key: found[key] for key in expected} == expected
    assert found["xielu.alpha_p"] == [64.0] * 3 and found["xielu.beta"] == [0.0] * 3
    assert found["tokenizer.ggml.tokens"][256] == "<|endoftext|>" and found["tokenizer.ggml.token_type"][256] == 3


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rounded_weights(precision: Precision, tmp_path: Path) -> None:
    model = exact_model(BY_ARCHITECTURE["qwen3"][0], **BYTES, dim=64, hidden=96)
    reader, _ = write(tmp_path, model, precision)
    kinds = {one.name: one.tensor_type.name.lower() for one in reader.tensors}
    assert kinds["blk.0.attn_q.weight"] == precision and kinds["blk.0.attn_norm.weight"] == "f32"
    with torch.inference_mode():
        ids = random_ids(model)[-1]
        gap = float((model(ids) - described_model(model, precision)(ids)).abs().max())
    assert gap == 0.0 if precision == "f32" else 1e-5 < gap < (0.02 if precision == "f16" else 1.0)


def test_rows_that_q8_0_cannot_hold_are_float16() -> None:
    assert tensor_type("blk.0.attn_q.weight", torch.zeros(8, 48), "q8_0") == "f16"
    assert tensor_type("position_embd.weight", torch.zeros(8, 64), "q8_0") == "f32"


def test_a_changed_tensor_and_changed_metadata_are_found() -> None:
    tensor = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    damaged = tensor.numpy().copy()
    compare_tensor("t", tensor, "f32", "f32", damaged, "test")
    damaged[3, 1] += 1e-6
    assert refused(lambda: compare_tensor("t", tensor, "f32", "f32", damaged, "test")).code == "export.different"
    assert refused(lambda: compare_metadata({"a": 1}, {"a": 2}, "test")).code == "export.different"


@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_ids_from_the_arrays_of_the_file(kind: str) -> None:
    tokenizer = small_tokenizer(kind)
    assert_same_ids(tokenizer)


@needs_data
def test_ids_of_gpt2s_tokenizer() -> None:
    assert_same_ids(Tokenizer.load(DATA / "gpt2-bpe"))


def assert_same_ids(tokenizer: Tokenizer) -> None:
    arrays = token_arrays(tokenizer, tokenizer.vocab_size + 3)
    assert arrays.types[-3:] == [5, 5, 5] and len({*arrays.tokens}) == tokenizer.vocab_size + 3
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": arrays.tokens,
        "tokenizer.ggml.token_type": arrays.types,
        "tokenizer.ggml.merges": arrays.merges,
        "tokenizer.ggml.bos_token_id": tokenizer.start,
        "tokenizer.ggml.add_bos_token": True,
    }
    texts = [*BUILT_IN, *EDGE_CASES]
    assert encode(metadata, texts) == [encode_document(tokenizer, text) for text in texts]


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"kind": "word"}, "tokenizer.kind"),
        ({"kind": "character"}, "tokenizer.kind"),
        ({"kind": "bpe", "lowercase": True}, "tokenizer.lowercase"),
        ({"kind": "byte", "single_spaces": True}, "tokenizer.single_spaces"),
    ],
    ids=str,
)
def test_a_tokenizer_that_no_type_holds_is_refused(settings: dict[str, Any], setting: str) -> None:
    error = refused(lambda: check_settings(TokenizerSettings(**settings)))
    assert (error.code, error.setting) == ("export.tokenizer", setting)


@pytest.mark.parametrize("kind", ["word", "character", "bpe-lowercase"])
def test_a_trained_tokenizer_that_no_type_holds_is_refused(kind: str) -> None:
    assert refused(lambda: check_tokenizer(small_tokenizer(kind))).code == "export.tokenizer"


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"qk_norm": True, "window": 4}, "model.window"),
        ({"qk_norm": True, "feed_forward": "gelu"}, "model.feed_forward"),
        ({"feed_forward": "relu2", "bias_feed_forward": True}, "model.bias_feed_forward"),
        ({"norm": "layer", "positions": "learned", "feed_forward": "relu"}, "model.feed_forward"),
    ],
    ids=str,
)
def test_a_refusal_names_the_setting(changes: Case, setting: str) -> None:
    model = tiny_model(**{"norm": "rms", "positions": "rotary", "feed_forward": "relu2"} | changes)
    error = refused(lambda: choose_architecture(model))
    assert (error.code, error.setting) == ("export.unsupported", setting)


def test_the_modelfile_of_ollama() -> None:
    lines = modelfile("a.gguf", 64, GenerateSettings(temperature=0.5, top_p=0.9, tokens=30)).splitlines()
    assert lines[0] == "FROM ./a.gguf"
    assert {"PARAMETER num_ctx 64", "PARAMETER temperature 0.5", "PARAMETER top_p 0.9", "PARAMETER top_k 0"} <= {*lines}
