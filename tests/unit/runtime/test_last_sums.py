"""What Inductor writes for the last sums of a norm's gradients becomes one call, which gives the same sums."""

from __future__ import annotations

import pytest
import torch

from gt.runtime.last_sums import _Joined, sum_rows, use_sum_rows

A = "buf3 = workspace_0[0 * (64) * (768) : (0 + 1) * (64) * (768)].view(64, 768).sum(dim=0).view([768])"
B = "buf5 = workspace_0[1 * (64) * (768) : (1 + 1) * (64) * (768)].view(64, 768).sum(dim=0).view([1, 768]).to(torch.bfloat16)"
MAX = "buf7 = workspace_0[2 * (64) * (768) : (2 + 1) * (64) * (768)].view(64, 768).amax(dim=0).view([768])"


def written(*lines: object) -> list[object]:
    out: list[object] = []
    joined = _Joined(out.append)
    for line in lines:
        joined.write(line)
    joined.flush()
    return out


def test_sums_of_one_buffer_are_one_call() -> None:
    assert written("a = 1", A, B, "del x") == [
        "a = 1", "buf3, buf5, = sum_rows(workspace_0, 2, 64, 768)", "buf3 = buf3.view([768])",
        "buf5 = buf5.view([1, 768]).to(torch.bfloat16)", "del x",
    ]  # fmt: skip
    assert written(A) == ["buf3, = sum_rows(workspace_0, 1, 64, 768)", "buf3 = buf3.view([768])"]


def test_what_is_not_such_a_sum_stays() -> None:
    mark = object()
    assert written(mark, MAX, B, "buf9 = x.sum(dim=0)") == [mark, MAX, B, "buf9 = x.sum(dim=0)"]
    other = A.replace("workspace_0", "workspace_1")
    assert written(A, other)[2:] == ["buf3, = sum_rows(workspace_1, 1, 64, 768)", "buf3 = buf3.view([768])"]


def test_what_is_written_so_has_a_key_of_its_own_in_the_cache_of_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codegen.simd import SIMDScheduling

    monkeypatch.setattr(SIMDScheduling, "_codegen_mix_order_reduction", lambda self, *nodes: None, raising=False)
    with torch.compiler.config.patch(cache_key_tag="mine"):
        use_sum_rows()
        tag = torch.compiler.config.cache_key_tag
        assert tag.startswith("mine") and tag != "mine"
        use_sum_rows()
        assert torch.compiler.config.cache_key_tag == tag


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("count", "rows", "columns"), [(2, 1024, 768), (1, 3, 5), (3, 200, 33)])
def test_sums(count: int, rows: int, columns: int) -> None:
    partial = torch.randn(count * rows * columns + 7, device="cuda")
    want = partial[: count * rows * columns].view(count, rows, columns).double().sum(1)
    got = sum_rows(partial, count, rows, columns)
    torch.testing.assert_close(torch.stack(got).double(), want, rtol=1e-5, atol=1e-4)
    assert len({t.untyped_storage().data_ptr() for t in got}) == count


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_inductor_writes_it() -> None:
    """Of the torch that is here. Where this fails, Inductor's code has changed: norms work, a little slower."""
    from torch._inductor.utils import run_and_get_code

    use_sum_rows()
    use_sum_rows()

    def backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten.native_layer_norm_backward(g, x, [768], mean, rstd, w, w, [True, True, True])  # type: ignore[no-any-return]

    x, g, w = torch.randn(8192, 768, device="cuda"), torch.randn(8192, 768, device="cuda"), torch.randn(768, device="cuda")
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [768], w, w, 1e-5)
    got, (code,) = run_and_get_code(torch.compile(backward, fullgraph=True), g, x, w, mean, rstd)
    assert "sum_rows(" in code
    for a, b in zip(got, backward(g, x, w, mean, rstd), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
