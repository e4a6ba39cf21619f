"""The text of a want of memory: the largest values, each with its bytes and line; and what is counted."""

from __future__ import annotations

import msgspec

from gt.ir.mesh import Mesh, Sharding
from gt.ir.program import Compute, WireNode, WireType
from gt.ir.types import TensorType, float32
from gt.runtime.errors import Fault, OutOfMemoryError, fault_of
from gt.runtime.memory import Memory, explained
from gt.runtime.schedule import Buffer
from tests.state.stories import program

LINE = Mesh.line((0, 1))


def buffer(uid: int, *shape: int, split: bool = False, where: str = "") -> Buffer:
    dims = (("w0_1",) if split else (), *[()] * (len(shape) - 1))
    axis = LINE.axes[0][0]
    return Buffer(uid, TensorType(shape, float32).placed(Sharding(LINE, tuple((axis,) if d else () for d in dims))), where=where)


def test_the_largest_values_come_first_and_equal_sizes_do_not_matter() -> None:
    held = [buffer(1, 4, 4, where="a.py:1"), buffer(2, 8, 2, where="a.py:2"), buffer(3, 64, 4, split=True, where="a.py:3")]
    nodes = [WireNode("neg", (0,), (i,), (WireType(shape, "float32"),), (), 0) for i, shape in enumerate([(4, 4), (2, 8)], 1)]
    run = msgspec.structs.replace(program(0, 1, 1), steps=(Compute(tuple(nodes), (0,), (1,), "k"),))
    text = explained(Fault("memory", "full"), 0, held, run).message
    assert text.startswith(
        "full. Largest held: 512 bytes f32[32, 4] at a.py:3; 64 bytes f32[4, 4] at a.py:1; 64 bytes f32[8, 2] at a.py:2. "
    )
    assert "Largest in the run: 64 bytes f32[4, 4] at train.py:12; 64 bytes f32[2, 8] at train.py:12. " in text
    assert "Largest held" not in explained(Fault("memory", "full"), 2, held, None).message


def test_bytes_are_counted_once_on_workers_that_have_a_limit() -> None:
    memory = Memory()
    memory.join(0, 0)
    memory.join(1, 1000)
    whole, part = buffer(1, 4, 4), buffer(2, 64, 4, split=True)
    memory.add([whole, part])
    memory.add([whole])
    assert memory.workers.keys() == {1} and memory.workers[1].nbytes == 64 + 512
    assert memory.over_with(buffer(3, 106, 1).type) is None and memory.over_with(buffer(3, 107, 1).type) == (1, 1004)
    run = msgspec.structs.replace(program(1, 1, 1), peak_nbytes=64 + 424)
    assert memory.over({1: run}, [whole], []) is None
    bigger = msgspec.structs.replace(run, peak_nbytes=64 + 425)
    assert memory.over({0: bigger, 1: bigger}, [whole], []) == (1, 1001)
    assert memory.over({1: bigger}, [whole], [part]) is None  # which goes before the run
    memory.drop([1, 2, 2])
    assert memory.workers[1].nbytes == 0


def test_what_says_that_memory_is_out() -> None:
    for error in (
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        type("OutOfMemoryError", (RuntimeError,), {})(),
    ):
        assert isinstance(fault_of(error).exception(), OutOfMemoryError)
    assert fault_of(RuntimeError("memory format")).kind == "run"
