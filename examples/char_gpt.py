"""A character-level GPT trained on Python's own help text, then asked to write some.

    pip install -e '.[viz]'
    python examples/char_gpt.py                      # a few minutes on a CPU; writes char_gpt.png
    python examples/char_gpt.py --steps 30 --width 32
    python examples/char_gpt.py --checkpoint runs    # saved as it goes; the same line again goes on from there
"""

import argparse
import pydoc_data.topics

import numpy as np

import gt
from gt import nn
from gt.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, d // self.heads).transpose(1, 2) for p in self.qkv(self.norm1(x)).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocab, context, layers, width, heads):
        super().__init__()
        self.context = context
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, index):
        x = self.tokens(index) + self.places(gt.arange(index.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(data, size, context, random):
    at = random.integers(0, len(data) - context - 1, size)
    rows = np.stack([data[i : i + context + 1] for i in at])
    return gt.from_numpy(rows[:, :-1].copy()), gt.from_numpy(rows[:, 1:].copy())


def held_out_loss(model, data, context, random):
    with gt.no_grad():
        x, y = batch(data, 64, context, random)
        logits = model(x)
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1)).item()


def write(model, start, letters, length, random):
    """Sample ``length`` characters after ``start``."""
    index = {c: i for i, c in enumerate(letters)}
    text = [index[c] for c in start]
    with gt.no_grad():
        for _ in range(length):
            window = ([0] * model.context + text)[-model.context :]  # one length, so one graph
            p = F.softmax(model(gt.tensor([window]))[0, -1] / 0.8, dim=0).double().numpy()
            text.append(int(random.choice(len(letters), p=p / p.sum())))
    return "".join(letters[i] for i in text)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=600)
    options.add_argument("--width", type=int, default=128)
    options.add_argument("--checkpoint", metavar="FOLDER", help="save here every 100 steps, and go on from what is there")
    options.add_argument("--plot", default="char_gpt.png")
    args = options.parse_args()

    text = "\n".join(pydoc_data.topics.topics.values())
    text = "".join(c for c in text if 32 <= ord(c) < 127 or c == "\n")
    letters = sorted(set(text))
    index = {c: i for i, c in enumerate(letters)}
    data = np.array([index[c] for c in text])
    train, held_out = data[: -len(data) // 10], data[-len(data) // 10 :]
    gt.manual_seed(0)
    random = np.random.default_rng(0)
    context = 64
    model = GPT(len(letters), context, layers=2, width=args.width, heads=4)
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
    run = {"model": model, "optimizer": optimizer, "random": random}
    done = gt.checkpoint.resume(args.checkpoint, **run) if args.checkpoint else gt.checkpoint.Resumed()
    losses, scores = done.rest.get("seen", ([], []))
    for step in range(done.step, args.steps):
        x, y = batch(train, 16, context, random)
        logits = model(x)
        loss = F.cross_entropy(logits.reshape(-1, len(letters)), y.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9 or step == args.steps - 1:
            losses.append((step + 1, loss.item()))
        if step % 100 == 99 or step == args.steps - 1:
            scores.append((step + 1, held_out_loss(model, held_out, context, np.random.default_rng(1))))
            print(f"step {step + 1:4d}  loss {losses[-1][1]:.3f}  held out {scores[-1][1]:.3f}")
            if args.checkpoint:
                gt.checkpoint.save(args.checkpoint, {**run, "seen": (losses, scores)}, step=step + 1, keep=2)
    uniform = np.log(len(letters))
    print(f"held-out loss {scores[-1][1]:.3f} (a uniform guess: {uniform:.3f})")
    print(write(model, "The ", letters, 120, random))
    plot(losses, scores, uniform, args.plot)


def plot(losses, scores, uniform, path):
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no plot: matplotlib is not installed (pip install -e '.[viz]')")
        return
    pyplot.plot(*zip(*losses, strict=True), label="training")
    pyplot.plot(*zip(*scores, strict=True), "o-", label="held out")
    pyplot.axhline(uniform, color="gray", linestyle=":", label="a uniform guess")
    pyplot.xlabel("step")
    pyplot.ylabel("loss per character")
    pyplot.legend(loc="center right")
    pyplot.savefig(path, dpi=120)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
