"""Packed sequences and recurrent layers on them, against torch: values, last states, all gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt

LENGTHS = ([5, 5, 3, 1], [2, 5, 1, 3], [4, 4, 4], [1, 1])


def both(*arrays: np.ndarray) -> list[tuple[Any, ...]]:
    return [tuple(m.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays) for m in (gt, torch)]


def same(mine: Any, theirs: Any) -> None:
    np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("batch_first", [False, True])
def test_packing_and_padding(lengths: list[int], batch_first: bool) -> None:
    rng = np.random.default_rng(0)
    shape = (len(lengths), max(lengths) + 1, 2) if batch_first else (max(lengths) + 1, len(lengths), 2)
    values = rng.normal(size=shape).astype(np.float32)
    results = []
    for m, (x,) in zip((gt, torch), both(values), strict=True):
        rnn = m.nn.utils.rnn
        packed = rnn.pack_padded_sequence(x, m.tensor(lengths), batch_first, enforce_sorted=False)
        padded, back = rnn.pad_packed_sequence(packed, batch_first, padding_value=-1.5, total_length=max(lengths) + 2)
        (padded * padded).sum().backward()
        each = rnn.unpack_sequence(rnn.pack_sequence([x[:n, 0] for n in (3, 2, 2)])) if not batch_first else []
        results.append((*packed, padded, back, x.grad, *each))
    for mine, theirs in zip(*results, strict=True):
        same(mine, theirs)
        assert str(mine.dtype) == str(theirs.dtype).replace("torch.", "gt.") or mine.dtype.name in str(theirs.dtype)


@pytest.mark.parametrize("lengths", LENGTHS[:2], ids=str)
@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("RNN", {}), ("RNN", {"nonlinearity": "relu", "bidirectional": True}), ("GRU", {"num_layers": 2, "bidirectional": True}),
        ("GRU", {"bias": False}), ("LSTM", {"num_layers": 2, "bidirectional": True}), ("LSTM", {"proj_size": 2, "num_layers": 2}),
        ("LSTM", {"proj_size": 2, "bidirectional": True, "batch_first": True}), ("LSTM", {"num_layers": 2, "dropout": 1.0}),
    ],
)  # fmt: skip
def test_layers_on_packed_sequences(name: str, options: dict[str, Any], lengths: list[int], with_states: bool) -> None:
    rng = np.random.default_rng(1)
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(3, 4, **options)
    mine = getattr(gt.nn, name)(3, 4, **options)
    mine.load_state_dict({k: gt.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    sizes = [options.get("proj_size", 4)] + ([4] if name == "LSTM" else [])
    arrays = [rng.normal(size=(max(lengths), len(lengths), 3)).astype(np.float32)]
    arrays += [rng.normal(size=(count, len(lengths), s)).astype(np.float32) for s in sizes] if with_states else []
    results = []
    for m, layer, (x, *states) in zip((gt, torch), (mine, theirs), both(*arrays), strict=True):
        packed = m.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=lengths == sorted(lengths, reverse=True))
        hx = None if not states else tuple(states) if name == "LSTM" else states[0]
        out, last = layer(packed, hx)
        finals = last if name == "LSTM" else (last,)
        padded, _ = m.nn.utils.rnn.pad_packed_sequence(out)
        sum((t * t).sum() for t in (padded, *finals)).backward()
        results.append((out.data, padded, *finals, x.grad, *(s.grad for s in states), *(p.grad for p in layer.parameters())))
    for a, b in zip(*results, strict=True):
        same(a, b)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.nn.utils.rnn.pack_padded_sequence(m.ones(3, 2, 1), [1, 3]),
        lambda m: m.nn.utils.rnn.pack_padded_sequence(m.ones(3, 2, 1), [3, 0]),
        lambda m: m.nn.utils.rnn.pack_padded_sequence(m.ones(3, 2, 1), [3]),
        lambda m: m.nn.utils.rnn.pack_padded_sequence(m.ones(0, 2, 1), [3, 1]),
        lambda m: m.nn.utils.rnn.pad_packed_sequence(m.nn.utils.rnn.pack_sequence([m.ones(3, 1)]), total_length=2),
        lambda m: m.nn.RNN(2, 2)(m.nn.utils.rnn.pack_sequence([m.ones(3, 1)])),
        lambda m: m.nn.RNN(1, 2)(m.nn.utils.rnn.pack_sequence([m.ones(3, 1)]), m.ones(1, 2, 2)),
    ],
)
def test_errors_are_torchs(call: Any) -> None:
    with pytest.raises((RuntimeError, ValueError)) as theirs:
        call(torch)
    with pytest.raises(type(theirs.value)) as mine:
        call(gt)
    assert str(mine.value).split(" [")[0][:60] == str(theirs.value).split(" [")[0][:60]


def test_an_embedded_packed_sequence_made_by_hand() -> None:
    packed = gt.nn.utils.rnn.PackedSequence(gt.ones(4, 3), gt.tensor([3, 1]))
    out, h = gt.nn.GRU(3, 2)(packed)
    assert out.data.shape == (4, 2) and h.shape == (1, 3, 2) and packed.to(gt.float64).data.dtype is gt.float64
