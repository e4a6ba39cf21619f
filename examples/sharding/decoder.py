"""Train a small Llama on made-up text. How it is split over workers is only in the YAML file:

    GT_CONFIG=examples/sharding/data.yaml   python -m examples.sharding.decoder --workers 4
    GT_CONFIG=examples/sharding/tensor.yaml python -m examples.sharding.decoder --workers 4

Also: sequence.yaml, fsdp.yaml, grid.yaml. The losses printed are the same for all of them, and for none.
`gt compile examples/sharding/decoder.py --config FILE --workers 4` shows what each of them communicates.
"""

from __future__ import annotations

import gt
from examples.models.counting import batches, options, show
from examples.models.llama import Config, Llama
from gt.nn import functional as F  # noqa: N812

CONFIG = Config(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, head_dim=8,
)  # fmt: skip


def train(steps: int) -> list[float]:
    """Give the loss of each step."""
    gt.manual_seed(0)
    model = Llama(CONFIG)
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-2)
    text, losses = batches(steps), []
    for _ in range(steps):
        with gt.signal.context("batch"):
            tokens, following = next(text)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).reshape(-1, CONFIG.vocab_size), following.reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    given = options(steps=20, workers=1)
    show(train(given.steps))


if __name__ == "__main__":
    main()
