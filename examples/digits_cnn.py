"""A small convolutional network on scikit-learn's handwritten digits, with a plot of the loss.

    pip install -e '.[examples,viz]'
    python examples/digits_cnn.py                 # about half a minute on a CPU; writes digits_cnn.png
    python examples/digits_cnn.py --epochs 3
"""

import argparse
import sys

import numpy as np

import gt
from gt import nn

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    sys.exit("the data is not installed: pip install scikit-learn")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 2 * 2, 10))

    def forward(self, x):
        return self.head(self.features(x))


def accuracy(model, x, y):
    model.eval()
    with gt.no_grad():
        right = (model(gt.from_numpy(x)).argmax(1) == gt.from_numpy(y)).float().mean().item()
    model.train()
    return right


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epochs", type=int, default=8)
    options.add_argument("--plot", default="digits_cnn.png")
    args = options.parse_args()

    digits = load_digits()
    images = (digits.images / 16.0 - 0.5).astype(np.float32)[:, None]
    x, x_test, y, y_test = train_test_split(images, digits.target, test_size=0.25, random_state=0)
    gt.manual_seed(0)
    order = np.random.default_rng(0)
    model = Net()
    optimizer = gt.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = gt.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    losses = []
    for epoch in range(args.epochs):
        total, batches = gt.zeros(()), 0
        shuffled = order.permutation(len(x))
        for at in range(0, len(x) - 63, 64):
            pick = shuffled[at : at + 64]
            loss = nn.functional.cross_entropy(model(gt.from_numpy(x[pick])), gt.from_numpy(y[pick]))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total, batches = total + loss.detach(), batches + 1
        schedule.step()
        losses.append(total.item() / batches)
        print(f"epoch {epoch + 1:2d}  loss {losses[-1]:.4f}")
    score = f"test accuracy {accuracy(model, x_test, y_test):.2%}"
    print(score)
    plot(losses, score, args.plot)


def plot(losses, score, path):
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no plot: matplotlib is not installed (pip install -e '.[viz]')")
        return
    pyplot.plot(range(1, len(losses) + 1), losses, marker="o")
    pyplot.xlabel("epoch")
    pyplot.ylabel("training loss")
    pyplot.title(score)
    pyplot.savefig(path, dpi=120)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
