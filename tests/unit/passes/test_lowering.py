"""Schedule, regions, memory and groups, looked at piece by piece. Whole programs: tests/golden."""

from __future__ import annotations

from gt.ir.mesh import Mesh
from gt.ir.program import Collective, Compute, Free, Program
from gt.ir.text import parse_graph
from gt.ir.types import float32
from gt.passes.context import Context
from gt.passes.fuse_hot_path import repeats
from gt.passes.pipeline import Pipeline
from gt.passes.schedule import schedule


def lower(text: str, workers: int = 1, pipeline: str = "fuse_hot_path,plan_memory,lower_programs") -> Context:
    context = Context(Mesh("all", (("w", workers),), tuple(range(workers))))
    Pipeline.parse(pipeline).run(parse_graph(text), context, verify="each")
    return context


def layers(count: int, last: str = "neg") -> str:
    lines = ["gtir 1", "graph @g global {", "  input %x: f32[4]"]
    name = "%x"
    for i in range(count):
        lines += [f"  %a{i} = exp({name}) : f32[4]", f"  %b{i} = sin(%a{i}) : f32[4]"]
        lines += [f"  %c{i} = mul(%b{i}, {name}) : f32[4]"]
        name = f"%c{i}"
    return "\n".join([*lines, f"  %y = {last}({name}) : f32[4]", "  return %y", "}", ""])


def test_equal_layers_share_a_key() -> None:
    context = lower(layers(5), pipeline="fuse_hot_path{min_repeats=3,min_nodes=3},lower_programs")
    assert context.programs is not None
    keys = [s.key for s in context.programs[0].steps if isinstance(s, Compute)]
    assert len(keys) == 6 and len(set(keys)) == 2


def test_keys_tell_code_apart_and_ignore_slot_numbers() -> None:
    def key(text: str) -> str:
        programs = lower(text).programs
        assert programs is not None
        (step,) = (s for s in programs[0].steps if isinstance(s, Compute))
        return step.key

    assert key(layers(2)) == key(layers(2).replace("%x: f32[4]", "%other: f32[4]").replace("%x", "%other"))
    assert key(layers(2)) == key(layers(2).replace("  input", "  input %unused: f32[9]\n  input"))
    others = [layers(2, "cos"), layers(3), layers(2).replace("[4]", "[5]"), layers(2).replace("f32", "f64")]
    others.append(layers(2).replace("return %y", "return %y, %a0"))
    others.append(layers(2).replace("mul(%b0, %x)", "mul(%x, %b0)"))
    assert len({key(layers(2)), *map(key, others)}) == 7


def test_few_repeats_stay_one_region() -> None:
    graph = parse_graph(layers(2))
    assert repeats(graph.nodes, 3, 3) == [] and repeats(parse_graph(layers(4)).nodes, 3, 3) == [(0, 3, 4)]


def irregular(count: int) -> str:
    """Stages of unlike sizes, each of four nodes that widen a value and sum it up again."""
    lines, name = ["gtir 1", "graph @g global {", "  input %x: f32[4]"], "%x"
    for i in range(count):
        wide = f"f32[{10 + i}, 4]"
        lines += [f"  %a{i} = expand({name}, shape=({10 + i}, 4)) : {wide}", f"  %b{i} = exp(%a{i}) : {wide}"]
        lines += [f"  %c{i} = sin(%b{i}) : {wide}", f"  %d{i} = sum(%c{i}, dims=(0,), keepdim=false, dtype=f32) : f32[4]"]
        name = f"%d{i}"
    return "\n".join([*lines, f"  return {name}", "}", ""])


def test_what_does_not_repeat_is_cut_where_little_passes() -> None:
    context = lower(irregular(40), pipeline="fuse_hot_path{max_nodes=50},plan_memory,lower_programs")
    assert context.regions is not None and context.programs is not None
    sizes = [len(r.nodes) for r in context.regions]
    assert sum(sizes) == 160 and max(sizes) <= 50 and min(sizes) >= 25
    assert {r.nodes[-1].op.name for r in context.regions} == {"sum"}  # four numbers pass, elsewhere ten times as many
    assert len(lower(irregular(40)).regions or ()) == 1


def test_equal_layers_are_cut_right_after_a_heavy_op() -> None:
    """What maps the result of a matrix product stays with what reads it, so that one kernel does both."""
    lines, name = ["gtir 1", "graph @g global {", "  input %x: f32[64, 64]", "  input %w: f32[64, 64]"], "%x"
    for i in range(5):
        lines += [
            f"  %{op}{i} = {op}({a.format(i=i, x=name)}) : f32[64, 64]"
            for op, a in (("exp", "{x}"), ("matmul", "%exp{i}, %w"), ("sin", "%matmul{i}"), ("add", "%sin{i}, {x}"))
        ]
        name = f"%add{i}"
    context = lower(
        "\n".join([*lines, f"  return {name}", "}", ""]), pipeline="fuse_hot_path{min_nodes=4},plan_memory,lower_programs"
    )
    assert context.regions is not None
    assert [[n.op.name for n in r.nodes] for r in context.regions] == [
        ["exp", "matmul"], *[["sin", "add", "exp", "matmul"]] * 4, ["sin", "add"],
    ]  # fmt: skip


def test_a_region_makes_its_own_views_of_inputs() -> None:
    """A view that came from another region would be a second name of memory that the region overwrites."""
    text = """gtir 1
graph @g global {
  input %w: f32[64] donated
  input %x: f32[2, 64]
  %v = reshape(%w, shape=(1, 64)) : f32[1, 64]
  %e = expand(%v, shape=(2, 64)) : f32[2, 64]
  %a = mul(%x, %e) : f32[2, 64]
  %b = exp(%a) : f32[2, 64]
  %s = sum(%b, dims=(0,), keepdim=false, dtype=f32) : f32[64]
  %c = sin(%s) : f32[64]
  %d = cos(%c) : f32[64]
  %f = mul(%d, %c) : f32[64]
  %g = mul(%b, %e) : f32[2, 64]
  %t = sum(%g, dims=(0,), keepdim=false, dtype=f32) : f32[64]
  %n = add(%w, %t) : f32[64]
  return %n, %f
}
"""
    context = lower(text, pipeline="fuse_hot_path{max_nodes=8},plan_memory,lower_programs")
    assert context.programs is not None
    regions = [s for s in context.programs[0].steps if isinstance(s, Compute)]
    assert len(regions) > 1
    views = {out for r in regions for n in r.nodes if n.op in ("reshape", "expand") for out in n.outputs}
    assert not views & {slot for r in regions for slot in r.inputs}
    assert [n.op for n in regions[-1].nodes][:2] == ["reshape", "expand"]


def test_what_replaces_an_input_is_computed_in_its_memory() -> None:
    """Running statistics stay where they are; an input that is still held, or read again, is left alone."""
    text = """gtir 1
graph @g global {
  input %mean: f32[8] donated
  input %x: f32[8]
  %a = mul(%mean, %x) : f32[8]
  %b = exp(%x) : f32[8]
  %n = add(%b, %a) : f32[8]
  return %n
}
"""
    overwritten = lambda t: lower(t).memory.overwritten  # type: ignore[union-attr]  # noqa: E731
    assert overwritten(text) == {0}
    assert overwritten(text.replace(" donated", "")) == frozenset()
    assert overwritten(text.replace("exp(%x)", "exp(%mean)")) == frozenset()  # read again after
    assert overwritten(text.replace("  return", "  %m = exp(%mean) : f32[8]\n  return").replace("%n\n}", "%n, %m\n}")) == frozenset()
    assert overwritten(text.replace("return %n", "return %n, %a")) == {0}  # by %a, which is kept
    assert overwritten(text.replace("mul(%mean, %x)", "exp(%mean)")) == frozenset()  # no form in place


COMM = """gtir 1
mesh @all {dp: 2, tp: 2} workers 0 1 2 3
graph @g local {
  input %x: f32[4]
  %a = exp(%x) : f32[4] +tp
  %b = all_reduce(%a, axes=("tp",), reduce="sum", parts=2) : f32[4]
  %k = full(shape=(), value=2.0, dtype=f32) : f32[]
  %c = mul(%b, %k) : f32[4] +dp
  %d = all_reduce(%c, axes=("dp",), reduce="sum", parts=2) : f32[4]
  %e = sin(%x) : f32[4]
  %g = all_gather(%x, axes=("dp", "tp"), dim=0, parts=4) : f32[16]
  return %d, %e, %g
}
"""


def test_compute_that_waits_for_nothing_comes_first_and_constants_where_they_are_read() -> None:
    names = [n.op.name for n in schedule(parse_graph(COMM))]
    assert names == ["exp", "sin", "all_reduce", "all_gather", "full", "mul", "all_reduce"]


def test_groups_and_numbers_agree_between_workers() -> None:
    programs = lower(COMM, 4).programs
    assert programs is not None
    groups = {w: {c.number: c.group for c in p.collectives} for w, p in programs.items()}
    assert groups[0] == {0: (0, 1), 1: (0, 1, 2, 3), 2: (0, 2)} and groups[3] == {0: (2, 3), 1: (0, 1, 2, 3), 2: (1, 3)}
    for own in groups.values():
        for number, group in own.items():
            assert all(groups[w][number] == group for w in group)
    gather = programs[0].collectives[1]
    assert gather.kind == "all_gather" and gather.attrs == (("dim", 0),) and gather.nbytes == 48


def defined_before_use(program: Program) -> set[int]:
    """Walk the program as a worker would; give the slots left at the end."""
    alive = {slot for _, slot in program.inputs} | {slot for slot, _ in program.scalars}
    for step in program.steps:
        if isinstance(step, Free):
            assert set(step.slots) <= alive
            alive -= set(step.slots)
        elif isinstance(step, Collective):
            assert step.input < 0 or step.input in alive
            alive |= {step.output} - {-1}
        else:
            assert set(step.inputs) <= alive
            alive |= set(step.outputs)
    return alive


def test_every_slot_is_freed_but_the_outputs() -> None:
    for text, workers in (
        (COMM, 4),
        (layers(4), 1),
        (layers(3).replace("%x: f32[4]", "%x: f32[4]\n  input %u: f32[2]"), 1),
    ):
        programs = lower(text, workers).programs
        assert programs is not None
        for program in programs.values():
            assert defined_before_use(program) == {slot for _, slot in program.outputs}


def test_a_chain_needs_two_values_at_a_time() -> None:
    text = layers(0).replace("%y = neg(%x)", "%a = neg(%x) : f32[4]\n  %b = neg(%a) : f32[4]\n  %y = neg(%b)")
    memory = lower(text).memory
    assert memory is not None and memory.peak_nbytes == {0: 3 * 4 * float32.itemsize}  # x stays, two of the chain
    donated = lower(text.replace("input %x: f32[4]", "input %x: f32[4] donated")).memory
    assert donated is not None and donated.peak_nbytes == {0: 2 * 4 * float32.itemsize}


def test_what_cannot_be_donated_is_noted_with_the_reason() -> None:
    step = "num=1, momentum=0.0, nesterov=false, weight_decay=0.0, dampening=0.0, maximize=false"
    text = f"""gtir 1
graph @g global {{
  input %p: f32[2]
  input %g: f32[2]
  scalar %lr: f32[]
  %n = sgd_step(%p, %g, %lr, {step}) : f32[2]
  return %n
}}
"""
    held = lower(text)
    assert held.memory is not None and not held.memory.inplace
    assert [reason for _, reason in held.notes] == ["not updated in place by sgd_step: the caller still holds it"]
    given = lower(text.replace("%p: f32[2]", "%p: f32[2] donated"))
    assert given.memory is not None and given.memory.overwritten == {0} and not given.notes
    both = lower(text.replace("%p: f32[2]", "%p: f32[2] donated").replace("return %n", "return %n, %p"))
    assert both.memory is not None and not both.memory.overwritten


def test_workers_alike_share_their_regions() -> None:
    programs = lower(COMM, 4).programs
    assert programs is not None
    first, last = ([s for s in programs[w].steps if isinstance(s, Compute)] for w in (0, 3))
    assert all(a is b for a, b in zip(first, last, strict=True))
