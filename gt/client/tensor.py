"""Names that tensors had before gt was rewritten. Next: ``gt.earlier``."""

from gt.earlier import moved

SAME = ("Tensor", "cat", "from_numpy", "is_grad_enabled", "no_grad", "ones", "randn", "set_grad_enabled", "tensor", "zeros")

__getattr__ = moved("gt.client.tensor", TensorData="gt.Tensor", **{name: f"gt.{name}" for name in SAME})
