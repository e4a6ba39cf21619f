"""``gt.autograd``: gradients, with torch.autograd's names.

Next: ``gradients`` (of a tape, and hooks), ``several`` (of several tensors), ``functional`` (Jacobians and products with them),
``gradcheck``, ``function`` (a user's own ops).
"""

from gt import grad_mode
from gt.absent import ABSENT, absent
from gt.autograd import function, functional
from gt.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from gt.autograd.gradients import (
    GRAD,
    Function,
    FunctionCtx,
    Hook,
    detect_anomaly,
    enable_grad,
    inference_mode,
    is_anomaly_enabled,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    register_hook,
    register_post_accumulate_grad_hook,
    retain_grad,
    set_detect_anomaly,
    set_grad_enabled,
)
from gt.autograd.several import backward, grad
from gt.autograd.variable import Variable
from gt.hooks import RemovableHandle

__getattr__ = absent(
    "gt.autograd", profiler=ABSENT["profiler"], forward_ad="use func.jvp", graph="to save memory use gt.utils.checkpoint"
)  # fmt: skip
__all__ = [
    "GRAD", "Function", "FunctionCtx", "GradcheckError", "Hook", "RemovableHandle", "Variable", "backward", "detect_anomaly", "enable_grad", "function",
    "functional", "grad", "grad_mode", "gradcheck", "gradgradcheck", "inference_mode", "is_anomaly_enabled", "is_grad_enabled",
    "is_inference_mode_enabled", "no_grad", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "set_detect_anomaly",
    "set_grad_enabled",
]  # fmt: skip
