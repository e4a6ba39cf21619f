"""GPT-2, Llama and Qwen3 on gt.nn beside `transformers`: logits, gradients, training, generation; whole and data parallel.

Next: ``conftest`` (where they run).
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch
import transformers

import gt
from examples.models import gpt2, llama
from gt.flush import counters
from tests.models.compared import check_gradients, check_training, close, load, split

VOCAB, LENGTH = 97, 12


def make_gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    ours = gpt2.GPT2(gpt2.Config(vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=2, n_head=4, dropout=0.0))
    return ours, transformers.GPT2LMHeadModel(config)


def make_llama(kind, tied):
    shared = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6, "tie_word_embeddings": tied,
    }  # fmt: skip
    own = {"max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    if kind == "llama":
        reference = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shared, **own))
    else:
        reference = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shared, **own))
    theta = reference.config.rope_parameters["rope_theta"]
    return llama.Llama(llama.Config(**shared, rope_theta=theta, qk_norm=kind == "qwen3")), reference


MAKERS = {
    "gpt2": make_gpt2, "llama": lambda: make_llama("llama", tied=False), "qwen3": lambda: make_llama("qwen3", tied=True),
}  # fmt: skip


@pytest.fixture(params=MAKERS)
def models(request, place, tmp_path):
    torch.manual_seed(0)
    ours, reference = MAKERS[request.param]()
    with torch.no_grad():
        for p in reference.parameters():  # every parameter matters: norms too
            p.add_(torch.randn_like(p) * 0.1)
    load(ours, reference, tmp_path)
    return ours, reference.eval()


def tokens(batch, seed=0):
    return np.random.default_rng(seed).integers(1, VOCAB, (batch, LENGTH))  # 0 pads: the reference leaves its gradient out


def losses(ours, reference, data):
    """The next-token loss of both."""
    targets = data[:, 1:]

    def ours_loss():
        return gt.nn.functional.cross_entropy(ours(split(data))[:, :-1].reshape(-1, VOCAB), split(targets).reshape(-1))

    def reference_loss():
        logits = reference(torch.tensor(data)).logits
        return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), torch.tensor(targets).reshape(-1))

    return ours_loss, reference_loss


def test_logits_and_gradients(models):
    ours, reference = models
    data = tokens(batch=7)
    close(ours(split(data)), reference(torch.tensor(data)).logits, "logits")
    a, b = losses(ours, reference, data)
    a().backward()
    b().backward()
    check_gradients(ours, reference)


def test_twenty_adamw_steps(models):
    ours, reference = models
    # Softmax does not see a constant added to all scores, so the keys' bias has no gradient but rounding, which Adam makes large.
    check_training(ours, reference, *losses(ours, reference, tokens(batch=8)), without={"attn.c_attn.bias": slice(32, 64)})


def test_greedy_generation_token_for_token(models):
    ours, reference = models
    data = tokens(batch=5, seed=1)[:, :5]
    want = reference.generate(torch.tensor(data), max_new_tokens=15, do_sample=False, attention_mask=torch.ones(5, 5))
    assert ours.generate(split(data), 15).tolist() == want.tolist()


def test_a_decoding_step_is_one_graph(models):
    ours, _ = models
    data = gt.tensor(tokens(batch=1)[:, :4])
    for _ in range(2):  # the first of which also loads the parameters
        ours.generate(data, 4).tolist()
    before = counters.graphs
    ours.generate(data, 8).tolist()
    assert counters.graphs - before <= 3  # the prompt, a step, and joining the tokens
    before = counters.graphs
    ours.generate(data, 8).tolist()
    assert counters.graphs == before
