"""Views and writes in place: as torch, also when reads flush in between."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt.ir.ops import OPS


def test_strides_and_contiguity_as_torch():
    a, ta = gt.zeros(2, 3, 4), torch.zeros(2, 3, 4)
    for f in (
        lambda x: x, lambda x: x.transpose(0, 1), lambda x: x[:, 1:], lambda x: x[:, ::2], lambda x: x.permute(2, 0, 1)[1],
        lambda x: x.reshape(6, 4), lambda x: x.transpose(1, 2).reshape(2, 12), lambda x: x[:, :1].expand(2, 5, 4),
        lambda x: x.unsqueeze(1).squeeze(0), lambda x: x.flatten(1),
    ):  # fmt: skip
        assert tuple(f(a).shape) == tuple(f(ta).shape)
        assert f(a).stride() == f(ta).stride()
        assert f(a).is_contiguous() == f(ta).is_contiguous()


FRESH = {
    **{f"interpolate {mode}": lambda m, x, mode=mode: m.nn.functional.interpolate(x, (6, 3), mode=mode) for mode in ("bilinear", "bicubic")},
    "interpolate trilinear": lambda m, x: m.nn.functional.interpolate(x[None], (2, 6, 3), mode="trilinear"),
    "max_pool3d": lambda m, x: m.nn.functional.max_pool3d(x, 2),
    "max_pool3d indices": lambda m, x: m.nn.functional.max_pool3d(x, 2, return_indices=True)[1],
    "solve from the right": lambda m, x: m.linalg.solve(x[0, 0] + 50 * m.eye(4), x[0, 1], left=False),
    "crop circular": lambda m, x: m.nn.functional.pad(x, (-1, 0, -1, -1), "circular"),
    "crop replicate": lambda m, x: m.nn.functional.pad(x, (0, 0, -2, -1), "replicate"),
    "pad by nothing": lambda m, x: m.nn.functional.pad(x, (0, 0, 0, 0), "reflect"),
    "pad and crop": lambda m, x: m.nn.functional.pad(x, (1, 1, -1, 0), "replicate"),
    "pixel_shuffle by 1": lambda m, x: m.pixel_shuffle(x, 1),
    "pixel_shuffle of one": lambda m, x: m.pixel_shuffle(x[:, :, :1, :1], 2),
    "pixel_unshuffle by 1": lambda m, x: m.pixel_unshuffle(x, 1),
    "channel_shuffle of one group": lambda m, x: m.channel_shuffle(x, 1),
}


@pytest.mark.parametrize("make", FRESH.values(), ids=FRESH)
def test_what_is_computed_lies_in_order_and_shares_no_memory(make):
    results = []
    for m in (gt, torch):
        x = m.arange(128.0).reshape(2, 4, 4, 4)
        y = make(m, x)
        results.append((y.view(-1).tolist(), y.is_contiguous(), y.add_(1).sum().item(), x.tolist()))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    assert results[0][1] and results[1][1]
    assert results[0][3] == results[1][3]


def test_view_refuses_what_needs_a_copy_and_reshape_copies():
    x = gt.tensor(np.arange(6.0).reshape(2, 3))
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.t().view(6)
    y = x.t().reshape(6)
    y += 1
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    x.view(6)[0] = 9
    assert x[0, 0].item() == 9


def test_writing_through_expand_is_refused():
    with pytest.raises(RuntimeError, match="single memory location"):
        gt.zeros(1, 3).expand(2, 3).add_(1)


KEPT = {
    "the view": lambda v, y: (v.mul_(3), v.sum()),
    "the view squared": lambda v, y: (v.mul_(3), (v * v).sum()),
    "its base": lambda v, y: (v.mul_(3), y.sum()),
    "both": lambda v, y: (v.mul_(3), v.sum() + y.sum()),
    "twice": lambda v, y: (v.mul_(3), v.mul_(2), v.sum()),
    "an element": lambda v, y: (v.__setitem__(1, 0.0), (v * v).sum()),
    "before and after": lambda v, y: (before := (v + 1).sum(), v.mul_(3), before + v.sum()),
    "before": lambda v, y: (before := (v + 1).sum(), v.mul_(3), before),
    "base written": lambda v, y: (before := (v + 1).sum(), y.mul_(3), before + v.sum()),
    "base written, not used after": lambda v, y: (before := (v + 1).sum(), y.mul_(3), before),
}


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("story", KEPT.values(), ids=KEPT)
def test_a_view_changed_in_place_keeps_the_gradient_of_its_value_now(story, flush):
    results = []
    for m in (gt, torch):
        x = m.arange(6.0).reshape(2, 3).requires_grad_()
        y = x * 2
        v = y[0]
        v.retain_grad()
        loss = story(v, y)[-1]
        if flush:
            loss.item()
        loss.backward()
        results.append((x.grad.tolist(), None if v.grad is None else v.grad.tolist()))
    assert results[0] == results[1]


OVERLAPPING_WRITES = {
    "window": lambda x: x.unfold(0, 2, 1)[0].add_(5),
    "column": lambda x: x.unfold(0, 2, 1)[:, 1].copy_(x.unfold(0, 2, 1)[:, 0] + 1),
    "windows of columns": lambda x: x.reshape(2, 3).t().unfold(0, 2, 1)[1, 0].mul_(-1),
    "diagonal of windows": lambda x: x.unfold(0, 2, 1).diagonal()[1:].sub_(3),
    "strided": lambda x: x.as_strided((3, 2), (1, 1))[1].fill_(5),
    "expanded": lambda x: x.expand(2, 6)[1, 1:3].mul_(4),
    "one value": lambda x: x.unfold(0, 3, 1)[1:].fill_(7),
    "detached": lambda x: x.detach().unfold(0, 2, 1)[1].add_(1),
}


@pytest.mark.parametrize("write", OVERLAPPING_WRITES.values(), ids=OVERLAPPING_WRITES)
def test_writes_to_parts_of_overlapping_views_reach_no_other_element(write):
    start = np.arange(1.0, 7.0)
    results = []
    for lib in (gt, torch):
        leaf = lib.tensor(start, requires_grad=True)
        x = leaf * 1
        windows, beside = x.unfold(0, 2, 1), x[2:]
        write(x)
        (x * lib.tensor(start)).sum().backward()
        results.append([t.tolist() for t in (x, windows, beside, leaf.grad)])
    assert results[0] == results[1]


@pytest.mark.parametrize("key, value", [(([0, 2], [1, 2]), 9.0), ([1], [7.0, 8.0, 9.0]), (lambda u: u > 3, 0.0)], ids=["indices", "rows", "mask"])
def test_indices_of_overlapping_views_write_no_other_element(key, value):
    results, start = [], np.arange(1.0, 7.0, dtype=np.float32)
    for lib in (gt, torch):
        x = lib.tensor(start)
        u = x.unfold(0, 3, 1)
        u[key(u) if callable(key) else key] = lib.tensor(value)
        results.append([x.tolist(), u.tolist()])
    assert results[0] == results[1]
    leaf = gt.tensor(start, requires_grad=True)
    y = leaf * 1
    u = y.unfold(0, 3, 1)
    u[key(u) if callable(key) else key] = gt.tensor(value)
    y.sum().backward()
    assert leaf.grad.tolist() == [float(a == b) for a, b in zip(results[0][0], start, strict=True)]  # torch's is that of elements beside


def test_computing_in_place_on_elements_that_are_one_is_refused():
    x = gt.zeros(4)
    for write in (lambda u: u.add_(1), lambda u: u.copy_(gt.ones(3, 2)), lambda u: gt.nn.functional.elu(u, inplace=True)):
        with pytest.raises(RuntimeError, match="single memory location"):
            write(x.unfold(0, 2, 1))
    assert x.tolist() == [0, 0, 0, 0]


VIEWS = [
    lambda x: x.unfold(0, 2, 1), lambda x: x.unfold(1, 2, 1)[..., 0], lambda x: x.unsqueeze(2).expand(*x.shape, 2)[..., 1],
    lambda x: x[1:3], lambda x: x[:, 0], lambda x: x[-1], lambda x: x.t(), lambda x: x[::2], lambda x: x.reshape(-1),
    lambda x: x[:, 1:].t(), lambda x: x[None, ..., 1], lambda x: x.detach(), lambda x: x.flatten()[2:7],
]  # fmt: skip
WRITES = [
    lambda v, k: v.add_(k), lambda v, k: v.mul_(2), lambda v, k: v.fill_(k), lambda v, k: v.zero_(),
    lambda v, k: v.copy_(v + 1), lambda v, k: v.__setitem__(0, k), lambda v, k: v.__setitem__(Ellipsis, v * 3),
    lambda v, k: v.clamp_(-5, 5),
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["view", "write", "read", "op"]), st.integers(0, 50), st.integers(0, 50)), max_size=14))
def test_random_programs_of_views_writes_and_reads_equal_torch(program):
    start = np.arange(12, dtype=np.float32).reshape(4, 3)
    ours, theirs = [gt.tensor(start)], [torch.tensor(start)]
    for kind, i, j in program:
        k = i % len(ours)
        a, b = ours[k], theirs[k]
        if kind == "view" and b.dim() == 2 and len(ours) < 8:
            f = VIEWS[j % len(VIEWS)]
            try:
                theirs.append(f(b))
            except (IndexError, RuntimeError) as error:  # into a dim that an earlier view left too small
                with pytest.raises(type(error)):
                    f(a)
            else:
                ours.append(f(a))
        elif kind == "write":
            f = WRITES[j % len(WRITES)]
            try:
                f(a, j)
            except IndexError:
                with pytest.raises(IndexError):
                    f(b, j)
            except RuntimeError as error:  # torch's result depends on the order in which it goes through the elements
                assert "single memory location" in str(error)
            else:
                f(b, j)
        elif kind == "op" and len(ours) < 8:
            ours.append(a * 2), theirs.append(b * 2)
        elif kind == "read":
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


PARTS = {
    "in place": lambda z: (z.real.mul_(2), z.imag.zero_()),
    "assigned": lambda z: (setattr(z, "real", 7.0), setattr(z, "imag", z.real)),
    "items": lambda z: (z.real.__setitem__(slice(1, 3), 7.0), z.imag[::2].add_(1)),
    "of a view": lambda z: (z.reshape(2, 2).t().real[0].fill_(9), z[1:].imag.neg_()),
    "under a view": lambda z: (z.real.view(2, 2).t()[0].fill_(5), z.imag[1:].zero_()),
    "of the whole": lambda z: z.mul_(1j),
    "detached": lambda z: z.real.detach().fill_(3),
    "of a conjugate": lambda z: (z.conj().imag.fill_(9), z[:2].conj().mul_(1j)),
    "under an adjoint": lambda z: z.view(2, 2).mH[0].real.add_(1),
    "as pairs": lambda z: (MODULES[type(z)].view_as_real(z)[1:].fill_(4), MODULES[type(z)].view_as_real(z[0])[1].neg_()),
    "as pairs and back": lambda z: (lambda m: m.view_as_complex(m.view_as_real(z)[::2]).mul_(2j))(MODULES[type(z)]),
}
MODULES = {gt.Tensor: gt, torch.Tensor: torch}


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("write", PARTS.values(), ids=PARTS)
def test_parts_of_complex_numbers_are_views(write, grad, read):
    def outcome(m):
        x = m.tensor([1 + 5j, 2 + 6j, 3 + 7j, 4 + 8j], requires_grad=grad)
        z = x * 1
        before, later = z.real, z[1:].imag
        if read:
            before.tolist()
        write(z)
        found = [z.tolist(), before.tolist(), later.tolist(), before.stride(), later.storage_offset(), later.is_contiguous()]
        if grad:
            (before.sum() + (z.abs() ** 2).sum()).backward()
            found.append(x.grad.tolist())
        return found

    assert outcome(gt) == outcome(torch)


@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_what_parts_of_complex_numbers_refuse(m):
    z = m.tensor([1 + 5j, 2 + 6j], requires_grad=True)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad is being used in an in-place operation"):
        z.real.mul_(2)
    with pytest.raises(RuntimeError, match="imag is not implemented for tensors with non-complex dtypes"):
        m.ones(2).imag = 1
    with pytest.raises(RuntimeError, match="Please clone\\(\\) the tensor"):
        m.tensor([1j]).expand(3).real.add_(1)
    x = m.ones(2)
    x.real = 3.0
    assert x.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("view", [lambda z: z.imag, lambda z: z.conj(), gt.view_as_real], ids=["imag", "conj", "view_as_real"])
def test_strides_over_views_of_complex_numbers_are_refused(view):
    with pytest.raises(RuntimeError, match="take clone\\(\\) first"):
        view(gt.tensor([1j, 2j])).as_strided((1,), (1,))


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_pairs_viewed_as_complex_numbers_are_written_as_such(grad, read):
    def outcome(m):
        x = m.arange(12.0, dtype=m.float64).reshape(3, 2, 2).requires_grad_(grad)
        y = x * 1
        z = m.view_as_complex(y[1:])
        if read:
            z.tolist()
        z.mul_(1j)
        z[0].imag.zero_()
        y[2, 1] = 5
        found = [y.tolist(), z.tolist(), z.stride(), z.storage_offset(), m.view_as_real(z)[:, 1].stride()]
        if grad:
            (z.abs() ** 2).sum().backward()
            found.append(x.grad.tolist())
        return found

    assert outcome(gt) == outcome(torch)


@pytest.mark.parametrize(
    "view",
    [
        lambda m: m.view_as_complex(m.ones(())), lambda m: m.view_as_complex(m.ones(3, 2).t()), lambda m: m.view_as_complex(m.ones(5)[1:3]),
        lambda m: m.view_as_complex(m.ones(2, 3)[:, :2]), lambda m: m.view_as_complex(m.ones(3, 2).bfloat16()),
        lambda m: m.view_as_complex(m.ones(2, 4)[:, ::2]), lambda m: m.view_as_complex(m.ones(1).expand(2)),
        lambda m: m.view_as_real(m.ones(2)), lambda m: m.view_as_real(m.tensor([1j]).conj()), lambda m: m.view_as_complex(2),
        lambda m: m.view_as_complex(m.tensor([[1j], [2j]]).conj().imag.expand(2, 2)),
    ],
)  # fmt: skip
def test_what_has_no_complex_view_is_refused_as_in_torch(view):
    with pytest.raises((RuntimeError, TypeError)) as theirs:
        view(torch)
    with pytest.raises((RuntimeError, TypeError)) as ours:
        view(gt)
    assert str(ours.value) == str(theirs.value)


def test_what_is_a_view_of_a_conjugate_is_told_and_resolved_as_in_torch():
    def outcome(m):
        z = m.tensor([[1 + 2j, 3 + 4j]])
        conj = z.conj()
        asked = [z, conj, conj[0], conj.imag, conj.real, conj.conj(), conj.clone(), conj * 1, z.mH, z.conj_physical(), m.view_as_real(z)]
        bits = [(t.is_conj(), t.is_neg(), m.is_conj(t), m.is_neg(t)) for t in asked]
        conj.resolve_conj().zero_()
        conj.imag.resolve_neg().zero_()
        z.resolve_conj()[0, 0] = 7
        return bits, z.tolist(), conj.tolist()

    assert outcome(gt) == outcome(torch)


@pytest.mark.parametrize("view", [lambda m, z: z.conj(), lambda m, z: z.real, lambda m, z: m.view_as_real(z)], ids=["conj", "real", "pairs"])
def test_a_change_of_complex_numbers_is_one_of_what_a_backward_kept_of_their_views(view):
    for m in (gt, torch):
        z = m.ones(2, dtype=m.complex64, requires_grad=True) * 1
        part = view(m, z)
        y = (part * part).abs().sum()
        z.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_infinite_parts_make_complex_numbers_without_nan():
    parts = np.array([[1.0, np.inf], [-np.inf, 2.0], [np.nan, np.inf]])
    want = torch.complex(torch.tensor(parts[:, 0]), torch.tensor(parts[:, 1])).numpy()
    for found in (OPS["complex"].numpy(parts[:, 0], parts[:, 1]), OPS["view_as_complex"].numpy(parts)):
        np.testing.assert_array_equal(found, want)
