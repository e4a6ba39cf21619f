"""What of torch gt has no such thing of, and what to use instead: said by the AttributeError of who asks for it."""

from __future__ import annotations

from typing import Any

ABSENT = {  # of torch
    "distributed": "workers and meshes are what signals name, see gt.signal and gt.register_mesh",
    "embedding_bag": "use nn.functional.embedding_bag, which gives the bags alone",
    "fx": "gt compile SCRIPT on the command line shows the graphs that are recorded",
    "gru": "use nn.GRU",
    "hub": "download the weights and read them with gt.load",
    "lstm": "use nn.LSTM",
    "multiprocessing": "all threads of a client share its workers; use Python's own multiprocessing for other work",
    "nested": "use nn.utils.rnn.pad_sequence or pack_sequence",
    "onnx": "load the state dict into the same model in torch, and export that",
    "overrides": "functions take gt's tensors only",
    "profiler": "gt plan SCRIPT on the command line shows what each graph costs",
    "quantization": "quantized dtypes are not there",
    "rnn_relu": 'use nn.RNN(nonlinearity="relu")', "rnn_tanh": "use nn.RNN",
    "sparse": "tensors are dense",
}
NO_STORAGE = "the memory is the workers': read values with numpy() or tolist()"
METHODS = {  # of tensors
    "as_subclass": "what is computed is a plain tensor; of Tensor's subclasses nn.Parameter and its own are offered",
    "storage": NO_STORAGE, "untyped_storage": NO_STORAGE,
}  # fmt: skip


def absent(module: str, **instead: str) -> Any:
    """Give the ``__getattr__`` of a module without these names. Each has what to use instead."""

    def __getattr__(name: str) -> Any:  # noqa: N807 - a module's
        if name in instead:
            raise AttributeError(f"{module}.{name} is not offered: {instead[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__
