"""The rendered source: what it says, and what it refuses to say."""

from __future__ import annotations

import pytest

from gt.ir.graph import Coord
from gt.ir.program import Compute, Program, WireNode, WireType, pack_attrs
from gt.ir.types import bool_, complex64, float32, int64
from gt.runtime.layout import lay_out
from gt.runtime.render import RenderError, pack, packing, render_piece, render_program
from tests.unit.runtime.program_builder import ProgramBuilder


def mlp() -> ProgramBuilder:
    b = ProgramBuilder()
    x, w, lr = b.input(4, 8), b.input(8, 3), b.scalar()
    h = b("matmul", x, w)
    g = b("matmul", b("permute", x, dims=(1, 0)), b("relu", h))
    (new,) = b.apply("sgd_step", w, g, lr, num=1, momentum=0.0, nesterov=False, weight_decay=0.0, dampening=0.0,
                     maximize=False, inplace=((0, 0),))  # fmt: skip
    b.outputs = (h, new)  # type: ignore[attr-defined]
    return b


def test_a_program_without_collectives_is_one_function() -> None:
    b = mlp()
    text = render_program(b.program(*b.outputs))  # type: ignore[attr-defined]
    assert text.splitlines()[:6] == [
        "def program(a, s):",
        "    v0, v1, = a; a.clear()",
        "    v2, = s",
        "    v3 = torch.matmul(v0, v1)  # f32[4, 3]  model.py:1",
        "    v4 = v0.permute((1, 0,)); del v0  # f32[8, 4]  model.py:2",
        "    v5 = torch.relu(v3)  # f32[4, 3]  model.py:3",
    ]
    assert "kernels.sgd_step_(" in text and text.endswith("    return [v3, v7]\n")


def test_every_value_is_deleted_at_its_last_use() -> None:
    b = ProgramBuilder()
    v = b.input(4)
    for _ in range(5):
        v = b("exp", v)
    lines = render_program(b.program(v)).splitlines()
    assert [line.split("#")[0].strip() for line in lines[2:6]] == [
        f"v{i + 1} = torch.exp(v{i}); del v{i}" for i in range(4)
    ]


def test_compiled_form_cuts_scalars_from_packed_vectors_and_gives_only_new_outputs() -> None:
    b = mlp()
    (stretch,) = lay_out(b.program(*b.outputs)).stretches  # type: ignore[attr-defined]
    source = render_piece(stretch.piece, "compiled").text
    assert "def region(a, floats, ints):" in source
    assert "v2 = floats[0].to(torch.float32)" in source
    assert source.endswith("return [v3]\n")
    assert stretch.piece.kept() == (-1, 1) and stretch.piece.mutated() == {1}


def test_scalars_of_all_kinds_pack_into_two_vectors() -> None:
    dtypes = [float32.name, int64.name, complex64.name, bool_.name, "float16"]
    assert packing(dtypes) == [("floats", 0), ("ints", 0), ("floats", 1), ("ints", 1), ("floats", 3)]
    assert pack(dtypes, [0.5, 7, 1 + 2j, True, 3]) == ([0.5, 1.0, 2.0, 3.0], [7, 1])


def test_numbers_stay_numbers_only_where_the_op_takes_them() -> None:
    b = ProgramBuilder()
    x, s = b.input(3), b.scalar()
    both = b("add", s, s)  # no tensor beside: a number would make no tensor
    y = b("where", b("gt", x, s), b("mul", x, s), both)
    text = render_program(b.program(y))
    assert "t1 = torch.full((), v1, dtype=torch.float32, device=device)" in text
    assert "= t1 + t1" in text and "= v0 > v1" in text and "= v0 * v1" in text


def test_constants_are_written_where_they_are_used() -> None:
    b = ProgramBuilder()
    x = b.input(3)
    two = b("full", shape=(), value=2, dtype=float32)
    infinite = b("full", shape=(), value=float("-inf"), dtype=float32)
    text = render_program(b.program(b("mul", x, two), b("add", x, infinite)))
    assert "= v0 * 2.0" in text and "= v0 + float('-inf')" in text and "full" not in text


def test_equal_regions_give_equal_pieces_whatever_their_slots_and_lines() -> None:
    b = ProgramBuilder()
    v, s, t = b.input(4, 4), b.scalar(), b.scalar()
    for scalar in (s, t):
        v = b.collective("all_reduce", b("exp", b("mul", v, scalar)))
    first, second = lay_out(b.program(v)).stretches
    assert first.piece == second.piece
    assert first.inputs != second.inputs and first.scalars != second.scalars


def test_nothing_is_overwritten_before_the_last_op_that_may_refuse_its_values() -> None:
    b = ProgramBuilder()
    w, index, other = b.input(4, 3), b.input(2, dtype=int64), b.input(4, 3)
    step = {"num": 1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "dampening": 0.0, "maximize": False}
    lr = b.scalar()
    (early,) = b.apply("sgd_step", other, b("exp", other), lr, inplace=((0, 0),), **step)
    rows = b("index_select", w, index, dim=0)
    (late,) = b.apply("sgd_step", w, b("index_add", w, index, rows, dim=0), lr, inplace=((0, 0),), **step)
    program = b.program(early, late)
    assert program.refuses
    first, second = lay_out(program, undo=True).stretches
    assert [node.op for node in first.piece.nodes] == ["exp", "sgd_step", "index_select"]  # its index has been taken by then
    assert not first.piece.mutated() and len(second.piece.mutated()) == 1
    assert len(lay_out(program).stretches) == 1


def test_the_driver_calls_pieces_and_collectives_in_order() -> None:
    b = ProgramBuilder()
    x, unused = b.input(4), b.input(2)
    y = b.collective("all_reduce", b("exp", x))
    text = render_program(b.program(b("neg", y), x))
    assert unused == 1
    assert text.split("def program")[1].splitlines() == [
        "(a, s, comm):",
        "    v0, v1, = a; a.clear(); del v1",
        "    x = [v0]",
        "    v2, = region0(x, ())",
        "    v3 = comm.run(step1, v2); del v2  # all_reduce#0 f32[4] 16 B",
        "    x = [v3]; del v3",
        "    v4, = region2(x, ())",
        "    return [v4, v0]",
    ]


def test_compile_marks_cut_pieces() -> None:
    b = ProgramBuilder()
    x = b.input(4)
    y = b("exp", x)
    b.cut()
    z = b("neg", y)
    b.cut(compile=True)
    stretches = lay_out(b.program(b("exp", z))).stretches
    assert [(s.compile, len(s.piece.nodes)) for s in stretches] == [(False, 1), (True, 1), (False, 1)]


def program_of(op: str, inputs: tuple[int, ...], attrs: dict[str, object]) -> Program:
    node = WireNode(op, inputs, (1,), (WireType((4,), "float32"),), pack_attrs(tuple(attrs.items())))  # type: ignore[arg-type]
    return Program(0, ((0, 0),), (), (Compute((node,), (0,), (1,), "k"),), ((0, 1),))


@pytest.mark.parametrize(
    ("op", "attrs", "fault"),
    [
        ("no_such_op", {}, "unknown op"),
        ("reshape", {"shape": "(4,)); __import__('os').abort("}, "which no op takes"),
        ("reshape", {"shape": (4, "'")}, "which no op takes"),
        ("reshape", {"sh)ape": (4,)}, "no attribute name"),
        ("reshape", {"shape": (Coord(0, (("dp", 2),)),)}, "differs by worker"),
    ],
)
def test_source_holds_nothing_but_known_ops_and_plain_values(op: str, attrs: dict[str, object], fault: str) -> None:
    with pytest.raises(RenderError, match=fault):
        render_program(program_of(op, (0,), attrs))
