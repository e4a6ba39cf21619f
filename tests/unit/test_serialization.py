"""Saving and loading: round trips, other readers, bad files."""

import io

import numpy as np
import pytest
import safetensors.torch
import torch

import gt


def test_round_trip_of_a_nest(tmp_path):
    model = gt.nn.Linear(3, 2)
    opt = gt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(gt.ones(1, 3)).sum().backward()
    opt.step()
    saved = {"model": model.state_dict(), "opt": opt.state_dict(), "step": 7, "names": ["a", ("b", 1.5)], "w": model.weight}
    gt.save(saved, tmp_path / "x.safetensors")
    got = gt.load(tmp_path / "x.safetensors")
    assert got["step"] == 7 and got["names"] == ["a", ("b", 1.5)]
    assert isinstance(got["w"], gt.nn.Parameter) and got["w"].requires_grad
    np.testing.assert_array_equal(got["model"]["weight"].numpy(), model.weight.detach().numpy())
    twin = gt.nn.Linear(3, 2)
    twin.load_state_dict(got["model"])
    other = gt.optim.SGD(twin.parameters(), lr=0.5, momentum=0.9)
    other.load_state_dict(got["opt"])
    assert other.param_groups[0]["lr"] == 0.1
    for m, o in ((model, opt), (twin, other)):
        o.zero_grad()
        m(gt.ones(1, 3)).sum().backward()
        o.step()
    np.testing.assert_array_equal(twin.weight.detach().numpy(), model.weight.detach().numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8", "bool"])
def test_torch_reads_it_and_gt_reads_torchs(tmp_path, dtype):
    ours = gt.tensor([[0, 1], [3, 0]]).to(getattr(gt, dtype))
    gt.save({"a": ours}, tmp_path / "a.safetensors")
    theirs = safetensors.torch.load_file(tmp_path / "a.safetensors")["a"]
    assert theirs.dtype is getattr(torch, dtype) and theirs.tolist() == ours.tolist()
    safetensors.torch.save_file({"b": theirs}, tmp_path / "b.safetensors")
    back = gt.load(tmp_path / "b.safetensors")["b"]
    assert back.dtype is getattr(gt, dtype) and back.tolist() == ours.tolist()


def test_bad_files_and_objects(tmp_path):
    (tmp_path / "x").write_bytes(b"\x80\x04nonsense, perhaps a pickle")
    with pytest.raises(ValueError, match="not a safetensors file"):
        gt.load(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        gt.load(tmp_path / "none")
    gt.save({"a": gt.ones(2)}, tmp_path / "y")
    with pytest.raises(TypeError, match="cannot save object"):
        gt.save({"a": object()}, tmp_path / "y")
    assert gt.load(tmp_path / "y")["a"].tolist() == [1, 1]
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["x", "y"]


def test_open_files_are_written_and_read() -> None:
    file = io.BytesIO()
    gt.save({"w": gt.arange(3.0)}, file)
    file.seek(0)
    assert gt.load(file, map_location="cpu", weights_only=True)["w"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_of_torch_is_refused_with_what_to_do(tmp_path, zipped) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"w\.pt: written by torch\.save.*safetensors\.torch\.save_file"):
        gt.load(tmp_path / "w.pt")
    with pytest.raises(TypeError, match=r"save its state_dict\(\)"):
        gt.save(gt.nn.Linear(2, 2), tmp_path / "module")
