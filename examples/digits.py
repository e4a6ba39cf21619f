"""Train a classifier of handwritten digits (scikit-learn's 1,797 real 8x8 images) to at least 95% test accuracy.
With matplotlib (extra `viz`) it ends with a picture of the losses, digits.png.

    python examples/digits.py                                                   # in this process, no server
    python examples/digits.py --workers 4                                       # four local workers
    python examples/digits.py --workers 4 --config examples/config_digits.yaml  # each takes a quarter of every batch
    gt compile examples/digits.py --workers 4 --config examples/config_digits.yaml --dump-ir

The script is ordinary single-device code. Only the signal named "batch" says where a person may want to split the
data; the YAML file decides whether and how. The losses are the same in every case.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import gt
import gt.nn.functional as F

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    sys.exit("the data is not installed: pip install scikit-learn")


class Classifier(gt.nn.Module):
    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.fc1 = gt.nn.Linear(64, hidden)
        self.fc2 = gt.nn.Linear(hidden, 10)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return self.fc2(F.relu(self.fc1(x)))


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Give training images, test images, training labels, test labels."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    return train_test_split(images, labels.astype(np.int64), test_size=360, random_state=0, stratify=labels)


Batch = tuple[int, gt.Tensor, gt.Tensor]


def batches(images: np.ndarray, labels: np.ndarray, size: int, epochs: int) -> Iterator[Batch]:
    """Give (epoch, images, labels), shuffled anew in each epoch; a last part that fills no batch is left out."""
    order = np.random.default_rng(0)
    for epoch in range(epochs):
        permutation = order.permutation(len(images))
        for start in range(0, len(images) - size + 1, size):
            rows = permutation[start : start + size]
            with gt.signal.context("batch"):
                x, y = gt.from_numpy(images[rows]), gt.from_numpy(labels[rows])
            yield epoch, x, y


def accuracy(model: gt.nn.Module, images: np.ndarray, labels: np.ndarray) -> float:
    with gt.no_grad():
        guess = model(gt.from_numpy(images)).argmax(dim=1)
    return float((guess.numpy() == labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a digits classifier.")
    parser.add_argument("--workers", type=int, default=0, help="local worker processes; 0 runs in this process")
    parser.add_argument("--config", help="a YAML file that says what the signal 'batch' means")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--plot", default="digits.png", help="where the picture of the losses goes")
    args = parser.parse_args()

    if args.config:
        gt.load_config(args.config)
    if args.workers:
        gt.gpu_workers(args.workers)
    if not gt.get_config().has_signal("batch"):  # without a file: rows split over all workers there are
        gt.register_config("batch", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))

    gt.manual_seed(0)
    train_x, test_x, train_y, test_y = load_data()
    model = Classifier()
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    per_epoch = len(train_x) // args.batch_size
    steps = min(args.steps or args.epochs * per_epoch, args.epochs * per_epoch)

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        bar = progress.add_task("training", total=steps)
        losses: list[float] = []
        for step, (epoch, x, y) in enumerate(batches(train_x, train_y, args.batch_size, args.epochs), 1):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            progress.update(bar, advance=1)
            if step % per_epoch == 0 or step == steps:
                progress.console.print(f"epoch {epoch + 1:2d}  loss {np.mean(losses[epoch * per_epoch :]):.4f}")
            if step == steps:
                break

    score = f"test accuracy {accuracy(model, test_x, test_y):.2%}"
    print(score)
    plot(losses, score, args.plot)


def plot(losses: list[float], score: str, path: str) -> None:
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no plot: matplotlib is not installed (pip install -e '.[viz]')")
        return
    pyplot.semilogy(range(1, len(losses) + 1), losses)
    pyplot.xlabel("step")
    pyplot.ylabel("training loss")
    pyplot.title(score)
    pyplot.savefig(path, dpi=120)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
