"""The model of `decoding.py`, the works, and the peers: the same weights in other programs.

Owns: `Work`, the model with its random weights, and a `Write` for each peer (transformers, llama.cpp, CTranslate2) and number
of threads. Before a peer is measured, its logits after 64 tokens are compared with those of Lilliput: within 1e-3 in float32,
with 8-bit weights within a fifth of the logits' standard deviation. End-of-text is turned off or forbidden, and `decoding.py`
checks the number of tokens. Does not own: time measurement.

llama.cpp is called through the C bindings of llama-cpp-python, without its Python classes. It stores keys and values as
16-bit floats, its default.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lilliput.model.transformer import Transformer, build_model
from lilliput.settings.tree import ModelSettings

DIM, LAYERS, HEADS, HIDDEN, VOCABULARY, CONTEXT = 288, 6, 6, 1152, 4096, 256
INSIDE = 2 * HIDDEN // 3  # of a gated feed-forward
BASE, EPSILON = 10_000.0, 1e-5  # of rotary positions and of norms
SPECIAL = 3  # the unknown, start and end tokens of CTranslate2: the first ids, which no prompt contains
CHECKED = 64  # tokens after which logits are compared


@dataclass(frozen=True)
class Work:
    """Generate `tokens` tokens after each of `rows` prompts of `prompt` tokens: the likeliest, or sampled from the `top_k`."""

    name: str
    rows: int
    prompt: int
    tokens: int
    beams: int = 1
    top_k: int | None = None

    def prompts(self) -> list[list[int]]:
        generator = torch.Generator().manual_seed(self.rows)
        found: list[list[int]] = torch.randint(
            SPECIAL, VOCABULARY, (self.rows, self.prompt), generator=generator
        ).tolist()
        return found


ONE, BATCH = Work("one stream, greedy", 1, 8, 200), Work("batch of 32, greedy", 32, 8, 200)
BEAMS = (Work("beam 5, one prompt", 1, 8, 200, beams=5), Work("beam 10, one prompt", 1, 8, 200, beams=10))
SAMPLES = Work("50 prompts, 40 tokens each, top-k 10", 50, 5, 40, top_k=10)
WORKS = (ONE, BATCH, *BEAMS, SAMPLES)

Write = Callable[[Work, int], list[list[int]]]  # (work, tokens) -> the generated ids of each prompt


def random_model(context: int = CONTEXT, window: int | None = None, layers: int = LAYERS) -> Transformer:
    """Return a model with random weights in all matrices. (The default initialisation makes every block the identity.)"""
    settings = ModelSettings(
        vocab_size=VOCABULARY,
        dim=DIM,
        layers=layers,
        heads=HEADS,
        kv_heads=HEADS,
        hidden=HIDDEN,
        context=context,
        window=window,
        norm="rms",
        positions="rotary",
        rotary_base=BASE,
        feed_forward="swiglu",
        tied=True,
        qk_norm=False,
        initialisation="xavier",
    )
    return build_model(settings, seed=1).eval()


def check(name: str, theirs: Callable[[list[int]], NDArray[np.float32]], model: Transformer, exact: bool) -> None:
    """Exit unless the peer's logits (V) after a text equal those of Lilliput."""
    text = Work("check", 1, CHECKED, 0).prompts()[0]
    with torch.inference_mode():
        ours = model(torch.tensor([text]))[0, -1].numpy()
    error, most = float(np.abs(theirs(text) - ours).max()), 1e-3 if exact else 0.2 * float(ours.std())
    if not error < most:
        raise SystemExit(f"{name}: logits differ from those of Lilliput by {error:.2g} (expected less than {most:.2g})")


def llama_weights(model: Transformer) -> dict[str, Tensor]:
    """Return the weights by their names in transformers; the head is tied to the embedding."""
    weights = {"model.embed_tokens.weight": model.embedding.table.weight, "model.norm.weight": model.norm.weight}
    for layer, block in enumerate(model.blocks):
        attention, feed_forward = block.attention, block.feed_forward
        q, k, v = attention.inner.qkv.weight.chunk(3)
        gate, up = feed_forward.inner.up.weight.chunk(2)
        parts = {
            "input_layernorm": attention.norm.weight,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": attention.inner.out.weight,
            "post_attention_layernorm": feed_forward.norm.weight,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": feed_forward.inner.down.weight,
        }
        weights |= {f"model.layers.{layer}.{part}.weight": tensor for part, tensor in parts.items()}
    return {name: tensor.detach() for name, tensor in weights.items()}


# transformers


def transformers(threads: int) -> Write:
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(threads)
    model = random_model()
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=DIM,
        intermediate_size=INSIDE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=EPSILON,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    theirs = LlamaForCausalLM(config).eval()
    weights = llama_weights(model)
    theirs.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})

    def logits(text: list[int]) -> NDArray[np.float32]:
        with torch.inference_mode():
            found: NDArray[np.float32] = theirs(torch.tensor([text])).logits[0, -1].numpy()
        return found

    check("transformers", logits, model, exact=True)

    def write(work: Work, tokens: int) -> list[list[int]]:
        ids = torch.tensor(work.prompts())
        settings = GenerationConfig(
            max_new_tokens=tokens,
            num_beams=work.beams,
            do_sample=work.top_k is not None,
            top_k=work.top_k,
            temperature=None if work.top_k is None else 1.0,
            eos_token_id=None,
            pad_token_id=0,
        )
        with torch.inference_mode():
            found = theirs.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        texts: list[list[int]] = found[:, work.prompt :].tolist()
        return texts

    return write


# llama.cpp


def llama_cpp(threads: int, quantised: bool) -> Write:
    import llama_cpp as library

    @library.llama_log_callback
    def ignore_log(level: int, text: bytes, data: ctypes.c_void_p) -> None:
        pass

    library.llama_log_set(ignore_log, ctypes.c_void_p(0))
    library.llama_backend_init()
    model, loading, reading = (
        random_model(),
        library.llama_model_default_params(),
        library.llama_context_default_params(),
    )
    loading.use_mmap = False
    reading.n_ctx = reading.n_batch = CONTEXT
    reading.n_threads = reading.n_threads_batch = threads
    with tempfile.TemporaryDirectory() as folder:
        write_gguf(model, path := Path(folder) / "model.gguf", quantised)
        theirs = library.llama_model_load_from_file(bytes(path), loading)
    assert theirs is not None, "llama.cpp could not load the file"
    context = library.llama_init_from_model(theirs, reading)
    greedy = library.llama_sampler_init_greedy()

    def read(ids: list[int]) -> None:
        tokens = (library.llama_token * len(ids))(*ids)  # must outlive the batch, which points to it
        assert library.llama_decode(context, library.llama_batch_get_one(tokens, len(ids))) == 0, "llama_decode failed"

    def forget() -> None:
        library.llama_memory_clear(library.llama_get_memory(context), True)

    def logits(text: list[int]) -> NDArray[np.float32]:
        read(text)
        found = np.ctypeslib.as_array(library.llama_get_logits_ith(context, -1), shape=(VOCABULARY,)).copy()
        forget()
        return found

    check("llama.cpp", logits, model, exact=not quantised)

    def write(work: Work, tokens: int) -> list[list[int]]:
        assert work == ONE and ignore_log is not None, "one stream only; and the callback must not be garbage-collected"
        (ids,), text = work.prompts(), []
        for _ in range(tokens):
            read(ids)
            ids = [library.llama_sampler_sample(greedy, context, -1)]
            text += ids
        forget()
        return [text]

    return write


def write_gguf(model: Transformer, path: Path, quantised: bool) -> None:
    """Write the model for llama.cpp, without tokenizer; matrices in 8 bits (Q8_0) or float32."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(DIM)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INSIDE)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(DIM // HEADS)
    writer.add_rope_freq_base(BASE)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    for name, tensor in llama_weights(model).items():
        if "q_proj" in name or "k_proj" in name:  # llama.cpp rotates adjacent numbers
            tensor = tensor.view(HEADS, 2, DIM // HEADS // 2, DIM).transpose(1, 2).reshape(DIM, DIM)
        kind = gguf.GGMLQuantizationType.Q8_0 if quantised and tensor.dim() == 2 else gguf.GGMLQuantizationType.F32
        array = gguf.quants.quantize(tensor.numpy(), kind)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# CTranslate2


def ctranslate2(threads: int) -> Write:
    import ctranslate2 as library

    model = random_model()
    with tempfile.TemporaryDirectory() as folder:
        write_spec(model, path := Path(folder) / "model")
        theirs = library.Generator(str(path), device="cpu", intra_threads=threads, compute_type="float32")

    def logits(text: list[int]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = np.asarray(theirs.forward_batch([[str(id_) for id_ in text]]))[0, -1]
        return found

    check("CTranslate2", logits, model, exact=True)

    def write(work: Work, tokens: int) -> list[list[int]]:
        found = theirs.generate_batch(
            [[str(id_) for id_ in prompt] for prompt in work.prompts()],
            beam_size=work.beams,
            sampling_topk=work.top_k or 1,
            max_length=tokens,
            min_length=tokens,  # forbids the end token until then
            include_prompt_in_result=False,
        )
        return [result.sequences_ids[0] for result in found]

    return write


def write_spec(model: Transformer, path: Path) -> None:
    """Write the model for CTranslate2; the name of a token is its id."""
    from ctranslate2.specs import TransformerDecoderModelSpec, common_spec

    weights = {name: tensor.numpy() for name, tensor in llama_weights(model).items()}
    spec = TransformerDecoderModelSpec.from_config(
        LAYERS,
        HEADS,
        activation=common_spec.Activation.SWISH,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,  # 0: the whole head
        rotary_interleave=False,
        rotary_base=BASE,
    )
    decoder: Any = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = decoder.projection.weight = weights["model.embed_tokens.weight"]
    decoder.layer_norm.gamma = weights["model.norm.weight"]
    for number, layer in enumerate(decoder.layer):
        part = {
            name.removeprefix(f"model.layers.{number}.").removesuffix(".weight"): array
            for name, array in weights.items()
        }
        layer.self_attention.layer_norm.gamma = part["input_layernorm"]
        layer.self_attention.linear[0].weight = np.concatenate([part[f"self_attn.{kind}_proj"] for kind in "qkv"])
        layer.self_attention.linear[1].weight = part["self_attn.o_proj"]
        layer.ffn.layer_norm.gamma = part["post_attention_layernorm"]
        layer.ffn.linear_0.weight = part["mlp.gate_proj"]
        layer.ffn.linear_0_noact.weight = part["mlp.up_proj"]
        layer.ffn.linear_1.weight = part["mlp.down_proj"]
    spec.register_vocabulary([str(id_) for id_ in range(VOCABULARY)])
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (str(id_) for id_ in range(SPECIAL))
    spec.config.layer_norm_epsilon = EPSILON
    spec.validate()
    spec.optimize(quantization="float32")
    path.mkdir()
    spec.save(str(path))
