"""A small Llama with random weights, written as a GGUF file: what a test of reading such files has without a download."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
import transformers

from examples.models.smollm2 import NAMES

VOCAB = 65
TEMPLATE = "{% for message in messages %}\n{{ message['content'] + '<end>' }}\n{% endfor %}"


def write_llama(target: Path, kind: str = "F32", tied: bool = True) -> transformers.LlamaForCausalLM:
    """Write the file with tables in blocks of ``kind``. Give the model with the values that the file holds."""
    torch.manual_seed(0)
    stored = gguf.GGMLQuantizationType[kind]
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        rms_norm_eps=1e-3, tie_word_embeddings=tied, rope_theta=500.0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
            if p.ndim > 1:
                p.copy_(torch.tensor(gguf.dequantize(gguf.quantize(p.numpy(), stored), stored)))
    writer = gguf.GGUFWriter(target, "llama")
    add_constants(writer, config)
    names = {name.split(".")[-1]: part for part, name in NAMES.items()}
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, p in model.state_dict().items():
        value, (*start, last, end) = p.numpy(), name.removeprefix("model.").split(".")
        part = names[last]
        if part in heads:  # rows of a head in the order of neighbours
            value = value.reshape(heads[part], 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        own = stored if value.ndim > 1 else gguf.GGMLQuantizationType.F32
        if not (tied and part == "output"):
            layer = f"blk.{start[1]}." if start else ""
            writer.add_tensor(f"{layer}{part}.{end}", gguf.quantize(value, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def add_constants(writer: gguf.GGUFWriter, config: transformers.LlamaConfig) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(VOCAB)
    writer.add_token_list(["<end>", "ab", *(chr(ord("A") + i) for i in range(VOCAB - 2))])
    writer.add_token_types([3] + [1] * (VOCAB - 1))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
