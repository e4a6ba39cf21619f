"""What a call says of arguments it cannot take: torch's text where torch names them, never Python's own from the inside."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.arguments import guarded
from gt.ir.ops import OPS
from gt.recording import record


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.cumsum([1], 0),
        lambda m: m.exp(3),
        lambda m: m.cat("ab"),
        lambda m: m.chunk(m.ones(2), "a"),
        lambda m: m.combinations(m.ones(2), r=1.5),
        lambda m: m.broadcast_tensors(m.ones(2), [1]),
        lambda m: m.block_diag(m.ones(2), None),
        lambda m: m.nn.functional.gelu(None),
        lambda m: m.unbind(m.tensor(1.0)),
        lambda m: m.fft.fft(m.tensor(1.0)),
        lambda m: m.narrow(m.tensor(1.0), 0, 0, 0),
        lambda m: m.select_scatter(m.ones(2, 2), m.ones(2), 0, 5),
        lambda m: m.nn.functional.unfold(m.ones(1, 1, 3, 3), 2, stride=0),
        lambda m: m.nn.functional.pixel_shuffle(m.ones(2), 2),
        lambda m: m.meshgrid(),
        lambda m: m.ones(6).reshape(-2, -3),
        lambda m: m.ones(6).view(2, -2),
        lambda m: m.ones(6).repeat(-2),
        lambda m: m.ones(2, 3).repeat(1, -1),
        lambda m: m.ones(6).tile((-2,)),
        lambda m: m.ones(6).unfold(0, -2, 1),
        lambda m: m.ones(6).repeat_interleave(-2),
        lambda m: m.ones(6).repeat_interleave(m.tensor([-2])),
        lambda m: m.full((2, -1), 1j),
        lambda m: m.ones(6).split([7, -1]),
        lambda m: m.tril_indices(-2, 3),
        lambda m: m.triu_indices(2, -3),
        lambda m: m.hann_window(-3),
        lambda m: m.kaiser_window(-3),
        lambda m: m.histc(m.ones(3), bins=0),
        lambda m: m.histogram(m.ones(3), bins=-1),
        lambda m: m.histogramdd(m.ones(3, 2), [2, 0]),
        lambda m: m.fft.fftfreq(-3),
        lambda m: m.nn.functional.interpolate(m.ones(1, 1, 4, 4), size=-2),
    ],
)  # fmt: skip
def test_text_is_torchs(call: Callable[[Any], Any]) -> None:
    texts = []
    for library in (gt, torch):
        with pytest.raises((TypeError, RuntimeError, IndexError)) as caught:
            call(library)
        texts.append(str(caught.value).splitlines()[0].rstrip("."))
    assert texts[1] in texts[0]


def test_no_op_gives_a_negative_size() -> None:
    for call in (lambda m: m.ones(6).expand(-2, 6), lambda m: m.ones(6).unflatten(0, (-2, -3)), lambda m: m.arange(6).broadcast_to((-2, 6))):
        for library in (gt, torch):
            with pytest.raises(RuntimeError):
                call(library)
    with pytest.raises(RuntimeError, match=r"negative dimension -2: \[-2, -3\]"):
        record(OPS["reshape"], (gt.ones(6),), (("shape", (-2, -3)),))


def test_what_torch_has_no_text_for_names_what_was_given() -> None:
    said = r"index_fill\(\) received an invalid combination of arguments - got \(f32\[2\], 0, i64\[1\], list\)"
    with pytest.raises(TypeError, match=said):
        gt.index_fill(gt.ones(2), 0, gt.tensor([0]), [1])
    with pytest.raises(RuntimeError, match=r"linear\(\): these shapes and sizes cannot be taken: got \(f32\[2\], 3\)"):
        guarded(lambda *a: ()[0], "gt", "linear")(gt.ones(2), 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda out: gt.add(gt.ones(2), 1, out=out),
        lambda out: gt.kthvalue(gt.ones(2), 1, out=out),
        lambda out: gt.linalg.inv(gt.eye(2), out=out),
        lambda out: gt.nn.functional.relu(gt.ones(2), out=out),
        lambda out: gt.zeros(2, out=out),
    ],
)
def test_out_is_refused_with_what_to_do(call: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="out= is not offered, values are computed later: assign the result instead"):
        call(gt.ones(2))


def test_errors_of_the_function_itself_pass() -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        gt.add(gt.ones(2), gt.ones(3))

    def distance(a: Any, b: Any) -> Any:
        raise AttributeError("mine")

    with pytest.raises(AttributeError, match="mine"):
        gt.nn.functional.triplet_margin_with_distance_loss(gt.ones(1, 2), gt.ones(1, 2), gt.ones(1, 2), distance_function=distance)


def test_guarded_functions_keep_their_name_signature_and_pickle() -> None:
    assert gt.gather.__doc__ and list(inspect.signature(gt.gather).parameters)[:3] == ["input", "dim", "index"]
    for function in (gt.add, gt.linalg.inv, gt.nn.functional.relu, gt.fft.fft, gt.special.expit):
        assert pickle.loads(pickle.dumps(function)) is function


THEIRS = torch.ones(3, 3)
TAKEN_BY_VALUE = {
    "zeros_": lambda: gt.nn.init.zeros_(THEIRS), "xavier_normal_": lambda: gt.nn.init.xavier_normal_(THEIRS),
    "kaiming_uniform_": lambda: gt.nn.init.kaiming_uniform_(THEIRS), "eye_": lambda: gt.nn.init.eye_(THEIRS),
    "orthogonal_": lambda: gt.nn.init.orthogonal_(THEIRS), "sparse_": lambda: gt.nn.init.sparse_(THEIRS, 0.1),
    "trunc_normal_": lambda: gt.nn.init.trunc_normal_(THEIRS), "dirac_": lambda: gt.nn.init.dirac_(torch.ones(3, 3, 3)),
    "clip_grad_norm_": lambda: gt.nn.utils.clip_grad_norm_([torch.nn.Parameter(THEIRS)], 1.0),
    "clip_grad_value_": lambda: gt.nn.utils.clip_grad_value_(torch.nn.Parameter(THEIRS), 1.0),
    "get_total_norm": lambda: gt.nn.utils.get_total_norm([THEIRS]),
    "pack_padded_sequence": lambda: gt.nn.utils.rnn.pack_padded_sequence(gt.ones(3, 2, 1), torch.tensor([3, 2])),
    "isin": lambda: gt.isin(gt.ones(3), THEIRS), "isin of a number": lambda: gt.isin(1, THEIRS),
    "Normal": lambda: gt.distributions.Normal(THEIRS, 1.0), "Uniform": lambda: gt.distributions.Uniform(0.0, THEIRS),
    "Categorical": lambda: gt.distributions.Categorical(THEIRS), "Bernoulli": lambda: gt.distributions.Bernoulli(logits=THEIRS),
    "MultivariateNormal": lambda: gt.distributions.MultivariateNormal(gt.zeros(3), THEIRS),
    "arange": lambda: gt.arange(torch.tensor(4)), "arange's step": lambda: gt.arange(0, 4, torch.tensor(2)),
    "linspace": lambda: gt.linspace(torch.tensor(0.0), 1, 3), "logspace": lambda: gt.logspace(0, torch.tensor(1.0), 3),
    "quantile": lambda: gt.quantile(gt.ones(3), torch.tensor(0.5)), "nanquantile": lambda: gt.nanquantile(gt.ones(3), torch.tensor([0.5])),
    "tensor_split": lambda: gt.tensor_split(gt.ones(4), torch.tensor([1, 2])), "atleast_2d": lambda: gt.atleast_2d(THEIRS),
    "numel": lambda: gt.numel(THEIRS), "is_complex": lambda: gt.is_complex(THEIRS), "var": lambda: gt.var(gt.ones(3), correction=THEIRS),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN_BY_VALUE)
def test_a_tensor_of_torchs_is_not_taken_by_value(name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=r"torch\.(Tensor|Parameter); use gt\.tensor\(\.\.\.\) first"):
        TAKEN_BY_VALUE[name]()
    assert THEIRS.equal(torch.ones(3, 3))


def test_a_whole_number_may_be_a_tensor_of_no_dims() -> None:
    def run(m):
        n, one = m.tensor(3), m.tensor(1)
        x = m.arange(6.0).reshape(2, 3)
        found = (m.eye(n), m.eye(n, one), x.sum(one), x.mean(one - 2), x.softmax(one), x.std(one, correction=one), m.randint(one, n, (2,)) * 0)
        return [t.tolist() for t in found]

    assert run(gt) == run(torch)


def test_names_of_functions_that_are_methods_or_take_no_tensor() -> None:
    for m in (gt, torch):
        assert m.promote_types(type1=m.int8, type2=m.uint8) is m.int16
        assert m.detach(input=m.ones(1, requires_grad=True)).requires_grad is False
        m.set_rng_state(new_state=m.get_rng_state())


@pytest.mark.parametrize(
    ("name", "given", "names"),
    [
        *[(n, (), {"axis": -1}) for n in ("cumsum", "cumprod", "logcumsumexp", "softmax", "log_softmax", "unsqueeze", "nansum", "logsumexp")],
        *[(n, (), {"axis": 0}) for n in ("sort", "argsort", "unbind", "count_nonzero", "cummax", "median", "mode", "aminmax", "squeeze")],
        *[(n, (), {"dim": 1, "keepdims": True}) for n in ("argmax", "argmin", "nansum", "nanmean", "logsumexp", "nanmedian")],
        ("kthvalue", (2,), {"axis": 1, "keepdims": True}), ("topk", (1,), {"axis": 0}), ("chunk", (2,), {"axis": 1}),
        ("repeat_interleave", (2,), {"axis": 1}), ("tensor_split", (2,), {"axis": 1}), ("cumsum_", (), {"axis": 0}),
    ],
)  # fmt: skip
def test_methods_take_numpys_names_as_functions_do(name: str, given: tuple[Any, ...], names: dict[str, Any]) -> None:
    def run(m):
        x = m.tensor([[3.0, 1, 2], [6, 5, 4]])
        forms = [getattr(x.clone(), name)(*given, **names)]
        if not name.endswith("_"):
            forms.append(getattr(m, name)(x, *given, **names))
        return [[t.tolist() for t in (form if isinstance(form, tuple | list) else [form])] for form in forms]

    assert run(gt) == run(torch)


def test_functions_of_the_module_take_what_torchs_own_take_after_all() -> None:
    for m in (gt, torch):
        x, one = m.arange(8.0).reshape(2, 4), m.ones(4)
        assert m.layer_norm(x, (4,), one, one, 1e-5, False).equal(m.nn.functional.layer_norm(x, (4,), one, one))
        assert m.group_norm(x, 2, one, one, 1e-5, False).equal(m.nn.functional.group_norm(x, 2, one, one))


def test_a_dim_given_as_a_tensor_is_read_at_each_call() -> None:
    x, n = gt.arange(16.0).reshape(4, 4), gt.tensor(2)
    calls = (
        lambda: x.narrow(0, 0, n), lambda: x.tril(n - 1), lambda: x.unflatten(0, (n, -1)), lambda: x.as_strided((n, 2), (1, 2)),
        lambda: gt.randint(0, n, (n,)), lambda: x[:n], lambda: x.transpose(0, n - 1),
    )  # fmt: skip
    first = [call() for call in calls]
    n.fill_(1)
    second = [call() for call in calls]
    assert [t.shape for t in first] == [(2, 4), (4, 4), (2, 2, 4), (2, 2), (2,), (2, 4), (4, 4)]
    assert [t.shape for t in second] == [(1, 4), (4, 4), (1, 4, 4), (1, 2), (1,), (1, 4), (4, 4)]
    assert first[1].count_nonzero() == 12 and second[1].count_nonzero() == 9
    assert first[6].tolist() == x.t().tolist() and second[6].tolist() == x.tolist()


def test_an_op_that_was_given_a_numpy_number_takes_pythons_after_it() -> None:
    x = gt.arange(5.0)
    assert x.narrow(0, 0, np.int64(3)).tolist() == x.narrow(0, 0, 3).tolist() == [0, 1, 2]


def test_transpose_needs_both_dims() -> None:
    with pytest.raises(TypeError, match="dim1"):
        gt.ones(2, 3).transpose(0)


INTS: list[Callable[[gt.Tensor, Any], Any]] = [
    lambda x, n: x.tril(n), lambda x, n: x.triu(n), lambda x, n: x.diagonal(n), lambda x, n: x.unfold(0, n, 1), lambda x, n: x.topk(n).values,
    lambda x, n: x.as_strided((n, 2), (1, 1)), lambda x, n: x.as_strided((2, 2), (1, 1), n), lambda x, n: gt.diag_embed(x, n),
    lambda x, n: gt.diagflat(x, n), lambda x, n: x.kthvalue(n).values, lambda x, n: gt.histogram(x, n).hist, lambda x, n: x.narrow(0, 0, n),
    lambda x, n: gt.nn.functional.group_norm(x, n), lambda x, n: gt.nn.functional.embedding(gt.tensor([0]), x, n),
    lambda x, n: gt.nn.functional.cross_entropy(x, gt.tensor([0, 1, 2]), ignore_index=n),
]  # fmt: skip


@pytest.mark.parametrize("call", INTS)
def test_an_int_given_as_a_float_is_refused_and_later_ints_are_not(call: Callable[[gt.Tensor, Any], Any]) -> None:
    x = gt.arange(9.0).reshape(3, 3)
    with pytest.raises(TypeError):
        call(x, 1.0)
    assert call(x, 1).numpy().dtype == np.float32
