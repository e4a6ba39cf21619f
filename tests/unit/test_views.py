"""Views and writes in place: as torch, also when reads flush in between."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gt


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


VIEWS = [
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
            except IndexError:  # an index into a dim that an earlier view left empty
                with pytest.raises(IndexError):
                    f(a)
            else:
                ours.append(f(a))
        elif kind == "write":
            f = WRITES[j % len(WRITES)]
            try:
                f(b, j)
            except IndexError:
                with pytest.raises(IndexError):
                    f(a, j)
            else:
                f(a, j)
        elif kind == "op" and len(ours) < 8:
            ours.append(a * 2), theirs.append(b * 2)
        elif kind == "read":
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
