"""Regression on scikit-learn's diabetes table: a small network beside a linear fit.

    pip install -e '.[examples,viz]'
    python examples/tabular.py                       # seconds on a CPU; writes tabular.png
"""

import argparse

import numpy as np

import gt
from gt import nn

try:
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("the data comes with scikit-learn, which is not installed: pip install -e '.[examples]'") from None


def score(predicted, true):
    """Give R squared: 1 is perfect, 0 is the mean's."""
    return 1 - ((predicted - true) ** 2).sum() / ((true - true.mean()) ** 2).sum()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--plot", default="tabular.png")
    args = options.parse_args()

    table, target = load_diabetes(return_X_y=True)
    x, x_test, y, y_test = train_test_split(table.astype(np.float32) * 20, target.astype(np.float32), test_size=0.3, random_state=1)
    mean, scale = y.mean(), y.std()
    gt.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Dropout(0.3), nn.Linear(32, 1))
    optimizer = gt.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.3)
    inputs, wanted = gt.from_numpy(x), gt.from_numpy((y - mean) / scale)
    losses = []
    for step in range(args.steps):
        loss = nn.functional.mse_loss(model(inputs)[:, 0], wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 19 or step == args.steps - 1:
            losses.append((step + 1, loss.item()))
    model.eval()
    with gt.no_grad():
        predicted = model(gt.from_numpy(x_test))[:, 0].numpy() * scale + mean
    ones = np.ones((len(x), 1), np.float32)
    fit, *_ = np.linalg.lstsq(np.hstack([x, ones]), y, rcond=None)
    linear = np.hstack([x_test, np.ones((len(x_test), 1), np.float32)]) @ fit
    print(f"training loss {losses[0][1]:.3f} -> {losses[-1][1]:.3f}")
    scores = f"held-out R^2: network {score(predicted, y_test):.3f}, linear fit {score(linear, y_test):.3f}"
    print(scores)
    plot(y_test, predicted, scores, args.plot)


def plot(true, predicted, scores, path):
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no plot: matplotlib is not installed (pip install -e '.[viz]')")
        return
    pyplot.scatter(true, predicted, s=8)
    pyplot.axline((150, 150), slope=1, color="gray")
    pyplot.xlabel("measured")
    pyplot.ylabel("predicted")
    pyplot.title(scores)
    pyplot.savefig(path, dpi=120)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
