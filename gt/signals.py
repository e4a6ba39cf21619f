"""The name that ``gt.signal`` had as a module before gt was rewritten. Next: ``gt.earlier``."""

from gt.earlier import moved

SAME = (
    "SignalScope", "SignalStack", "context", "current_backward_signal", "current_signal", "enter", "exit", "get_signal_stack", "signal",
    "tensor",
)  # fmt: skip

__getattr__ = moved("gt.signals", **{name: f"gt.signal.{name}" for name in SAME})
