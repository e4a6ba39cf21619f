"""Saving and loading: round trips, other readers, bad files."""

import collections
import errno
import io
import os
import pickle
import zipfile

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


def test_a_view_of_what_data_replaced_keeps_its_values(tmp_path):
    w = gt.ones(2)
    old = w.detach()
    w.data = gt.zeros(2)
    gt.save({"old": old, "w": w}, tmp_path / "x")
    got = gt.load(tmp_path / "x")
    assert got["old"].tolist() == [1, 1] and got["w"].tolist() == [0, 0]


def test_counters_and_numpys_numbers(tmp_path):
    gt.save({"milestones": collections.Counter([2, 2, 5]), "n": np.int64(3), "x": np.float32(0.5)}, tmp_path / "x")
    got = gt.load(tmp_path / "x")
    assert got == {"milestones": collections.Counter({2: 2, 5: 1}), "n": 3, "x": 0.5}
    assert isinstance(got["milestones"], collections.Counter)


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


def through(value):
    """Give what gt loads of torch's file of a value."""
    out = io.BytesIO()
    torch.save(value, out)
    out.seek(0)
    return gt.load(out, map_location="cpu", weights_only=True)


def test_a_file_that_cannot_be_written_is_named_and_the_one_before_stays(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    missing, file = tmp_path / "missing" / "x.safetensors", tmp_path / "y.safetensors"
    with pytest.raises(FileNotFoundError) as caught:
        gt.save({"x": gt.ones(3)}, missing)
    assert caught.value.filename == str(missing)
    gt.save({"x": gt.ones(3)}, file)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*y\.safetensors") as caught:
        gt.save({"x": gt.zeros(3)}, file)
    assert caught.value.errno == errno.ENOSPC and os.listdir(tmp_path) == [file.name]
    assert gt.load(file)["x"].tolist() == [1.0] * 3


def test_torchs_files_are_read(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "opt": optimizer.state_dict(), "epoch": 3, "name": "x", "best": 0.5}, tmp_path / "c.pt")
    got = gt.load(tmp_path / "c.pt", map_location=gt.device("cpu"))
    assert isinstance(got["model"], collections.OrderedDict) and (got["epoch"], got["name"], got["best"]) == (3, "x", 0.5)
    ours = gt.nn.Sequential(gt.nn.Linear(3, 4), gt.nn.BatchNorm1d(4), gt.nn.Linear(4, 2))
    ours.load_state_dict(got["model"])
    other = gt.optim.Adam(ours.parameters(), lr=0.5)
    other.load_state_dict(got["opt"])
    for m, o, tensor in ((model, optimizer, torch.tensor), (ours, other, gt.tensor)):
        o.zero_grad()
        m.eval()(tensor([[0.1, 0.2, 0.3], [1.0, 2.0, 3.0]])).sum().backward()
        o.step()
    for mine, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [d.name for d in gt.ir.types.DTYPES])
def test_torchs_tensors_of_every_dtype_and_layout(dtype):
    x = torch.arange(24).reshape(2, 3, 4).to(getattr(torch, dtype))
    for t in (x, x.permute(2, 0, 1), x[:, 1:, ::2], x[0, 0, 0], x[:0], x[:1].expand(5, 3, 4)):
        got = through([t])[0]
        assert got.dtype is getattr(gt, dtype) and got.tolist() == t.tolist()


def test_torchs_conjugates_and_negatives_are_read_as_such():
    z = torch.tensor([[1 + 2j, 3 - 4j]])
    for t in (z, z.conj(), z.mH, z.conj().imag, z.real, torch.view_as_real(z), torch.nn.Parameter(z.conj())):
        got = through([t])[0]
        assert got.tolist() == t.tolist() and got.requires_grad == t.requires_grad


def test_torchs_other_values():
    p = torch.nn.Parameter(torch.ones(2))
    got = through({"p": p, "again": p, "t": (1, None, True, 2**40, 1 + 2j, {3}), "size": torch.Size([2, 3]), "d": torch.float16, 7: []})
    assert isinstance(got["p"], gt.nn.Parameter) and got["p"].requires_grad and got["again"] is got["p"]
    assert got["t"] == (1, None, True, 2**40, 1 + 2j, {3}) and got["d"] is gt.float16 and got[7] == []
    assert isinstance(got["size"], gt.Size) and got["size"] == (2, 3)
    assert through(torch.ones(1, requires_grad=True)).requires_grad


def archive(program, **entries):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("archive/data.pkl", program)
        for name, content in entries.items():
            z.writestr(f"archive/data/{name[1:]}", content)
    return io.BytesIO(out.getvalue())


class Evil:
    def __reduce__(self):
        return exec, ("raise SystemExit('code of the file ran')",)


def stored(dtype, key, numel, offset, size, stride):
    """Give the program of one tensor."""
    text = lambda s: b"X" + len(s).to_bytes(4, "little") + s.encode()  # noqa: E731
    ints = lambda v: b"(" + b"".join(b"J" + n.to_bytes(4, "little", signed=True) for n in v) + b"t"  # noqa: E731
    pid = b"(" + text("storage") + f"ctorch\n{dtype}\n".encode() + text(key) + text("cpu") + ints([numel])[1:-1] + b"tQ"
    tail = ints([offset])[1:-1] + ints(size) + ints(stride) + b"\x89Nt"
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + pid + tail + b"R."


def test_nothing_of_a_file_is_run():
    for value in (Evil(), {"a": [Evil()]}, torch.nn.Linear(2, 2)):
        with pytest.raises(ValueError, match="to load that would run code"):
            through(value)
    for program in (
        b"\x80\x02cgt.torch_files\nStored\n.", b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.", pickle.dumps([1], 4), b"\x80\x02}}b.",
        b"\x80\x02ccollections\nOrderedDict\n}b.", b"\x80\x02ctorch\ndevice\nX\x01\x00\x00\x00x\x85R.",
        b"\x80\x02X\xff\x00\x00\x00", b"\x80\x02]q\x00h\x00a.", b"\x80\x02ctorch\nSize\n.", b"\x80\x02K\x01)R.", b"", b"\x80\x02",
    ):  # fmt: skip
        with pytest.raises(ValueError, match="cannot be loaded"):
            gt.load(archive(program))


def test_a_small_file_does_not_grow():
    twice = b"]" + b"".join(b"q\x00]h\x00ah\x00a" for _ in range(90))  # 2**90 lists, were each made anew
    assert len(gt.load(archive(b"\x80\x02" + twice + b"."))) == 2


def test_sizes_of_a_file_are_checked():
    four = np.arange(4, dtype=np.float32).tobytes()
    assert gt.load(archive(stored("FloatStorage", "0", 4, 1, (3,), (1,)), _0=four)).tolist() == [1, 2, 3]
    for bad in (
        ("FloatStorage", "0", 5, 0, (4,), (1,)), ("FloatStorage", "0", 4, 1, (4,), (1,)), ("FloatStorage", "0", 4, 0, (2, 2), (3, 1)),
        ("FloatStorage", "0", 4, -1, (2,), (1,)), ("FloatStorage", "0", 4, 0, (2,), (-1,)), ("FloatStorage", "1", 4, 0, (2,), (1,)),
        ("FloatStorage", "0", 4, 0, (2**30, 4), (0, 1)), ("DoubleStorage", "0", 4, 0, (4,), (1,)), ("FloatStorage", "0", 4, 0, (2,), ()),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="cannot be loaded"):
            gt.load(archive(stored(*bad), _0=four))


def test_open_files():
    out = io.BytesIO()
    gt.save({"a": gt.ones(2)}, out)
    out.seek(0)
    assert gt.load(out)["a"].tolist() == [1, 1]
    with pytest.raises(TypeError, match="save its state_dict"):
        gt.save(gt.nn.Linear(1, 1), out)
    with pytest.raises(RuntimeError, match="device"):
        gt.load(io.BytesIO(out.getvalue()), map_location="nowhere")


def test_what_shares_memory_shares_it_again(tmp_path):
    found = []
    for m in (torch, gt):
        v = m.arange(6.0)
        w = m.arange(12.0).reshape(3, 4)
        saved = {"a": v, "b": v[:2], "c": v, ("x", 1): v.view(2, 3)[:, 1], "d": w[:2], "e": w[1:], "t": m.ones(2, 3).t(), None: [v[4:]]}
        m.save(saved, tmp_path / m.__name__)
        got = m.load(tmp_path / m.__name__)
        assert list(got) == list(saved) and got["a"] is got["c"]
        got["a"].add_(10)
        got["d"][1].zero_()
        found.append([t.tolist() for t in (got["a"], got["b"], got["c"], got[("x", 1)], got["d"], got["e"], got["t"], got[None][0])])
        assert got["t"].stride() == (1, 3) and got[("x", 1)].stride() == (3,)
        assert v.tolist() == [0, 1, 2, 3, 4, 5]
    assert found[0] == found[1]


VIEWS_OF_COMPLEX = {
    "whole": lambda m, z, x: {"z": z, "t": z.t()}, "wide": lambda m, z, x: {"z": z.to(m.complex128)}, "adjoint": lambda m, z, x: {"c": z.mH},
    "conjugate": lambda m, z, x: {"z": z, "c": z.conj(), "row": z.conj()[0]}, "alone": lambda m, z, x: {"n": z.conj().imag},
    "parts": lambda m, z, x: {"r": z.real.t(), "i": z.imag[1:], "v": m.view_as_real(z)[0]}, "one part": lambda m, z, x: {"r": z.real},
    "of pairs": lambda m, z, x: {"c": m.view_as_complex(x[2:].view(5, 2)), "d": m.view_as_complex(x[:4].view(2, 2)).conj()},
    "back": lambda m, z, x: {"r": m.view_as_complex(x.view(6, 2)).real, "x": x},
}  # fmt: skip


@pytest.mark.parametrize("views", VIEWS_OF_COMPLEX.values(), ids=VIEWS_OF_COMPLEX)
def test_complex_numbers_and_their_views_are_saved(tmp_path, views):
    found = []
    for m in (torch, gt):
        m.save(views(m, m.tensor([[1 + 2j, 3 + 4j, 5], [7, 8, 9j]]), m.arange(12.0)), tmp_path / m.__name__)
        got = m.load(tmp_path / m.__name__)
        for t in got.values():  # what shares memory sees it
            t.mul_(2)[-1].fill_(5)
        found.append({k: (t.tolist(), str(t.dtype).split(".")[1]) for k, t in got.items()})
    assert found[0] == found[1]


def test_what_shares_memory_in_two_dtypes_is_refused(tmp_path):
    for views in (lambda m, z: [z, z.imag], lambda m, z: [z.conj(), m.view_as_real(z)]):
        for m in (torch, gt):
            with pytest.raises(RuntimeError, match="Cannot save multiple tensors or storages that view the same data as different types"):
                m.save(views(m, m.tensor([1j])), tmp_path / "x")


def test_complex_numbers_of_other_writers(tmp_path):
    z = torch.tensor([[1 + 2j, 3j]])
    safetensors.torch.save_file({"z": z}, tmp_path / "x")
    assert gt.load(tmp_path / "x")["z"].tolist() == z.tolist()
    gt.save({"z": gt.tensor([[1 + 2j, 3j]])}, tmp_path / "y")
    assert safetensors.torch.load_file(tmp_path / "y")["z"].tolist() == torch.view_as_real(z).tolist()


def test_paths_that_look_alike_are_kept_apart(tmp_path):
    gt.save({"a.b": gt.zeros(1), "a": {"b": gt.ones(1)}}, tmp_path / "x")
    got = gt.load(tmp_path / "x")
    assert got["a.b"].item() == 0 and got["a"]["b"].item() == 1


def test_tied_parameters(tmp_path):
    layer = gt.nn.Linear(3, 3)
    gt.save({"state": layer.state_dict(), "weight": layer.weight, "same": layer.weight}, tmp_path / "x")
    got = gt.load(tmp_path / "x")
    assert got["weight"] is got["same"] and isinstance(got["weight"], gt.nn.Parameter)
    np.testing.assert_array_equal(got["state"]["weight"].numpy(), layer.weight.detach().numpy())
    (got["weight"] * 2).sum().backward()
    assert got["weight"].grad is not None and not got["state"]["weight"].requires_grad
    assert set(safetensors.torch.load_file(tmp_path / "x")) == {"state.weight", "state.bias", "weight", "same"}
