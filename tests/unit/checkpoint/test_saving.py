"""``gt.checkpoint.save``: what is saved, when, in what form, and what an error leaves."""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import gt
from gt import checkpoint
from gt.buffers import Buffer
from gt.checkpoint import files, folders, saving
from gt.flush import counters
from gt.ir.types import TensorType, uint8


def contents(path: Path) -> dict[str, Any]:
    """Give the tensors of a checkpoint as torch reads them."""
    found: dict[str, Any] = {}
    for part in sorted(path.glob("*.safetensors")):
        found |= safetensors.torch.load_file(part)
    return found


def open_full(touch: Any, path: Path, mode: str, **_: Any) -> Any:
    """Make the file, and open one instead on which the system has no space left."""
    touch(path)
    return open("/dev/full", "wb")  # noqa: SIM115 - who asks closes it


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Checkpoints are not begun to be written until the event is set."""
    event, real = threading.Event(), folders.make
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "make", lambda folder: event.wait(60) and real(folder))
        yield event
        event.set()


def test_what_is_saved_is_what_was_there_at_the_call(tmp_path: Path, held: threading.Event) -> None:
    model = gt.nn.Linear(3, 3)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    def step() -> None:
        model(gt.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    host = np.arange(3)
    saved = checkpoint.save(tmp_path, {"model": model, "optimizer": optimizer, "host": host}, step=1)
    before = model.weight.detach().numpy().copy(), optimizer.state[model.weight]["momentum_buffer"].numpy().copy()
    for _ in range(3):
        step()
    with gt.no_grad():
        model.weight.zero_()
    host[:] = -1
    assert not saved.done() and repr(saved).endswith("under way>") and checkpoint.latest(tmp_path) is None
    with pytest.raises(TimeoutError, match="step 1 .* was not written within 0.01 s"):
        saved.wait(0.01)
    held.set()
    path = saved.wait(60)
    assert path == tmp_path / "step-00000001" and saved.done() and checkpoint.latest(tmp_path) == 1
    found = contents(path)
    np.testing.assert_array_equal(found["model.weight"].numpy(), before[0])
    np.testing.assert_array_equal(found["optimizer.state.0.momentum_buffer"].numpy(), before[1])
    assert found["host"].tolist() == [0, 1, 2]


def test_a_save_leaves_the_steps_graphs_alone(tmp_path: Path) -> None:
    model = gt.nn.Linear(3, 3)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(gt.ones(2, 3)).sum()
        loss.backward()
        optimizer.step()
        return loss  # pending, and the step with it

    for _ in range(3):
        step().item()
    seen = []
    for i in range(3):
        before = counters.graphs
        loss = step()
        checkpoint.save(tmp_path, [model, optimizer], step=i)
        loss.item()
        step().item()
        seen.append(counters.graphs - before)
    assert seen[0] <= 1 and seen[1:] == [0, 0], "there is at most that of the copies"


def test_a_step_under_jit_is_replayed_beside_it(tmp_path: Path) -> None:
    model = gt.nn.Linear(3, 3)
    optimizer = gt.optim.AdamW(model.parameters())

    @gt.jit
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(4):
        step(gt.ones(2, 3)).item()
    recorded = counters.reasons.get("the end of a function under gt.jit")
    for i in range(3):
        checkpoint.save(tmp_path, [model, optimizer], step=i)
        step(gt.ones(2, 3)).item()
    assert counters.reasons.get("the end of a function under gt.jit") == recorded


def test_with_block_there_are_no_copies(tmp_path: Path) -> None:
    w = gt.ones(3)
    w.tolist()
    before = counters.flushes
    saved = checkpoint.save(tmp_path, {"w": w}, step=3, block=True)
    assert saved.done() and counters.flushes == before and contents(saved.path)["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int16", "uint8", "bool"])
def test_torch_reads_every_dtype(tmp_path: Path, dtype: str) -> None:
    ours = gt.tensor([[0, 1], [3, 0]]).to(getattr(gt, dtype))
    path = checkpoint.save(tmp_path, ours, step=0).wait()
    theirs = contents(path)["tensor"]
    assert theirs.dtype is getattr(torch, dtype) and theirs.tolist() == ours.tolist()
    back = checkpoint.load(tmp_path)
    assert back.dtype is ours.dtype and back.tolist() == ours.tolist()


def test_odd_values(tmp_path: Path) -> None:
    shared = gt.nn.Parameter(gt.ones(2, 3))
    base = gt.arange(6).reshape(2, 3)
    state = {
        "complex": gt.tensor([1 + 2j]), "empty": gt.ones(0, 3), "number": gt.tensor(3), "bits": np.arange(3, dtype=np.uint32),
        "tied": [shared, shared.detach()], "view": base[:, 1:], "turned": base.T, "inf": float("inf"), "none": None, 3: ("a", True),
        "a.b": gt.zeros(1), "a": {"b": gt.ones(1)}, "float": np.float32(0.5), "dtype": gt.bfloat16,
    }  # fmt: skip
    path = checkpoint.save(tmp_path, state, step=0).wait()
    found = contents(path)
    assert "tied.0" in found and "tied.1" not in found, "what is one value is written once"
    got = checkpoint.load(path)
    assert got["complex"].tolist() == [1 + 2j] and got["empty"].shape == (0, 3) and got["number"].item() == 3
    assert got["bits"].dtype == np.uint32 and got["bits"].tolist() == [0, 1, 2]
    assert got["view"].tolist() == [[1, 2], [4, 5]] and got["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert got["inf"] == float("inf") and got["none"] is None and got[3] == ("a", True)
    assert (got["a.b"].item(), got["a"]["b"].item(), got["float"], got["dtype"]) == (0, 1, 0.5, gt.bfloat16)
    assert isinstance(got["tied"][0], gt.nn.Parameter) and got["tied"][0].requires_grad
    assert not got["tied"][1].requires_grad and got["tied"][1].tolist() == [[1.0] * 3] * 2


def test_views_of_complex_numbers_have_their_own_values(tmp_path: Path) -> None:
    z = gt.tensor([1 + 2j, 3j])
    views = {"z": z, "conj": z.conj(), "back": z.conj().conj(), "imag": z.conj().imag, "pairs": gt.view_as_real(z)}
    gt.checkpoint.save(tmp_path, {"values": dict(views)}, step=1, block=True)
    got = {name: gt.zeros_like(t) for name, t in views.items()}
    gt.checkpoint.resume(tmp_path, values=got)
    assert {name: t.tolist() for name, t in got.items()} == {name: t.tolist() for name, t in views.items()}


def test_values_go_into_files_of_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "FILE_BYTES", 100)
    state = [gt.full((10,), float(i)) for i in range(7)]
    path = checkpoint.save(tmp_path, state, step=0).wait()
    assert [p.name for p in sorted(path.iterdir())] == ["index.json", *(f"part-{i:05d}.safetensors" for i in range(3))]
    assert [t.tolist() for t in checkpoint.load(tmp_path)] == [[float(i)] * 10 for i in range(7)]


class Counted:
    """A session that says how many bytes of values are on their way or here."""

    def __init__(self) -> None:
        self.nbytes = self.most = 0

    def fetch(self, size: int) -> Future[np.ndarray]:
        future: Future[np.ndarray] = Future()
        future.set_result(np.zeros(size, np.uint8))
        self.nbytes += size
        self.most = max(self.most, self.nbytes)
        return future

    def free(self, buffers: Any) -> None:
        pass


def test_so_much_is_read_ahead_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "AHEAD", 100)
    session, sizes = Counted(), [40, 30, 30, 500, 20, 90, 90, 1]
    items = deque(
        saving._Item(files.Entry(str(i), "U8", (size,)), Buffer(size, TensorType((size,), uint8), session))
        for i, size in enumerate(sizes)  # type: ignore[arg-type]
    )
    for value, size in zip(saving._read_ahead(items), sizes, strict=True):
        assert len(value) == size
        assert session.nbytes - size <= max(100, *[s for s in sizes if s > 100])
        session.nbytes -= size
    assert session.most <= 500 + 90 + 1


def test_saves_are_written_one_after_the_other(tmp_path: Path, held: threading.Event) -> None:
    w = gt.zeros(3)
    saves = []
    for step in (1, 2, 3):
        w += 1
        saves.append(checkpoint.save(tmp_path, {"w": w}, step=step, keep=2))
    with pytest.raises(FileExistsError, match="step-00000002 is there"):
        checkpoint.save(tmp_path, {"w": w}, step=2)
    held.set()
    saves[2].wait(60)
    assert saves[0].done() and saves[1].done()
    assert list(folders.whole(tmp_path)) == [2, 3]
    assert [checkpoint.load(tmp_path, step=s)["w"][0].item() for s in (2, 3)] == [2, 3]
    with pytest.raises(FileExistsError, match="go back"):
        checkpoint.save(tmp_path, {"w": w}, step=3)


def test_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, held: threading.Event
) -> None:
    w = gt.ones(1000)
    held.set()
    checkpoint.save(tmp_path, {"w": w}, step=1).wait()
    held.clear()
    with monkeypatch.context() as patch:
        patch.setattr(files, "open", partial(open_full, Path.touch), raising=False)
        failed = checkpoint.save(tmp_path, {"w": w * 2}, step=2, keep=1)
        second = checkpoint.save(tmp_path, {"w": w * 2}, step=3, keep=1)  # which would tell of the first if that was over
        held.set()
        with pytest.raises(
            checkpoint.SaveError, match=r"step 2 in .* was not written: OSError: \[Errno 28\] .*; the one of step 1 is whole"
        ) as caught:
            failed.wait(60)
        while not second.done():
            second._over.wait(60)
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.ENOSPC
    assert caught.value.step == 2 and repr(failed).endswith("failed>")
    assert caplog.text.count("was not written") == 2, "a failure is said at once"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "step-00000001"]
    with pytest.raises(checkpoint.SaveError, match="step 3 in .* was not written"):
        checkpoint.save(tmp_path, {"w": w}, step=4)
    checkpoint.save(tmp_path, {"w": w * 4}, step=4, keep=1).wait(60)
    assert list(folders.whole(tmp_path)) == [4] and checkpoint.load(tmp_path)["w"][0].item() == 4


def test_a_file_limit(tmp_path: Path) -> None:
    """The system's own error, in the middle of a file."""
    resource = pytest.importorskip("resource")
    w = gt.ones(100_000)
    checkpoint.save(tmp_path, {"w": w}, step=1, block=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(checkpoint.SaveError, match="File too large"):
            checkpoint.save(tmp_path, {"w": w}, step=2, block=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "step-00000001"]
    assert checkpoint.load(tmp_path)["w"].sum().item() == 100_000


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(checkpoint.SaveError, match="NotADirectoryError.*there is none before it"):
        checkpoint.save(tmp_path / "file" / "runs", {"w": gt.ones(1)}, step=2, block=True)


def test_a_value_that_failed(tmp_path: Path) -> None:
    table = gt.nn.functional.embedding(gt.tensor([7]), gt.ones(3, 2))
    with pytest.raises(checkpoint.SaveError, match="IndexError") as caught:
        checkpoint.save(tmp_path, {"table": table}, step=1).wait(60)
    assert isinstance(caught.value.__cause__, IndexError)
    assert list(folders.whole(tmp_path)) == [] and len(list(tmp_path.iterdir())) == 1, "its lock"


def test_what_is_refused_at_the_call(tmp_path: Path) -> None:
    for step in (-1, 1.5, True, 10**18):
        with pytest.raises(ValueError, match="step is the number of steps done"):
            checkpoint.save(tmp_path, {}, step=step)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keep is how many"):
        checkpoint.save(tmp_path, {}, step=1, keep=0)
    with pytest.raises(TypeError, match="cannot save function at 'a.f'"):
        checkpoint.save(tmp_path, {"a": {"f": contents}}, step=1)
    with pytest.raises(TypeError, match="'x' is an array of object"):
        checkpoint.save(tmp_path, {"x": np.array([object()])}, step=1)

    @gt.jit
    def step_once(x: Any) -> Any:
        checkpoint.save(tmp_path, {"x": x}, step=1)
        return x + 1

    with pytest.raises(gt.JitError, match="a checkpoint is saved"):
        step_once(gt.ones(2))
    assert list(tmp_path.iterdir()) == []


def test_a_save_does_not_read(tmp_path: Path) -> None:
    w = gt.ones(3) * 2
    with gt.flush_guard("disallow"):
        saved = checkpoint.save(tmp_path, SimpleNamespace(w=w).__dict__, step=1)
    saved.wait(60)


def test_one_large_value_is_seen_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK", 400)
    value, seen, wrote = np.arange(250, dtype=np.float32), [], saving.Save._wrote

    def watched(save: saving.Save, nbytes: int) -> None:
        wrote(save, nbytes)
        seen.append((save._written, save._nbytes))

    monkeypatch.setattr(saving.Save, "_wrote", watched)
    save = checkpoint.save(tmp_path, {"w": gt.from_numpy(value)}, step=1, block=True)
    assert seen == [(400, 1000), (800, 1000), (1000, 1000)]
    assert np.array_equal(contents(save.path)["w"].numpy(), value)
