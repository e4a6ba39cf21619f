"""Train a small Llama in stages on workers of their own, each working on another microbatch:

    python examples/pipeline.py --workers 4 --stages 2 --microbatches 4
    gt plan examples/pipeline.py --workers 4 -- --stages 2

Workers beyond one for each stage split the microbatches. The losses printed are those of the whole model on one worker.
`gt plan` predicts how long stages wait for each other: more microbatches, less waiting.
"""

from __future__ import annotations

import gt
from examples.models.counting import batches, options, show
from examples.models.llama import Block, Config, rotary
from gt import nn
from gt.nn import functional as F  # noqa: N812

CONFIG = Config(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=4, head_dim=8,
)  # fmt: skip


class Layers(nn.Module):
    """Some of a decoder's layers: [rows, tokens, hidden] -> the same. The first stage embeds, the last gives logits."""

    def __init__(self, config: Config, layers: range, first: bool, last: bool) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size) if first else None
        self.blocks = nn.ModuleList(Block(config, i) for i in layers)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps) if last else None
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False) if last else None

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        turn = rotary(gt.arange(x.shape[1]), self.config.head_dim, self.config.rope_theta)
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks:
            x = block(x, turn, None)
        return self.head(self.norm(x)) if self.head is not None and self.norm is not None else x


def stages_of(config: Config, count: int) -> list[Layers]:
    """Cut a decoder into stages of about equal numbers of layers."""
    ends = [config.num_hidden_layers * i // count for i in range(count + 1)]
    return [Layers(config, range(ends[i], ends[i + 1]), i == 0, i == count - 1) for i in range(count)]


def next_token_loss(logits: gt.Tensor, following: gt.Tensor) -> gt.Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), following.reshape(-1))


def train(steps: int, stages: int, microbatches: int) -> list[float]:
    """Give the loss of each step."""
    gt.manual_seed(0)
    pipe = gt.pipeline(stages_of(CONFIG, stages), microbatches=microbatches, loss_fn=next_token_loss)
    optimizer = gt.optim.AdamW(pipe.parameters(), lr=1e-2)
    losses = []
    for tokens, following in batches(steps):
        optimizer.zero_grad()
        loss = pipe.step(tokens, target=following)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    given = options(steps=20, workers=4, stages=4, microbatches=4)
    show(train(given.steps, given.stages, given.microbatches))


if __name__ == "__main__":
    main()
