"""Recurrent layers and cells with torch's parameter names and gate order. Steps are unrolled when recorded.

The input's share of all steps of a layer is one product; a step then adds the state's. Next: ``functional.linear``.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from gt.autocasting import CUDA, lists, low
from gt.functions import create, pointwise
from gt.functions.gathering import index_select
from gt.functions.promote import need_tensor
from gt.functions.shape import cat, stack
from gt.ir.types import DType, class_name
from gt.nn import functional as F  # noqa: N812 - torch's name
from gt.nn import init
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.nn.utils.rnn import PackedSequence
from gt.tensor import Tensor
from gt.trace import state as recording

GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "GRU": 3, "LSTM": 4}
State = tuple[Tensor, ...]  # (h,), or (h, c) of an LSTM


def step(mode: str, from_input: Tensor, state: State, weight: Tensor, bias: Tensor | None, project: Tensor | None = None) -> State:
    """Give the next state. ``from_input``: the input's share of the gates: [batch, gates * hidden]."""
    h = state[0]
    from_state = F.linear(h, weight, bias)
    if mode == "LSTM":
        i, f, g, o = (from_input + from_state).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return (h if project is None else F.linear(h, project)), c
    if mode == "GRU":
        (ri, zi, ni), (rh, zh, nh) = from_input.chunk(3, -1), from_state.chunk(3, -1)
        r, z = (ri + rh).sigmoid(), (zi + zh).sigmoid()
        n = (ni + r * nh).tanh()
        return (n + z * (h - n),)
    total = from_input + from_state
    return (pointwise.relu(total) if mode == "RNN_RELU" else total.tanh(),)


class RNNBase(Module):
    """What RNN, LSTM and GRU share: parameters, checks, and running layers in both directions."""

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _check_arguments(input_size, hidden_size, num_layers, bias, batch_first, dropout, proj_size)
        if mode not in GATES:
            raise ValueError("Unrecognized RNN mode: " + mode)
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        gates, out = GATES[mode] * hidden_size, proj_size or hidden_size
        make = lambda *shape: Parameter(create.empty(*shape, dtype=dtype))  # noqa: E731
        self._all_weights: list[list[str]] = []
        for layer in range(num_layers):
            width = input_size if layer == 0 else out * self._directions
            for suffix in ("", "_reverse")[: self._directions]:
                end = f"_l{layer}{suffix}"
                shapes: dict[str, tuple[int, ...]] = {
                    f"weight_ih{end}": (gates, width),
                    f"weight_hh{end}": (gates, out),
                }
                shapes |= {f"bias_ih{end}": (gates,), f"bias_hh{end}": (gates,)} if bias else {}
                shapes |= {f"weight_hr{end}": (proj_size, hidden_size)} if proj_size else {}
                for name, shape in shapes.items():
                    self.register_parameter(name, make(*shape))
                self._all_weights.append(list(shapes))
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """Give the parameters of each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    @property
    def _flat_weights_names(self) -> list[str]:
        return [name for names in self._all_weights for name in names]

    @property
    def _flat_weights(self) -> list[Parameter]:
        return [getattr(self, name) for name in self._flat_weights_names]

    def flatten_parameters(self) -> None:
        """Do nothing: how parameters lie in memory is the workers' matter."""

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly within 1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def extra_repr(self) -> str:
        s = f"{self.input_size}, {self.hidden_size}"
        s += f", proj_size={self.proj_size}" if self.proj_size else ""
        s += f", num_layers={self.num_layers}" if self.num_layers != 1 else ""
        s += "" if self.bias else f", bias={self.bias}"
        s += f", batch_first={self.batch_first}" if self.batch_first else ""
        s += f", dropout={self.dropout}" if self.dropout else ""
        return s + (f", bidirectional={self.bidirectional}" if self.bidirectional else "")

    # -- running

    def _check_input(self, x: Tensor) -> None:
        weight = getattr(self, self._all_weights[0][0])
        if x.dtype is not weight.dtype and recording.autocast is None:
            raise ValueError(
                f"RNN input dtype ({x.dtype}) does not match weight dtype ({weight.dtype}). Convert input: input.to({weight.dtype}), or "
                f"convert model: model.to({x.dtype})"
            )
        if self.input_size != x.shape[-1]:
            raise RuntimeError(f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.shape[-1]}")

    def _run(self, input: Tensor, states: State | None) -> tuple[Tensor, State]:
        """Run all layers; ``states``: [layers * directions, batch, size] each. Gives outputs and last states."""
        need_tensor(type(self).__name__, input=input, **dict(zip(("hx", "cx"), states or (), strict=False)))
        if input.ndim not in (2, 3):
            raise ValueError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {input.ndim}D tensor instead")
        batched = input.ndim == 3
        x = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        self._check_input(x)
        if not x.shape[0]:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        x, final = self._layers(x, self._starting(x.dtype, x.shape[1], states, batched), None)
        if not batched:
            return x.squeeze(1), tuple(s.squeeze(1) for s in final)
        return x.transpose(0, 1) if self.batch_first else x, final

    def _run_packed(self, input: PackedSequence, states: State | None) -> tuple[PackedSequence, State]:
        """Run all layers on packed sequences; states are in the order the sequences had before."""
        x, order = input.data, input.sorted_indices
        if x.ndim != 2:
            raise RuntimeError(f"input must have 2 dimensions, got {x.ndim}")
        self._check_input(x)
        states = self._starting(x.dtype, input.sizes[0], states, True)
        if order is not None:
            states = tuple(index_select(s, 1, order) for s in states)
        out, final = self._layers(x, states, input.sizes)
        if input.unsorted_indices is not None:
            final = tuple(index_select(s, 1, input.unsorted_indices) for s in final)
        return input.with_data(out), final

    def _layers(self, x: Tensor, states: State, sizes: list[int] | None) -> tuple[Tensor, State]:
        """Run all layers on [time, batch, size], or on packed rows where ``sizes`` says how many each step has."""
        if lists.policies is CUDA or (self.mode == "LSTM" and not self.proj_size and sizes is None):
            states = low(*states)  # what mixed precision has kernels for
        rows: list[list[Tensor]] = [[] for _ in states]
        for layer in range(self.num_layers):
            outs = []
            for direction in range(self._directions):
                at = layer * self._directions + direction
                start = tuple(s[at] for s in states)
                out, last = self._layer(x, self._all_weights[at], start, direction == 1, sizes)
                outs.append(out)
                for row, value in zip(rows, last, strict=True):
                    row.append(value)
            x = cat(outs, -1) if len(outs) > 1 else outs[0]
            if self.dropout and self.training and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout)
        return x, tuple(stack(row) for row in rows)

    def _starting(self, dtype: DType, batch: int, states: State | None, batched: bool) -> State:
        count = self.num_layers * self._directions
        shapes = [(count, batch, self.proj_size or self.hidden_size), (count, batch, self.hidden_size)]
        if states is None:
            return tuple(create.zeros(s, dtype=dtype) for s in shapes[: 2 if self.mode == "LSTM" else 1])
        out = []
        for state, shape, word in zip(states, shapes, ("hidden", "cell"), strict=False):
            if state.ndim != (3 if batched else 2):
                raise RuntimeError(
                    f"For batched 3-D input, hx should also be 3-D but got {state.ndim}-D tensor"
                    if batched
                    else f"For unbatched 2-D input, hx should also be 2-D but got {state.ndim}-D tensor"
                )
            state = state if batched else state.unsqueeze(1)
            if tuple(state.shape) != shape:
                numbered = "[0]" if self.mode == "LSTM" and word == "hidden" else "[1]" if self.mode == "LSTM" else ""
                raise RuntimeError(f"Expected hidden{numbered} size {shape}, got {list(state.shape)}")
            out.append(state)
        return tuple(out)

    def _layer(self, x: Tensor, names: list[str], start: State, reverse: bool, sizes: list[int] | None) -> tuple[Tensor, State]:
        """Run one direction of one layer. Of packed rows, a sequence's state is kept when it ends, or taken up where it begins."""
        weights = {name.partition("_l")[0]: getattr(self, name) for name in names}
        shares = F.linear(x, weights["weight_ih"], weights.get("bias_ih"))
        gates = shares.unbind(0) if sizes is None else shares.split(sizes)
        counts = sizes if sizes is not None else [x.shape[1]] * len(gates)
        outs: list[Tensor] = []
        ended: list[State] = []
        running = counts[-1] if reverse else counts[0]
        state = start if running == start[0].shape[0] else tuple(s[:running] for s in start)
        for gate, count in zip(gates[::-1], counts[::-1], strict=True) if reverse else zip(gates, counts, strict=True):
            if count > running:
                state = tuple(cat([s, first[running:count]]) for s, first in zip(state, start, strict=True))
            elif count < running:
                ended.append(tuple(s[count:] for s in state))
                state = tuple(s[:count] for s in state)
            running = count
            state = step(self.mode, gate, state, weights["weight_hh"], weights.get("bias_hh"), weights.get("weight_hr"))
            outs.append(state[0])
        if ended:  # the longest sequences come first, and ended last
            state = tuple(cat(list(parts)) for parts in zip(state, *ended[::-1], strict=True))
        outs = outs[::-1] if reverse else outs
        return stack(outs) if sizes is None else cat(outs), state


def _check_arguments(
    input_size: Any, hidden_size: Any, num_layers: Any, bias: Any, batch_first: Any, dropout: Any, proj_size: Any
) -> None:
    if not isinstance(dropout, int | float) or isinstance(dropout, bool) or not 0 <= dropout <= 1:
        raise ValueError("dropout should be a number in range [0, 1] representing the probability of an element being zeroed")
    if dropout > 0 and num_layers == 1:
        warnings.warn(
            "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects num_layers greater than 1, but got "
            f"dropout={dropout} and num_layers={num_layers}",
            stacklevel=4,
        )
    for name, value, kind in (
        ("bias", bias, bool), ("batch_first", batch_first, bool), ("input_size", input_size, int), ("hidden_size", hidden_size, int),
    ):  # fmt: skip
        if not isinstance(value, kind):
            raise TypeError(f"{name} should be of type {kind.__name__}, got: {type(value).__name__}")
    for name, size in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
        if size <= 0:
            raise ValueError(f"{name} must be greater than zero")
    if proj_size < 0:
        raise ValueError("proj_size should be a positive integer or zero to disable projections")
    if proj_size >= hidden_size:
        raise ValueError("proj_size has to be smaller than hidden_size")


class _OneState(RNNBase):
    """What RNN and GRU share: a state is one tensor."""

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """Give the outputs, packed if the input is, and the last state."""
        states = None if hx is None else (hx,)
        out, (h,) = self._run_packed(input, states) if isinstance(input, PackedSequence) else self._run(input, states)
        return out, h


class RNN(_OneState):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or with relu."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: Any = None, **more: Any,
    ) -> None:  # fmt: skip
        if "proj_size" in more:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        if more:
            raise TypeError(f"RNN got unexpected arguments: {', '.join(more)}")
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        super().__init__(
            f"RNN_{nonlinearity.upper()}",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            dtype=dtype,
        )
        self.nonlinearity = nonlinearity

class GRU(_OneState):
    """Gated recurrent units."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
        bidirectional: bool = False, device: Any = None, dtype: Any = None, **more: Any,
    ) -> None:  # fmt: skip
        if "proj_size" in more:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        if more:
            raise TypeError(f"GRU got unexpected arguments: {', '.join(more)}")
        super().__init__("GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype=dtype)

class LSTM(RNNBase):
    """Long short-term memory; ``proj_size``: the size the outputs are projected to."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
        bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            "LSTM",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            dtype=dtype,
        )

    def forward(self, input: Any, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Any, tuple[Tensor, Tensor]]:
        """Give the outputs, packed if the input is, and the last (h, c)."""
        out, (h, c) = self._run_packed(input, hx) if isinstance(input, PackedSequence) else self._run(input, hx)
        return out, (h, c)


# -- cells


class RNNCellBase(Module):
    """What cells share."""

    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = num_chunks * hidden_size
        self.weight_ih = Parameter(create.empty(rows, input_size, dtype=dtype))
        self.weight_hh = Parameter(create.empty(rows, hidden_size, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(create.empty(rows, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly within 1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def extra_repr(self) -> str:
        s = f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else f", bias={self.bias}")
        nonlinearity = self.__dict__.get("nonlinearity", "tanh")
        return s if nonlinearity == "tanh" else f"{s}, nonlinearity={nonlinearity}"

    def _next(self, mode: str, input: Tensor, state: State | None) -> State:
        name = type(self).__name__
        if mode == "LSTM" and not isinstance(state, tuple | list | None):
            raise TypeError(f"lstm_cell(): argument 'hx' (position 2) must be tuple of Tensors, not {class_name(state)}")
        if input.ndim not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.ndim}D instead")
        for i, s in enumerate(state or ()):
            if s.ndim not in (1, 2):
                what = f"hx[{i}]" if mode == "LSTM" else "hidden"
                raise ValueError(f"{name}: Expected {what} to be 1D or 2D, got {s.ndim}D instead")
        batched = input.ndim == 2
        x = input if batched else input.unsqueeze(0)
        if x.shape[1] != self.input_size:
            raise RuntimeError(f"input has inconsistent input_size: got {x.shape[1]} expected {self.input_size}")
        if state is None:
            zeros = create.zeros(x.shape[0], self.hidden_size, dtype=x.dtype)
            state = (zeros, zeros) if mode == "LSTM" else (zeros,)
        elif not batched:
            state = tuple(s.unsqueeze(0) for s in state)
        for i, s in enumerate(state):
            if s.shape[0] != x.shape[0]:
                raise RuntimeError(f"Input batch size {x.shape[0]} doesn't match hidden{i} batch size {s.shape[0]}")
            if s.shape[1] != self.hidden_size:
                raise RuntimeError(f"hidden{i} has inconsistent hidden_size: got {s.shape[1]}, expected {self.hidden_size}")
        if lists.policies is CUDA:
            state = low(*state)
        out = step(mode, F.linear(x, self.weight_ih, self.bias_ih), state, self.weight_hh, self.bias_hh)
        return out if batched else tuple(s.squeeze(0) for s in out)


class RNNCell(RNNCellBase):
    """One step of an RNN."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=1, dtype=dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        return self._next(f"RNN_{self.nonlinearity.upper()}", input, None if hx is None else (hx,))[0]


class GRUCell(RNNCellBase):
    """One step of a GRU."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=3, dtype=dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._next("GRU", input, None if hx is None else (hx,))[0]


class LSTMCell(RNNCellBase):
    """One step of an LSTM."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=4, dtype=dtype)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = self._next("LSTM", input, hx)
        return h, c
