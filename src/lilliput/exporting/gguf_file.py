"""Writing a GGUF file: metadata, tokenizer and tensors, in float32, float16 or 8 bits.

Owns: the metadata, the type of each tensor, and the Modelfile of Ollama. Does not own: names of tensors
(`gguf_architectures`), the arrays of the tokenizer (`gguf_tokenizer`), reading the file back (`gguf_file_reader`,
`gguf_comparison`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lilliput.data.tokenizers import Tokenizer
from lilliput.exporting.gguf_architectures import XIELU, Architecture
from lilliput.exporting.gguf_tokenizer import token_arrays
from lilliput.exporting.stock_configs import feed_forward_of
from lilliput.kernels.decoding_pass.layout import NORM_EPSILON
from lilliput.model.transformer import Transformer
from lilliput.settings.tree import GenerateSettings

Precision = Literal["f32", "f16", "q8_0"]
PRECISIONS: tuple[Precision, ...] = ("f32", "f16", "q8_0")
BLOCK = 32  # weights of one q8_0 block, which share a scale
MODELFILE = "Modelfile"


def tensor_type(name: str, tensor: Tensor, precision: Precision) -> Precision:
    """Return the type of a tensor in the file: vectors and positions stay float32, as in llama.cpp's converter.

    Rows that are not a multiple of 32 cannot be q8_0: they are float16.
    """
    if tensor.dim() < 2 or name == "position_embd.weight":
        return "f32"
    if precision == "q8_0" and tensor.shape[-1] % BLOCK:
        return "f16"
    return precision


def stored(tensor: Tensor, kind: Precision) -> tuple[NDArray[Any], Any]:
    """Return the data of a tensor in the file and its type in gguf."""
    from gguf import GGMLQuantizationType, quants

    number = GGMLQuantizationType[kind.upper()]
    return quants.quantize(np.ascontiguousarray(tensor.float().numpy()), number), number


def write_file(
    path: Path, name: str, model: Transformer, tokenizer: Tokenizer, architecture: Architecture, precision: Precision
) -> dict[str, Any]:
    """Write the file and return its metadata."""
    from gguf import GGUFWriter, LlamaFileType

    writer = GGUFWriter(str(path), architecture.name)
    writer.add_name(name)
    file_types = {
        "f32": LlamaFileType.ALL_F32,
        "f16": LlamaFileType.MOSTLY_F16,
        "q8_0": LlamaFileType.MOSTLY_Q8_0,
    }
    writer.add_file_type(file_types[precision])
    writer.add_quantization_version(2)
    add_shapes(writer, model, architecture)
    add_tokenizer(writer, tokenizer, model)
    for tensor_name, tensor in architecture.tensors(model).items():
        data, kind = stored(tensor, tensor_type(tensor_name, tensor, precision))
        writer.add_tensor(tensor_name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {key: one.value for key, one in writer.kv_data[0].items()}


def add_shapes(writer: Any, model: Transformer, architecture: Architecture) -> None:
    settings = model.settings
    writer.add_vocab_size(settings.vocab_size)
    writer.add_context_length(settings.context)
    writer.add_embedding_length(settings.dim)
    writer.add_block_count(settings.layers)
    writer.add_feed_forward_length(feed_forward_of(model).down.in_features)
    writer.add_head_count(settings.heads)
    writer.add_head_count_kv(settings.heads if architecture.kv_heads == "repeated" else settings.kv_heads)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    if architecture.norm_key == "rms":
        writer.add_layer_norm_rms_eps(NORM_EPSILON)
    else:
        writer.add_layer_norm_eps(NORM_EPSILON)
    if architecture.rotates:
        writer.add_rope_dimension_count(model.head_dim)
        writer.add_rope_freq_base(settings.rotary_base)
    if architecture.name == "gptneox":
        writer.add_parallel_residual(False)
    if architecture.name == "apertus":
        for key, value in XIELU.items():
            getattr(writer, f"add_xielu_{key}")([value] * settings.layers)


def add_tokenizer(writer: Any, tokenizer: Tokenizer, model: Transformer) -> None:
    """Add the tokenizer. The start token, which begins every document in training, is put before every text."""
    assert model.settings.vocab_size is not None
    arrays = token_arrays(tokenizer, model.settings.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(arrays.tokens)
    writer.add_token_types(arrays.types)
    writer.add_token_merges(arrays.merges)
    writer.add_bos_token_id(tokenizer.start)
    writer.add_eos_token_id(tokenizer.end)
    writer.add_pad_token_id(tokenizer.end if tokenizer.pad is None else tokenizer.pad)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)


def modelfile(file_name: str, context: int, settings: GenerateSettings) -> str:
    """Return the Modelfile of Ollama: the prompt is continued as it is, without a chat template."""
    lines = [f"FROM ./{file_name}", "TEMPLATE {{ .Prompt }}", f"PARAMETER num_ctx {context}"]
    lines += [f"PARAMETER num_predict {settings.tokens}", f"PARAMETER temperature {settings.temperature:g}"]
    # Ollama's defaults (top_k 40, top_p 0.9, repeat_penalty 1.1) would change the distribution.
    lines += [f"PARAMETER top_k {settings.top_k or 0}", f"PARAMETER top_p {settings.top_p or 1.0:g}"]
    lines += [f"PARAMETER min_p {settings.min_p or 0.0:g}"]
    lines += [f"PARAMETER repeat_penalty {settings.repetition_penalty:g}"]
    return "\n".join(lines) + "\n"
