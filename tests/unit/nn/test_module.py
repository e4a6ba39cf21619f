"""Module: registration, traversal, conversion, hooks, containers, state dicts - each as torch's."""

import copy
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt import nn


@pytest.fixture(autouse=True)
def _seeded():
    gt.manual_seed(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.rest = nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))])
        self.scale = nn.Parameter(gt.ones(2))
        self.register_buffer("seen", gt.zeros(1))
        self.register_buffer("scratch", gt.zeros(1), persistent=False)
        self.missing = None

    def forward(self, x):
        x = self.first(x)
        for part in self.rest:
            x = part(x)
        return x * self.scale


def test_names_come_in_torchs_order():
    net = Net()
    assert [n for n, _ in net.named_parameters()] == [
        "scale", "first.weight", "first.bias", "rest.0.weight", "rest.0.bias", "rest.1.1.weight", "rest.1.1.bias",
    ]  # fmt: skip
    assert [n for n, _ in net.named_buffers()] == ["seen", "scratch"]
    assert "seen" in net.state_dict() and "scratch" not in net.state_dict()
    assert [n for n, _ in net.named_children()] == ["first", "rest"]
    assert [n for n, _ in net.named_modules()] == ["", "first", "rest", "rest.0", "rest.1", "rest.1.0", "rest.1.1"]
    assert net.get_parameter("rest.0.bias") is net.rest[0].bias and net.get_submodule("rest.1")[0].__class__ is nn.ReLU
    assert net.get_buffer("seen") is net.seen
    with pytest.raises(AttributeError, match="`seen` is not an nn.Parameter"):
        net.get_parameter("seen")


def test_shared_parameters_come_once():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    assert [n for n, _ in net.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert len(list(net.named_parameters(remove_duplicate=False))) == 4
    assert len(net.state_dict()) == 4
    net.double()
    assert net[1].weight is net[0].weight and net[0].weight.dtype is gt.float64


def test_registration_by_assignment():
    net = nn.Module()
    net.a = nn.Parameter(gt.ones(2))
    net.b = nn.Buffer(gt.ones(3), persistent=False)
    net.register_parameter("c", None)
    assert dict(net.named_parameters()).keys() == {"a"} and net.c is None and not net.state_dict().keys() - {"a"}
    with pytest.raises(TypeError, match=r"cannot assign 'Tensor' as parameter 'a' \(torch.nn.Parameter or None expected\)"):
        net.a = gt.ones(2)
    net.a = None
    assert list(net.parameters()) == []
    net.b = gt.zeros(3)
    assert dict(net.named_buffers())["b"].sum().item() == 0
    del net.b
    assert not list(net.buffers())
    with pytest.raises(AttributeError, match="'Module' object has no attribute 'b'"):
        net.b  # noqa: B018
    with pytest.raises(KeyError, match='can.*t contain "."'):
        net.register_parameter("x.y", None)
    with pytest.raises(KeyError, match="attribute 'forward' already exists"):
        net.register_buffer("forward", None)

    class Early(nn.Module):
        def __init__(self):
            self.w = nn.Parameter(gt.ones(1))

    with pytest.raises(AttributeError, match=r"cannot assign parameters before Module.__init__\(\) call"):
        Early()


def test_conversion_keeps_parameters_and_gradients():
    net, x = Net(), gt.ones(2, 3)
    optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
    net(x).sum().backward()
    weight = net.first.weight
    net.double()
    assert net.first.weight is weight and weight.dtype is gt.float64 and weight.grad.dtype is gt.float64 and weight.is_leaf
    assert net.seen.dtype is gt.float64
    before = weight.detach().numpy()
    optimizer.zero_grad()
    net(x.double()).sum().backward()
    optimizer.step()
    assert np.abs(weight.detach().numpy() - before).max() > 0
    with pytest.raises(TypeError, match="only accepts floating point or complex dtypes"):
        net.to(gt.int64)
    assert net.half().to(gt.float32).bfloat16().first.weight.dtype is gt.bfloat16


@pytest.mark.parametrize("m", [gt, torch])
def test_what_requires_a_gradient_takes_no_whole_numbers(m):
    net = m.nn.BatchNorm1d(2)
    for wrong in (m.int32, m.bool, "torch.LongTensor"):
        with pytest.raises(RuntimeError, match="data set to a tensor that requires gradients must be floating point or complex dtype"):
            net.type(wrong)
    assert net.weight.dtype is m.float32 and net.running_mean.dtype is m.float32
    assert net.type("torch.DoubleTensor").weight.dtype is m.float64 and net.num_batches_tracked.dtype is m.float64
    for p in net.parameters():
        p.requires_grad_(False)
    assert net.type(m.int32).weight.dtype is m.int32 and net.running_mean.dtype is m.int32


def test_modes_apply_and_requires_grad():
    net = Net().eval()
    assert not any(m.training for m in net.modules())
    net.train()
    assert all(m.training for m in net.modules())
    with pytest.raises(ValueError, match="training mode is expected to be boolean"):
        net.train(1)
    seen = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "Linear", "ReLU", "Linear", "Sequential", "ModuleList", "Net"]
    assert not any(p.requires_grad for p in net.requires_grad_(False).parameters())


def test_forward_hooks():
    layer, calls = nn.Linear(2, 2), []
    layer.register_forward_pre_hook(lambda m, args: calls.append("pre") or (args[0] * 0,))
    layer.register_forward_pre_hook(lambda m, args, kwargs: calls.append("first") or None, prepend=True, with_kwargs=True)
    handle = layer.register_forward_hook(lambda m, args, out: calls.append("post") or out + 1)
    out = layer(gt.ones(1, 2))
    np.testing.assert_allclose(out.detach().numpy()[0], layer.bias.detach().numpy() + 1, rtol=1e-6)
    assert calls == ["first", "pre", "post"]
    handle.remove()
    layer(gt.ones(1, 2))
    assert calls == ["first", "pre", "post", "first", "pre"]
    always = []
    layer.register_forward_hook(lambda m, args, out: always.append(out), always_call=True)
    with pytest.raises(RuntimeError):
        layer(gt.ones(1, 3))
    assert always == [None]


@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_backward_hooks(m):
    net, seen = m.nn.Linear(2, 1, bias=False), []
    with m.no_grad():
        net.weight.fill_(2.0)
    net.register_full_backward_pre_hook(lambda mod, grads: (grads[0] * 3,))
    net.register_full_backward_hook(lambda mod, gin, gout: seen.append((gin[0].tolist(), gout[0].tolist())) or (gin[0] + 1,))
    x = m.ones(1, 2, requires_grad=True)
    net(x).sum().backward()
    assert seen == [([[6.0, 6.0]], [[3.0]])] and x.grad.tolist() == [[7.0, 7.0]] and net.weight.grad.tolist() == [[3.0, 3.0]]


@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_backward_hooks_see_all_inputs_and_outputs_at_once(m):
    class Both(m.nn.Module):
        def forward(self, a, b, note):
            return a * b, note, a + b

    lists = lambda grads: [None if g is None else g.tolist() for g in grads]  # noqa: E731
    net, seen = Both(), []
    net.register_full_backward_pre_hook(lambda mod, gout: seen.append(lists(gout)))
    net.register_full_backward_hook(lambda mod, gin, gout: seen.append(lists(gin)) or (gin[0], gin[1] * 2, None))
    a, b = m.tensor([2.0], requires_grad=True), m.tensor([5.0], requires_grad=True)
    product, note, _ = net(a, b, "note")
    product.sum().backward()
    assert note == "note" and seen == [[[1.0], None, None], [[5.0], [2.0], None]]
    assert a.grad.tolist() == [5.0] and b.grad.tolist() == [4.0]
    net.register_full_backward_hook(lambda mod, gin, gout: (gin[0],))
    with pytest.raises(RuntimeError, match="invalid number of grad_input, got 1, but expected 3"):
        net(a, b, "note")[0].sum().backward()


def test_state_dict_round_trip_and_torch():
    net, other = Net(), Net()
    found = other.load_state_dict(net.state_dict())
    assert repr(found) == "<All keys matched successfully>"
    np.testing.assert_array_equal(other.first.weight.detach().numpy(), net.first.weight.detach().numpy())
    from_torch = torch.nn.Linear(3, 4)
    net.first.load_state_dict(from_torch.state_dict())
    np.testing.assert_array_equal(net.first.weight.detach().numpy(), from_torch.weight.detach().numpy())
    net.first.load_state_dict(from_torch.bfloat16().state_dict())
    np.testing.assert_allclose(net.first.weight.detach().numpy(), from_torch.weight.detach().float().numpy())


def test_state_dict_shares_memory_and_keeps_its_prefix():
    layer = nn.Linear(2, 1)
    state = layer.state_dict(prefix="a.")
    assert list(state) == ["a.weight", "a.bias"]
    state["a.weight"].fill_(5.0)
    assert layer.weight.tolist() == [[5.0, 5.0]]
    assert layer.state_dict(keep_vars=True)["weight"] is layer.weight


def test_load_errors_are_torchs():
    got, want = nn.Linear(2, 3), torch.nn.Linear(2, 3)
    bad = {"weight": np.zeros((3, 4), np.float32), "extra": np.zeros(1, np.float32)}
    with pytest.raises(RuntimeError) as ours:
        got.load_state_dict(bad)
    with pytest.raises(RuntimeError) as theirs:
        want.load_state_dict({k: torch.tensor(v) for k, v in bad.items()})
    assert str(ours.value).split() == str(theirs.value).split()
    found = got.load_state_dict({"bias": np.ones(3, np.float32), "extra": np.ones(1)}, strict=False)
    assert found.missing_keys == ["weight"] and found.unexpected_keys == ["extra"] and got.bias.tolist() == [1.0, 1.0, 1.0]


def test_extra_state_and_state_hooks():
    class Counting(nn.Module):
        count = 0

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    a, b = nn.Sequential(Counting()), nn.Sequential(Counting())
    a[0].count = 7
    a.register_state_dict_post_hook(lambda m, state, prefix, meta: state.__setitem__("note", 1))
    state = a.state_dict()
    assert state["0._extra_state"] == {"count": 7} and state.pop("note") == 1
    calls = []
    b.register_load_state_dict_pre_hook(lambda m, state, *rest: calls.append(len(rest)))
    b.register_load_state_dict_post_hook(lambda m, keys: calls.append(keys.missing_keys))
    b.load_state_dict(state)
    assert b[0].count == 7 and calls == [6, []]


def test_copies_and_pickles():
    net = Net()
    twin = copy.deepcopy(net)
    with gt.no_grad():
        twin.scale.fill_(3.0)
    assert net.scale.tolist() == [1.0, 1.0] and isinstance(twin.scale, nn.Parameter)
    again = pickle.loads(pickle.dumps(net.rest[0]))
    assert isinstance(again.weight, nn.Parameter) and again.weight.requires_grad
    np.testing.assert_array_equal(again.weight.detach().numpy(), net.rest[0].weight.detach().numpy())


@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_lists(m):
    parts = m.nn.ModuleList([m.nn.ReLU()])
    parts.append(m.nn.Tanh()).extend([m.nn.Sigmoid()])
    parts.insert(1, m.nn.GELU())
    parts += [m.nn.Tanh()]
    names = lambda p: [type(x).__name__ for x in p]  # noqa: E731
    assert names(parts) == ["ReLU", "GELU", "Tanh", "Sigmoid", "Tanh"] and len(parts) == 5
    assert names(parts[1:3]) == ["GELU", "Tanh"] and type(parts[-1]).__name__ == "Tanh"
    parts[0] = m.nn.SiLU()
    del parts[3]
    assert type(parts.pop(-1)).__name__ == "Tanh" and names(parts) == ["SiLU", "GELU", "Tanh"]
    assert list(dict(parts.named_children())) == ["0", "1", "2"]
    with pytest.raises(IndexError):
        parts[5]
    assert repr(m.nn.ModuleList([m.nn.ReLU(), m.nn.ReLU(), m.nn.Tanh()])) == "ModuleList(\n  (0-1): 2 x ReLU()\n  (2): Tanh()\n)"
    both = m.nn.Sequential(m.nn.ReLU()) + m.nn.Sequential(m.nn.Tanh())
    assert names(both) == ["ReLU", "Tanh"] and names(both * 2) == ["ReLU", "Tanh"] * 2 and names(both[:1]) == ["ReLU"]


@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_dicts(m):
    parts = m.nn.ModuleDict({"a": m.nn.ReLU()})
    parts["b"] = m.nn.Tanh()
    parts.update([("c", m.nn.GELU())])
    assert (
        list(parts) == ["a", "b", "c"] and "b" in parts and len(parts) == 3 and [k for k, _ in parts.items()] == list(parts.keys())
    )
    assert type(parts.pop("b")).__name__ == "Tanh" and list(parts.keys()) == ["a", "c"]
    values = m.nn.ParameterDict({"w": m.ones(2)})
    values["b"] = m.zeros(1)
    assert [n for n, _ in values.named_parameters()] == ["w", "b"] and isinstance(values["w"], m.nn.Parameter)
    assert values.get("z") is None and values.setdefault("n", 3) == 3 and list(values) == ["w", "b", "n"]
    assert values.popitem() == ("n", 3) and len(values.copy()) == 2 and list(reversed(values)) == ["b", "w"]
    row = m.nn.ParameterList([m.ones(1), m.zeros(2)])
    row.append(m.ones(3))
    assert [n for n, _ in row.named_parameters()] == ["0", "1", "2"] and row[-1].shape[0] == 3 and len(row[:2]) == 2


def test_reprs_are_torchs():
    make = lambda m: m.nn.Sequential(  # noqa: E731
        m.nn.Conv2d(3, 4, 3, padding=1, bias=False), m.nn.BatchNorm2d(4), m.nn.ReLU(inplace=True), m.nn.MaxPool2d(2), m.nn.Flatten(),
        m.nn.Dropout(0.1), m.nn.LSTM(4, 5, 2, batch_first=True), m.nn.Embedding(10, 3, padding_idx=0), m.nn.GRUCell(3, 4, bias=False),
        m.nn.Upsample(scale_factor=2), m.nn.ParameterList(), m.nn.Bilinear(2, 3, 4), m.nn.CrossEntropyLoss(), m.nn.Softmax(1),
    )  # fmt: skip
    assert repr(make(gt)) == repr(make(torch))


def test_parameter_shows_itself_and_refuses_what_is_no_tensor():
    assert repr(nn.Parameter(gt.ones(2))) == "Parameter containing:\ntensor([1., 1.], requires_grad=True)"
    assert nn.Parameter().numel() == 0
    with pytest.raises(TypeError, match="expected a gt.Tensor, got list"):
        nn.Parameter([1.0])


def test_what_is_not_supported_says_what_to_use():
    with pytest.raises(NotImplementedError, match="gradients are dense"):
        nn.Embedding(3, 2, sparse=True)
    with pytest.raises(NotImplementedError, match="average windows first"):
        nn.functional.interpolate(gt.ones(1, 1, 4, 4), scale_factor=0.5, mode="bilinear", antialias=True)


@pytest.mark.parametrize("there", ["parameter", "no parameter", "module", "no module", "buffer", "no buffer", "attribute", "nothing"])
@pytest.mark.parametrize("given", ["parameter", "module", "buffer", "hidden buffer", "tensor", "none", "number"])
def test_what_an_attribute_takes_depends_on_what_it_is_as_in_torch(there: str, given: str) -> None:
    found = []
    for lib in (torch, gt):
        m, nn = lib.nn.Module(), lib.nn
        if there.endswith("parameter"):
            m.register_parameter("x", None if there.startswith("no") else nn.Parameter(lib.ones(1)))
        elif there.endswith("module"):
            m.add_module("x", None if there.startswith("no") else nn.ReLU())
        elif there.endswith("buffer"):
            m.register_buffer("x", None if there.startswith("no") else lib.ones(1), persistent=False)
        elif there == "attribute":
            m.x = 1
        value = {
            "parameter": lambda nn=nn, lib=lib: nn.Parameter(lib.zeros(1)), "module": nn.Identity, "tensor": lambda lib=lib: lib.zeros(1),
            "buffer": lambda nn=nn, lib=lib: nn.Buffer(lib.zeros(1)), "none": lambda: None, "number": lambda: 3,
            "hidden buffer": lambda nn=nn, lib=lib: nn.Buffer(lib.zeros(1), persistent=False),
        }[given]()  # fmt: skip
        try:
            m.x = value
            fault = ""
        except (TypeError, KeyError) as error:
            fault = type(error).__name__ + str(error).split("' as ")[-1]
        tables = [[(k, type(v).__name__) for k, v in getattr(m, t).items()] for t in ("_parameters", "_modules", "_buffers")]
        found.append((fault, tables, [k for k, _ in m.named_parameters()], list(m.state_dict()), "x" in m.__dict__))
    kinds = str(found[0][1]).replace("'Tensor'", "'Buffer'"), str(found[1][1]).replace("'Tensor'", "'Buffer'")
    assert kinds[0] == kinds[1] and found[0][0] == found[1][0] and found[0][2:] == found[1][2:]


class Tagged(gt.nn.Parameter):
    def __new__(cls, data: Any, tag: Any = None, requires_grad: bool = True) -> Any:
        self = super().__new__(cls, data, requires_grad)
        self.tag = tag
        return self


class TaggedOfTorch(torch.nn.Parameter):
    def __new__(cls, data: Any, tag: Any = None, requires_grad: bool = True) -> Any:
        self = super().__new__(cls, data, requires_grad)
        self.tag = tag
        return self


class Late(gt.nn.Parameter):
    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__()
        self.tag = "late"


class LateOfTorch(torch.nn.Parameter):
    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__()
        self.tag = "late"


@pytest.mark.parametrize("copied", [lambda p: p, copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
@pytest.mark.parametrize(
    "make",
    [
        lambda m: (Tagged if m is gt else TaggedOfTorch)(m.ones(2), "t"),
        lambda m: (Tagged if m is gt else TaggedOfTorch)(m.ones(2), requires_grad=False),
        lambda m: (Late if m is gt else LateOfTorch)(m.ones(2)),
        lambda m: m.Tensor._make_subclass(Tagged if m is gt else TaggedOfTorch, m.ones(2), True),
        lambda m: m.Tensor._make_subclass(m.nn.Parameter, m.ones(2)),
    ],
)
def test_subclasses_of_parameter_are_made_copied_and_printed_as_torchs(make: Any, copied: Any) -> None:
    mine, theirs = copied(make(gt)), copied(make(torch))
    assert repr(mine) == repr(theirs).replace("OfTorch", "")
    assert type(mine).__name__ == type(theirs).__name__.replace("OfTorch", "")
    assert (mine.requires_grad, mine.tolist(), mine.__dict__) == (theirs.requires_grad, theirs.tolist(), theirs.__dict__)
    assert type(mine + 1) is gt.Tensor and [n for n, _ in gt.nn.ParameterList([mine]).named_parameters()] == ["0"]


def test_copies_keep_the_attributes_that_a_user_gave_as_in_torch() -> None:
    found = []
    for m in (gt, torch):
        p, t = m.nn.Parameter(m.ones(2)), m.ones(2)
        (p * 2).sum().backward()
        for x in (p, t):
            x.tag = [1]
        sent = [f(x) for x in (p, t) for f in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)))]
        found.append([(getattr(x, "tag", None), x.grad is None) for x in sent])
    assert found[0] == found[1]


def test_a_submodule_is_set_by_its_dotted_name_as_in_torch() -> None:
    found = []
    for m in (gt.nn, torch.nn):
        net = m.Sequential(m.Sequential(m.Linear(2, 3), m.ReLU()), m.Linear(3, 2))
        net.set_submodule("0.1", m.Tanh())
        net.set_submodule("0.new", m.Identity())
        net.set_submodule("1", m.Linear(3, 1), strict=True)
        faults = []
        for target, module, strict in (
            ("", m.ReLU(), False), ("0.0", 3, False), ("0.9", m.ReLU(), True), ("7.1", m.ReLU(), False), ("0.0.weight", m.ReLU(), False),
            ("0.0.weight.x", m.ReLU(), False),
        ):  # fmt: skip
            with pytest.raises((ValueError, AttributeError)) as fault:
                net.set_submodule(target, module, strict)
            faults.append((type(fault.value), str(fault.value)))
        found.append((repr(net), faults))
    assert found[0] == found[1]


def test_modules_are_emptied_and_compiled_as_in_torch() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weight, before = net[0].weight, net(gt.ones(3, 2)).shape
    assert net.compile(mode="max-autotune") is None and net(gt.ones(3, 2)).shape == before
    assert net.to_empty(device="cpu") is net and net[0].weight is weight and weight.abs().sum() == 0
    assert net[1].running_var.sum() == 0


def test_private_names_of_state_dict_hooks_are_torchs() -> None:
    found = []
    for m in (gt.nn, torch.nn):
        seen: list[Any] = []

        class Renamed(m.Module):
            def __init__(self, m=m, seen=seen):
                super().__init__()
                self.inner, self.seen = m.Linear(1, 1, bias=False), seen
                self._register_load_state_dict_pre_hook(self._take)
                self._register_load_state_dict_pre_hook(lambda module, *rest: seen.append(module is self), with_module=True)
                self._register_state_dict_hook(lambda module, out, prefix, meta: out.update({prefix + "more": 1}))

            def _take(self, state, prefix, meta, strict, missing, unexpected, errors):
                self.seen.append((prefix, strict, sorted(state)))
                state[prefix + "inner.weight"] = state.pop(prefix + "old")

        net = m.Sequential(Renamed())
        state = net.state_dict()
        del state["0.more"]
        state["0.old"] = state.pop("0.inner.weight")
        seen.append(str(net.load_state_dict(state)))
        twin = copy.deepcopy(net)
        twin.load_state_dict({"0.old": state["0.old"]})
        found.append((seen, list(net.state_dict()), twin[0].seen[-2:]))
    assert found[0] == found[1]


def test_batch_norms_become_synchronised_ones_as_in_torch() -> None:
    found = []
    for m in (gt.nn, torch.nn):
        net = m.Sequential(m.Linear(2, 2), m.Sequential(m.BatchNorm1d(2, eps=1e-3), m.ReLU()), m.BatchNorm2d(3, affine=False)).eval()
        weight = net[1][0].weight
        twin = m.SyncBatchNorm.convert_sync_batchnorm(net)
        assert twin is net and twin[1][0].weight is weight and type(twin[1][0]) is m.SyncBatchNorm
        alone = m.SyncBatchNorm.convert_sync_batchnorm(m.BatchNorm1d(2, bias=False))
        found.append((repr(twin), list(twin.state_dict()), twin[2].training, repr(alone), list(alone.state_dict())))
    assert found[0] == found[1]
    assert gt.nn.SyncBatchNorm(2, 1e-5, 0.1, True, True, None)(gt.randn(4, 2)).shape == (4, 2)


def test_recurrent_layers_name_their_flat_weights_as_torchs() -> None:
    make = lambda m: m.LSTM(2, 3, 2, bidirectional=True, proj_size=2)  # noqa: E731
    assert make(nn)._flat_weights_names == make(torch.nn)._flat_weights_names
    assert [tuple(w.shape) for w in make(nn)._flat_weights] == [tuple(w.shape) for w in make(torch.nn)._flat_weights]


def test_dicts_of_parameters_have_torchs_order_and_print_as_torchs() -> None:
    found = []
    for m in (gt, torch):
        values = {"b": m.nn.Parameter(m.ones(2, 3)), "a": m.nn.Parameter(m.ones((), dtype=m.complex64)), "c": 3}
        pairs = [(k, values[k]) for k in ("c", "b")]
        dicts = [m.nn.ParameterDict(v) for v in (values, OrderedDict(values), pairs, m.nn.ParameterDict(pairs))]
        dicts[2].update({"z": m.nn.Parameter(m.ones(1, dtype=m.float64)), "d": m.nn.Parameter(m.ones(1).long(), requires_grad=False)})
        found.append([(repr(d), [k for k, _ in d.named_parameters()]) for d in dicts])
    assert found[0] == found[1]
    with pytest.raises(TypeError, match=r"desired dtype=gt\.int32"):
        nn.Linear(2, 2).to(gt.int32)


@pytest.mark.parametrize("name", ["pad_sequence", "pack_sequence"])
@pytest.mark.parametrize("case", ["empty", "tuple", "number", "mixed", "none", "0d", "generator"])
def test_sequences_that_cannot_be_padded_are_refused_as_in_torch(name: str, case: str) -> None:
    raised = []
    for m in (gt, torch):
        given = {
            "empty": [], "tuple": (), "number": 3, "mixed": [m.ones(2, 3), m.ones(2, 4)], "none": [None], "0d": [m.ones(())],
            "generator": (x for x in [m.ones(2)]),
        }[case]  # fmt: skip
        try:
            getattr(m.nn.utils.rnn, name)(given)
            raised.append(None)
        except (RuntimeError, TypeError, AttributeError, IndexError) as error:
            raised.append(error)
    assert isinstance(raised[0], type(raised[1]))
    if case in ("empty", "tuple"):
        assert str(raised[0]) == str(raised[1])
