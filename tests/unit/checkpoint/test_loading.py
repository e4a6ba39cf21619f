"""``gt.checkpoint.load``, ``load_into`` and ``resume``: what comes back, and what is refused with nothing changed."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt import checkpoint
from gt.checkpoint import folders
from gt.checkpoint.files import INDEX, MAX_HEADER


def saved(folder: Path, state: Any, step: int = 1, **options: Any) -> Path:
    return checkpoint.save(folder, state, step=step, block=True, **options).path


# -- damage


def test_a_changed_byte_anywhere_is_found(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": gt.arange(5), "name": "first", "lr": 0.125})
    w = gt.zeros(5, dtype=gt.int64)
    draw = random.Random(1)
    for name in (INDEX, "part-00000.safetensors"):
        good = (path / name).read_bytes()
        for at in {0, 9, len(good) - 2, *(draw.randrange(len(good)) for _ in range(20))}:
            bad = bytearray(good)
            bad[at] ^= 1 << draw.randrange(7)
            (path / name).write_bytes(bad)
            if name == INDEX and _same(good, bytes(bad)):
                continue  # white space
            with pytest.raises(checkpoint.DamagedError, match=f"{path / name} is "):
                checkpoint.load_into(tmp_path, {"w": w, "name": "", "lr": 0.0})
        for cut in (b"", good[: len(good) // 2], good[:-1], good + b"\n\n{}"):
            (path / name).write_bytes(cut)
            if name == INDEX and _same(good, cut):
                continue
            with pytest.raises(checkpoint.DamagedError, match=f"{path / name} is damaged"):
                checkpoint.load(tmp_path)
        (path / name).unlink()
        with pytest.raises(checkpoint.DamagedError, match=f"{path / name} is missing"):
            checkpoint.load(tmp_path)
        (path / name).write_bytes(good)
    assert w.tolist() == [0] * 5, "what is refused changes nothing"
    assert checkpoint.load_into(tmp_path, {"w": w, "name": "", "lr": 0.0}) == {"w": w, "name": "first", "lr": 0.125}
    assert w.tolist() == [0, 1, 2, 3, 4]


def test_what_is_being_loaded_stays_until_it_is_read_though_newer_ones_are_saved(tmp_path: Path) -> None:
    w, v = gt.zeros(3), gt.zeros(3)

    class Between:
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            for step in (2, 3):
                saved(tmp_path, {"w": w, "between": self, "v": v}, step, keep=1)

    first = saved(tmp_path, {"w": gt.full((3,), 5.0), "between": Between(), "v": gt.full((3,), 7.0)}, keep=1)
    assert checkpoint.load_into(tmp_path, {"w": w, "between": Between(), "v": v})["v"] is v
    assert w.tolist() == [5.0] * 3 and v.tolist() == [7.0] * 3
    assert first.exists() and checkpoint.latest(tmp_path) == 3
    saved(tmp_path, {"w": w}, 4, keep=1)
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-00000004"], "once it is read it goes with the next save"


def test_a_checkpoint_that_goes_before_it_is_held_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pruned(path: Path) -> Any:
        if path.name == "step-00000001":
            saved(tmp_path, {"w": gt.full((3,), 2.0)}, 2, keep=1)
        return in_use(path)

    in_use = folders.in_use
    saved(tmp_path, {"w": gt.ones(3)})
    monkeypatch.setattr(folders, "in_use", pruned)
    assert checkpoint.load(tmp_path)["w"].tolist() == [2.0] * 3
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint of step 1; there are those of 2$"):
        checkpoint.load(tmp_path, step=1)


def _same(good: bytes, bad: bytes) -> bool:
    try:
        return bool(json.loads(good) == json.loads(bad))
    except ValueError:
        return False


def forged(path: Path, change: Callable[[Any], Any]) -> None:
    """Write another index, with the right checksum."""
    content = json.loads((path / INDEX).read_text())["gt.checkpoint"]
    content = change(content) or content
    text = json.dumps(content, separators=(",", ":"))
    (path / INDEX).write_text(json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "gt.checkpoint": content}))


@pytest.mark.parametrize(
    "name", ["../part-00000.safetensors", "/etc/passwd", "a/../part-00000.safetensors", "index.json", "part-0.safetensors", ""]
)
def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, {"w": gt.arange(5)})
    forged(path, lambda content: content["files"].update({name: content["files"]["part-00000.safetensors"]}))
    with pytest.raises(checkpoint.DamagedError, match="nothing outside of .* is read"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("name", [INDEX, "part-00000.safetensors"])
def test_links_and_pipes_are_refused(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path / "runs", {"w": gt.arange(5)})
    (path / name).rename(tmp_path / "mine")
    (path / name).symlink_to(tmp_path / "mine")
    with pytest.raises(checkpoint.DamagedError, match=f"{path / name} is a symbolic link"):
        checkpoint.load(tmp_path / "runs")
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(checkpoint.DamagedError, match=f"{path / name} is not a plain file"):
        checkpoint.load(tmp_path / "runs")


FORGERIES: dict[str, Callable[[Any], Any]] = {
    "no files": lambda c: c.update(files={}),
    "a list": lambda c: [c],
    "files that are none": lambda c: c.update(files={"part-00000.safetensors": 3}),
    "a state that is none": lambda c: c.update(state={}),
    "an unknown kind": lambda c: c.update(state={"code": "import os"}),
    "a value that is not there": lambda c: c.update(state={"tensor": "v", "dtype": "int64"}),
    "a dtype that is none": lambda c: c.update(state={"tensor": "w", "dtype": "object"}),
    "another dtype": lambda c: c.update(state={"tensor": "w", "dtype": "float32"}),
    "pairs that are none": lambda c: c.update(state={"tensor": "w", "dtype": "complex64"}),
    "an object of no class": lambda c: c.update(state={"object": {"value": 3}}),
    "no dtype": lambda c: c.update(state={"tensor": "w"}),
    "a dict of nothing": lambda c: c.update(state={"dict": [3]}),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_index_is_a_clear_error(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, {"w": gt.arange(5)})
    forged(path, FORGERIES[name])
    for read in (
        checkpoint.load,
        lambda folder: checkpoint.load_into(folder, {"w": gt.ones(5)}),
        lambda folder: checkpoint.resume(folder, w=3),
    ):
        with pytest.raises(checkpoint.DamagedError):
            read(tmp_path)


@pytest.mark.parametrize(
    "header", [b"{", b"[]", b'{"w":3}', b'{"w":{"dtype":"I64","shape":[5],"data_offsets":[0,8]}}', b'{"w":{"dtype":"O","shape":[],"data_offsets":[0,8]}}',
               b'{"w":{"dtype":"I64","shape":[-5],"data_offsets":[0,-40]}}', b'{"w":{"dtype":"I64","shape":[5],"data_offsets":[8000,8040]}}',
               b'{"w":{"dtype":"I64","shape":[99999999999],"data_offsets":[0,799999999992]}}', None],
)  # fmt: skip
def test_a_forged_part_is_a_clear_error(tmp_path: Path, header: bytes | None) -> None:
    path = saved(tmp_path, {"w": gt.arange(5)})
    length = MAX_HEADER + 1 if header is None else len(header)
    data = length.to_bytes(8, "little") + (header or b"") + bytes(40)
    (path / "part-00000.safetensors").write_bytes(data)
    forged(
        path,
        lambda c: c.update(files={"part-00000.safetensors": {"nbytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}),
    )
    with pytest.raises(checkpoint.DamagedError, match=r"part-00000.safetensors is damaged"):
        checkpoint.load(tmp_path)


def test_nests_without_an_end_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, {})
    text = '{"version":1,"step":1,"state":' + '{"list":[' * 100_000 + "]}" * 100_000 + ',"random":{},"files":{}}'
    (path / INDEX).write_text(f'{{"sha256": "{hashlib.sha256(text.encode()).hexdigest()}", "gt.checkpoint": {text}}}')
    with pytest.raises(checkpoint.DamagedError, match="RecursionError"):
        checkpoint.load(tmp_path)


def test_another_version_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path, {})
    forged(path, lambda c: c.update(version=9))
    with pytest.raises(ValueError, match="has version 9 of the format, this gt reads 1"):
        checkpoint.load(tmp_path)


# -- which one


def test_which_checkpoint_is_taken(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "none") is None and checkpoint.resume(tmp_path / "none") == checkpoint.Resumed()
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        checkpoint.load(tmp_path)
    paths = [saved(tmp_path, {"step": s}, s) for s in (9, 10, 100)]
    (tmp_path / ".step-00000200.partial-01234567").mkdir()
    assert checkpoint.latest(tmp_path) == 100
    assert checkpoint.load(tmp_path) == {"step": 100} and checkpoint.load(tmp_path, step=9) == {"step": 9}
    assert checkpoint.load(paths[1]) == {"step": 10} and checkpoint.resume(str(paths[1])).step == 10
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 11; there are those of 9, 10, 100"):
        checkpoint.load(tmp_path, step=11)


# -- what does not fit


def test_what_does_not_fit_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    model = gt.nn.Sequential(gt.nn.Linear(2, 3), gt.nn.Linear(3, 1))
    path = saved(tmp_path, {"model": model, "ema": {"w": gt.ones(3)}, "sizes": [1, 2]})
    other = gt.nn.Sequential(gt.nn.Linear(2, 4), gt.nn.Linear(3, 1, bias=False), gt.nn.BatchNorm1d(1))
    ema = gt.zeros(3)
    with pytest.raises(ValueError, match="does not fit") as caught:
        checkpoint.load_into(tmp_path, {"ema": {"w": ema, "v": gt.ones(2)}, "model": other, "sizes": [3]})
    text = str(caught.value)
    assert str(path) in text and ema.tolist() == [0] * 3
    for line in (
        "'model.0.weight': the checkpoint has shape [3, 2], here it is [4, 2]",
        "'model.0.bias': the checkpoint has shape [3], here it is [4]",
        "unexpected in the checkpoint: 'model.1.bias' of shape [1]",
        "missing in the checkpoint: 'model.2.running_mean' of shape [1]",
        "missing in the checkpoint: 'ema.v' of shape [2]",
        "'sizes': the checkpoint has 2 items, here is 1 items",
    ):
        assert line in text
    with pytest.raises(ValueError, match="'ema': the checkpoint has a dict, here is Tensor"):
        checkpoint.load_into(tmp_path, {"model": model, "ema": ema, "sizes": [0, 0]})
    with pytest.raises(ValueError, match="'model': the checkpoint has the state of a Sequential, here is int"):
        checkpoint.load_into(tmp_path, {"model": 3, "ema": {"w": ema}, "sizes": [0, 0]})
    with pytest.raises(ValueError, match=r"'ema.w': the checkpoint has a tensor of \[3\], here is float"):
        checkpoint.load_into(tmp_path, {"model": model, "ema": {"w": 1.0}, "sizes": [0, 0]})


def test_a_part_is_taken_where_that_is_asked_for(tmp_path: Path) -> None:
    model = gt.nn.Linear(2, 3)
    saved(tmp_path, {"model": model, "best": 0.5, "sizes": (1, 2)})
    other = gt.nn.Sequential()
    other.weight, other.more = gt.nn.Parameter(gt.zeros(3, 2)), gt.nn.Parameter(gt.zeros(1))
    state = {"model": other, "sizes": (0, 0), "mine": 3}
    assert checkpoint.load_into(tmp_path, state, strict=False) is state
    assert state["sizes"] == (1, 2) and state["mine"] == 3 and "best" not in state
    assert other.weight.tolist() == model.weight.tolist() and other.more.tolist() == [0]


def test_what_resume_is_given_is_what_was_saved(tmp_path: Path) -> None:
    model = gt.nn.Linear(2, 3)
    path = saved(tmp_path, {"model": model, "optimizer": gt.optim.SGD(model.parameters(), 0.5), "best": 0.5, "w": gt.ones(2)}, 7)
    with pytest.raises(ValueError, match=r"given 'scheduler', which was not saved; it has 'model', 'optimizer', 'best', 'w'"):
        checkpoint.resume(tmp_path, model=model, scheduler=3)
    with pytest.raises(ValueError, match="has 'optimizer', which resume was not given"):
        checkpoint.resume(tmp_path, model=model)
    two = gt.optim.SGD([{"params": [p]} for p in model.parameters()], 0.5)
    with pytest.raises(ValueError, match=r"'optimizer' \(SGD\) does not fit this SGD: .*different number of parameter groups"):
        checkpoint.resume(tmp_path, model=model, optimizer=two)
    w = gt.zeros(2)
    found = checkpoint.resume(tmp_path, model=model, optimizer=gt.optim.SGD(model.parameters(), 0.1), w=w)
    assert found == checkpoint.Resumed(7, path, {"best": 0.5}) and w.tolist() == [1, 1]
    saved(tmp_path, [1], 8)
    with pytest.raises(ValueError, match="holds no dict of objects"):
        checkpoint.resume(tmp_path, model=model)


# -- going on


class Run:
    """A training run in small: all that has a state."""

    def __init__(self, make: Callable[[Any], Any], schedule: Callable[[Any], Any] | None = None) -> None:
        gt.manual_seed(3)
        self.model = gt.nn.Sequential(gt.nn.Linear(4, 6), gt.nn.BatchNorm1d(6), gt.nn.Dropout(0.2), gt.nn.Linear(6, 2))
        self.optimizer = make(self.model.parameters())
        self.parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        if schedule is not None:
            self.parts["schedule"] = schedule(self.optimizer)

    def step(self) -> float:
        x = gt.randn(8, 4)

        def closure() -> Any:
            self.optimizer.zero_grad()
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

        loss = self.optimizer.step(closure)
        if "schedule" in self.parts:
            schedule = self.parts["schedule"]
            schedule.step(*([loss.item()] if isinstance(schedule, gt.optim.lr_scheduler.ReduceLROnPlateau) else []))
        return float(loss.item())


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: gt.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "LBFGS": lambda p: gt.optim.LBFGS(p, 0.1, max_iter=3),
    "a rate that is a tensor": lambda p: gt.optim.AdamW(p, gt.tensor(0.01), amsgrad=True),
    **{
        name: (lambda kind: lambda p: kind(p, lr=0.01))(getattr(gt.optim, name))
        for name in (
            "ASGD",
            "Adadelta",
            "Adafactor",
            "Adagrad",
            "Adam",
            "AdamW",
            "Adamax",
            "LBFGS",
            "NAdam",
            "RAdam",
            "RMSprop",
            "Rprop",
        )
    },
}
S = gt.optim.lr_scheduler
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: S.StepLR(o, 2, 0.5), "MultiStepLR": lambda o: S.MultiStepLR(o, [2, 4]), "CosineAnnealingLR": lambda o: S.CosineAnnealingLR(o, 5),
    "LambdaLR": lambda o: S.LambdaLR(o, lambda e: 0.9**e), "OneCycleLR": lambda o: S.OneCycleLR(o, 0.1, total_steps=20),
    "CyclicLR": lambda o: S.CyclicLR(o, 0.01, 0.1, 2), "CosineAnnealingWarmRestarts": lambda o: S.CosineAnnealingWarmRestarts(o, 3),
    "ReduceLROnPlateau": lambda o: S.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, total_iters=3), S.ExponentialLR(o, 0.9)], [3]),
    "ChainedScheduler": lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.5, 2), S.PolynomialLR(o, 9)]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("optimizer", "schedule"), [*((name, None) for name in OPTIMIZERS), *(("SGD", name) for name in SCHEDULES)],
)  # fmt: skip
def test_a_resumed_run_is_the_run(tmp_path: Path, optimizer: str, schedule: str | None) -> None:
    make, plan = OPTIMIZERS[optimizer], SCHEDULES[schedule] if schedule is not None else None
    first = Run(make, plan)
    for _ in range(3):
        first.step()
    save = checkpoint.save(tmp_path, first.parts, step=3)
    rest = [first.step() for _ in range(4)]
    save.wait(60)
    other = Run(make, plan)
    other.step()
    assert checkpoint.resume(tmp_path, **other.parts).step == 3
    assert [other.step() for _ in range(4)] == rest


def test_generators_go_on(tmp_path: Path) -> None:
    def generators() -> dict[str, Any]:
        return {
            "gt": gt.Generator().manual_seed(1), "numpy": np.random.default_rng(1), "old": np.random.RandomState(1), "python": random.Random(1),
            "mersenne": np.random.Generator(np.random.MT19937(1)), "torch": torch.Generator().manual_seed(1),
        }  # fmt: skip

    def drawn(g: dict[str, Any]) -> list[float]:
        return [
            gt.rand((), generator=g["gt"]).item(), g["numpy"].normal(), g["old"].normal(), g["python"].gauss(0, 1), g["mersenne"].normal(),
            torch.rand((), generator=g["torch"]).item(),
            gt.rand(()).item(), np.random.normal(), random.gauss(0, 1), torch.rand(()).item(),  # noqa: NPY002 - these streams
        ]  # fmt: skip

    first = generators()
    drawn(first)
    saved(tmp_path, first, host_random=True)
    after = drawn(first)
    other = generators()
    checkpoint.resume(tmp_path, **other)
    assert drawn(other) == after


def test_scaler_and_loader_go_on(tmp_path: Path) -> None:
    def parts() -> dict[str, Any]:
        data = gt.utils.data.TensorDataset(gt.arange(20))
        return {
            "scaler": gt.GradScaler(init_scale=8.0, growth_interval=2),
            "loader": gt.utils.data.DataLoader(data, 3, shuffle=True),
        }

    gt.manual_seed(4)
    first = parts()
    first["scaler"]._tracker = 1
    batches = iter(first["loader"])
    for _ in range(2):
        next(batches)
    saved(tmp_path, first)
    rest = [b[0].tolist() for b in batches] + [b[0].tolist() for b in first["loader"]]
    gt.manual_seed(5)
    other = parts()
    checkpoint.resume(tmp_path, **other)
    assert [b[0].tolist() for b in other["loader"]] + [b[0].tolist() for b in other["loader"]] == rest
    assert other["scaler"].state_dict() == first["scaler"].state_dict()


def test_a_class_of_ones_own_with_a_state_dict(tmp_path: Path) -> None:
    class Average:
        def __init__(self, model: Any) -> None:
            self.values = {k: v.clone() for k, v in model.state_dict().items()}
            self.count = np.int64(0)

        def state_dict(self) -> dict[str, Any]:
            return {"values": self.values, "count": self.count, "seen": np.arange(3)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.values, self.count = state["values"], state["count"]

    model = gt.nn.Linear(2, 2)
    first, other = Average(model), Average(gt.nn.Linear(2, 2))
    first.count += 3
    saved(tmp_path, {"average": first})
    checkpoint.resume(tmp_path, average=other)
    assert other.count == 3 and other.values["weight"].tolist() == model.weight.tolist()
