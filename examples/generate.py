"""Text from a Llama or Qwen3 in a folder as Hugging Face's hub has them: config.json and *.safetensors.

    python examples/generate.py ~/models/Qwen3-0.6B --prompt "The capital of France is" --count 20    # extra `chat`: a tokenizer
    python examples/generate.py ~/models/Qwen3-0.6B --tokens 785,6722,315 --count 20                  # without one
    python examples/generate.py ~/models/Qwen3-0.6B --tokens 785,6722,315 --workers 4

Each token is one run of one graph: keys and values stay on the worker in tensors of a fixed size.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import gt
from examples.models.llama import Config, Llama

KINDS = ("llama", "qwen3")


def read_config(folder: Path) -> Config:
    """Read what config.json says of the model. Ends the script for a kind of model that this is not."""
    given = json.loads((folder / "config.json").read_text())
    kind, heads = given.get("model_type"), given["num_attention_heads"]
    if kind not in KINDS:
        raise SystemExit(f"{folder}/config.json: expected model_type {' or '.join(KINDS)}, got {kind!r}")
    scaling = given.get("rope_scaling") or given.get("rope_parameters") or {}
    if scaling.get("rope_type", "default") != "default":
        raise SystemExit(f"{folder}/config.json: positions are scaled by {scaling['rope_type']!r}, which this example does not do")
    return Config(
        vocab_size=given["vocab_size"], hidden_size=given["hidden_size"], intermediate_size=given["intermediate_size"],
        num_hidden_layers=given["num_hidden_layers"], num_attention_heads=heads,
        num_key_value_heads=given.get("num_key_value_heads", heads), head_dim=given.get("head_dim") or given["hidden_size"] // heads,
        rms_norm_eps=given["rms_norm_eps"], rope_theta=given.get("rope_theta") or scaling.get("rope_theta", 10000.0),
        tie_word_embeddings=given.get("tie_word_embeddings", False), qk_norm=kind == "qwen3",
    )  # fmt: skip


def load(folder: Path) -> Llama:
    """Make the model with the folder's weights."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise SystemExit(f"{folder}: no .safetensors file is there")
    weights = {name: array for file in files for name, array in gt.load(file).items()}
    model = Llama(read_config(folder))
    if model.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict({name: array.float() for name, array in weights.items()})
    return model


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--prompt", default="Once upon a time")
    options.add_argument("--tokens", help="numbers of tokens in place of a prompt, as in 1,2,3; numbers come out")
    options.add_argument("--count", type=int, default=20, help="tokens to make")
    options.add_argument("--workers", type=int, default=0)
    args = options.parse_args()
    if args.workers:
        gt.gpu_workers(args.workers)

    tokenizer = None
    if args.tokens is None:
        from tokenizers import Tokenizer  # extra `chat`

        tokenizer = Tokenizer.from_file(str(args.folder / "tokenizer.json"))
    begin = [int(t) for t in args.tokens.split(",")] if tokenizer is None else tokenizer.encode(args.prompt).ids
    model = load(args.folder)
    start = time.perf_counter()
    tokens = model.generate(gt.tensor([begin]), args.count)[0].tolist()
    seconds = time.perf_counter() - start
    print(",".join(map(str, tokens)) if tokenizer is None else tokenizer.decode(tokens))
    print(f"[{args.count} tokens in {seconds:.1f} s]")


if __name__ == "__main__":
    main()
