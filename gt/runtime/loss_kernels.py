"""Cross entropy of halves with its gradient: a row of logits is read twice, the second time from the cache, and written once.

A compiler reads it three times for log_softmax, its gradient and the loss. On a GPU that is a Triton kernel, compiled with what is around it;
elsewhere the same in torch. Next: ``kernels`` (hands it to the op's lowering).
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

BLOCK, WARPS = 4096, 8  # the fastest on an H200, of 2,048 rows of 50,304 classes
AT_ONCE = 1 << 22  # elements of one part of the rows, which eager code has in float32 twice; no memory plan counts them
Function = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]


def cross_entropy_grad(x: Tensor, target: Tensor, g: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Give the sum of the losses of [rows, classes] in the dtype of ``g``, and its gradient times ``g``, in that of the logits.

    ``target``: a class of each row, or ``ignore_index``, whose loss and gradient are 0.
    """
    if torch.compiler.is_compiling():
        function = _kernel() if x.is_cuda and x.numel() and g.dtype is torch.float32 else _in_torch
        return function(x, _checked(target, x.shape[1], ignore_index), g, ignore_index)
    rows, grad = max(1, AT_ONCE // max(1, x.shape[1])), torch.empty_like(x)
    losses = []
    for a, b, out in zip(x.split(rows), target.split(rows), grad.split(rows), strict=True):
        y = torch.log_softmax(a, 1, dtype=g.dtype)
        losses.append(torch.nn.functional.nll_loss(y, b, ignore_index=ignore_index, reduction="sum"))
        counted = b != ignore_index
        each, own = torch.where(counted, g, torch.zeros_like(g)).unsqueeze(1), torch.where(counted, b, 0).unsqueeze(1)
        out.copy_(y.exp_().mul_(each).scatter_add_(1, own, -each))
        del y
    return torch.stack(losses).sum(), grad


def _checked(target: Tensor, classes: int, ignore_index: int) -> Tensor:
    """Read zeros at the classes, so that compiled code refuses one that is none, as torch does; a negative one, too."""
    own = torch.where(target == ignore_index, 0, target)
    zeros = torch.zeros(classes, dtype=target.dtype, device=target.device)
    return target + zeros.index_select(0, torch.where(own < 0, classes, own))


def _in_torch(x: Tensor, target: Tensor, g: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Give both in maps and sums, which a compiler fuses: a scatter would be written out in full."""
    y = torch.log_softmax(x.to(g.dtype), 1)
    loss = torch.nn.functional.nll_loss(y, target, ignore_index=ignore_index, reduction="sum")
    counted = (target != ignore_index).unsqueeze(1)
    hit = (torch.arange(x.shape[1], device=x.device) == target.unsqueeze(1)) & counted
    each = torch.where(counted, g, torch.zeros_like(g))
    return loss, (y.exp() * each - torch.where(hit, g, torch.zeros_like(g))).to(x.dtype)


@functools.cache
def _kernel() -> Function:
    """Make the kernel; torch for CPUs comes without Triton."""
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def gt_cross_entropy_grad(x, target, g, losses, grad, classes, ignore_index, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
        row = tl.program_id(0).to(tl.int64)
        x += row * classes
        grad += row * classes
        own = tl.load(target + row)
        counted = own != ignore_index
        lanes = tl.arange(0, BLOCK)
        top = tl.full([BLOCK], -float("inf"), tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, classes, BLOCK):
            at = start + lanes
            a = tl.load(x + at, mask=at < classes, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
            most = tl.maximum(top, a)
            base = tl.where(most == -float("inf"), 0.0, most)
            total = total * tl.exp(top - base) + tl.exp(a - base)
            top = most
        most = tl.max(top, 0)
        base = tl.where(most == -float("inf"), 0.0, most)
        whole = tl.sum(total * tl.exp(top - base), 0)
        here = tl.load(x + tl.where(counted, own, 0)).to(tl.float32)
        tl.store(losses + row, tl.where(counted, tl.log(whole) + most - here, 0.0))
        scale = tl.where(counted, tl.load(g).to(tl.float32), 0.0)
        share = scale / whole
        for start in range(0, classes, BLOCK):
            at = start + lanes
            a = tl.load(x + at, mask=at < classes, other=-float("inf"), eviction_policy="evict_first").to(tl.float32)
            change = tl.exp(a - most) * share - tl.where(at == own, scale, 0.0)
            tl.store(grad + at, change.to(grad.dtype.element_ty), mask=at < classes)

    @torch.library.triton_op("gt::cross_entropy_grad", mutates_args=())
    def launch(x: Tensor, target: Tensor, g: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
        x, target = x.contiguous(), target.contiguous()
        losses, grad = torch.empty(x.shape[0], dtype=torch.float32, device=x.device), torch.empty_like(x)
        block = min(BLOCK, triton.next_power_of_2(x.shape[1]))
        torch.library.wrap_triton(gt_cross_entropy_grad)[(x.shape[0],)](x, target, g, losses, grad, x.shape[1], ignore_index, BLOCK=block, num_warps=WARPS)
        return losses.sum(), grad

    return launch


__all__ = ["cross_entropy_grad"]
