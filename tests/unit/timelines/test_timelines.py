"""Timelines: spans, joins and shares from a log's lines, and the forms they are written in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gt.cli import main
from gt.runtime.log_lines import Log, parse_log
from gt.timelines import Span, Timeline, timeline_of
from gt.timelines.chrome import chrome_events, chrome_json
from gt.timelines.lanes import _lane, covered
from gt.timelines.page import page

HEAD = "# gt instruction log: elapsed_s sequence event who operation nbytes details; start=1000.0"
# Worker 1 comes to the all_reduce 0.3 s after worker 0; worker 0 sends to worker 1, who waits 0.2 s for it.
STORY = """
0.000000 1 flush client0 graph 0 graph=0 at=train.py:3 reason=a value was read
0.001000 2 call client0 Run 0 key=0 made=5
0.002000 3 call client0 Fetch 0 buffer=5 request=1
0.010000 1 recv dispatcher Run 0 from=client0 key=0 made=5
0.011000 2 ask dispatcher plan 0 plan=1
0.050000 3 plan dispatcher flush0 0 plan=1 for 2 workers
0.051000 4 send dispatcher Execute 20 to=worker0 epoch=2 plan=1 made=9
0.052000 5 send dispatcher Execute 20 to=worker1 epoch=2 plan=1 made=9
0.600000 1 collective worker0 all_reduce 64 number=0 group=0,1 seconds=0.400000 begins=0
0.600000 1 collective worker1 all_reduce 64 number=0 group=0,1 seconds=0.100000 begins=0
0.601000 2 collective worker1 receive 64 number=1 group=0,1 seconds=0.000500 begins=0
0.800000 2 collective worker0 send 64 number=1 group=0,1 seconds=0.100000 begins=0
0.900000 3 collective worker1 wait 64 number=1 group=0,1 seconds=0.250000 begins=0
1.000000 3 run worker0 flush0 64 epoch=2 plan=1 seconds=0.900000 tier=eager fault=-
1.100000 4 run worker1 flush0 64 epoch=2 plan=1 seconds=0.700000 tier=eager fault=-
1.110000 4 ship worker0 fetch 64 uid=9 request=1 seconds=0.000100
1.120000 4 part client0 fetch 64 request=1
"""


def told(story: str = STORY) -> Log:
    return parse_log([HEAD, *story.strip().splitlines()])


def spans_of(timeline: Timeline, kind: str) -> list[tuple[str, str, float, float]]:
    found = [span for lane in timeline.lanes for span in lane.spans if span.kind == kind]
    return [(s.lane, s.name, round(s.start, 5), round(s.end, 5)) for s in found]


def test_a_read_that_is_asked_for_with_its_run_is_a_span_from_the_run_on() -> None:
    story = STORY.replace("0.002000 3 call client0 Fetch 0 buffer=5 request=1\n", "").replace("key=0 made=5\n0.01", "key=0 made=5 request=1\n0.01")
    assert spans_of(timeline_of(told(story)), "fetch") == [("client0", "fetch", 0.001, 1.12)]


def test_events_become_spans_in_lanes_of_their_own() -> None:
    timeline = timeline_of(told())
    assert [lane.name for lane in timeline.lanes] == ["client0", "dispatcher", "worker0", "worker1"]
    assert timeline.began == 1000.0 and timeline.seconds == pytest.approx(1.12)
    assert spans_of(timeline, "run") == [("worker0", "flush0", 0.1, 1.0), ("worker1", "flush0", 0.4, 1.1)]
    assert spans_of(timeline, "fetch") == [("client0", "fetch", 0.002, 1.12)]
    assert spans_of(timeline, "plan") == [("dispatcher", "plan flush0", 0.011, 0.05)]
    assert spans_of(timeline, "serve") == [("dispatcher", "Run", 0.01, 0.01), ("dispatcher", "flush0", 0.05, 0.052)]
    assert spans_of(timeline, "flush") == [("client0", "flush 0", 0.0, 0.0)]
    assert [name for _, name, *_ in spans_of(timeline, "collective")] == ["all_reduce", "send", "all_reduce", "receive", "wait"]


def test_a_run_whose_line_came_late_has_its_collectives_in_it() -> None:
    """Between a run's end and its line another thread may run: on one track, all the same."""
    timeline = timeline_of(told("""
0.100000 1 collective worker0 all_gather 64 number=0 group=0,1 seconds=0.050000 begins=0
0.200000 2 collective worker0 all_reduce 64 number=1 group=0,1 seconds=0.050000 begins=0
0.210000 3 run worker0 flush0 64 epoch=2 plan=1 seconds=0.155000 tier=eager fault=-
0.310000 4 run worker0 flush1 64 epoch=3 plan=1 seconds=0.050000 tier=eager fault=-
"""))  # fmt: skip
    assert [(s.kind, round(s.start, 5), round(s.end, 5), s.track) for s in timeline.lanes[0].spans] == [
        ("run", 0.0, 0.16, 0), ("collective", 0.0, 0.05, 0), ("collective", 0.1, 0.15, 0), ("run", 0.21, 0.26, 0),
    ]  # fmt: skip


def test_a_trace_that_ended_within_a_run_makes_none_of_the_next_trace_longer() -> None:
    """Each trace numbers its lines anew; what the first has of a run that it has no end of is drawn by itself."""
    timeline = timeline_of(told("""
0.100000 1 collective worker0 all_gather 64 number=0 group=0,1 seconds=0.050000 begins=0
50.000000 1 collective worker0 all_gather 64 number=0 group=0,1 seconds=0.050000 begins=0
50.010000 2 run worker0 flush0 64 epoch=9 plan=1 seconds=0.070000 tier=eager fault=-
50.010000 2 run worker1 flush0 64 epoch=9 plan=1 seconds=0.070000 tier=eager fault=-
"""))  # fmt: skip
    assert spans_of(timeline, "run") == [("worker0", "flush0", 49.89, 49.96), ("worker1", "flush0", 49.89, 49.96)]
    assert timeline.shares["worker0"].num_collectives == 1 and timeline.shares["worker0"].busy == 1.0


def test_collectives_are_joined_from_who_came_last() -> None:
    arrows = [
        (a.source[0], round(a.source[1], 4), a.target[0], round(a.target[1], 4))
        for a in timeline_of(told()).arrows
        if a.kind == "collective"
    ]
    assert arrows == [("worker1", 0.5, "worker0", 0.6), ("worker0", 0.7, "worker1", 0.9)]
    others = {(a.kind, a.source[0], a.target[0]) for a in timeline_of(told()).arrows} - {("collective", "worker0", "worker1")}
    assert others >= {("call", "client0", "dispatcher"), ("epoch", "dispatcher", "worker0"), ("epoch", "dispatcher", "worker1")}


def test_the_bubble_is_what_a_worker_waits_for_who_has_not_come() -> None:
    shares = timeline_of(told()).shares
    assert list(shares) == ["worker0", "worker1"]
    assert (shares["worker0"].busy, shares["worker0"].bubble) == pytest.approx((0.9, 0.3))  # of a whole second
    assert (shares["worker1"].busy, shares["worker1"].bubble) == pytest.approx(
        (0.7, 0.0505), abs=1e-4
    )  # 0.65 to 0.7, and the receive
    assert shares["worker0"].idle == pytest.approx(0.1) and shares["worker0"].num_collectives == 2


def test_a_part_of_the_time_has_shares_of_its_own() -> None:
    timeline = timeline_of(told(), 0.9, 1.05)
    assert (timeline.since, timeline.until) == (0.9, 1.05)
    assert timeline.shares["worker0"].busy == pytest.approx(2 / 3) and timeline.shares["worker1"].busy == 1.0
    assert timeline.shares["worker0"].bubble == 0 and {lane.name for lane in timeline.lanes} == {"client0", "worker0", "worker1"}


def test_two_scripts_of_one_file_have_lanes_of_their_own() -> None:
    def other(line: str) -> str:
        words = line.split(" ")
        return " ".join([*words[:3], f"{words[3]}@bb", *words[4:]])

    both = told("\n".join(part for line in STORY.strip().splitlines() for part in (line, other(line))))
    one, timeline = timeline_of(told()), timeline_of(both)
    names = [lane.name for lane in one.lanes]
    assert [lane.name for lane in timeline.lanes] == [*names, *(f"{name}@bb" for name in names)]
    for kind in ("serve", "plan", "fetch", "run", "collective"):
        own = spans_of(one, kind)
        assert spans_of(timeline, kind) == own + [(f"{lane}@bb", *rest) for lane, *rest in own]
    assert len(timeline.arrows) == 2 * len(one.arrows)
    assert all(arrow.source[0].endswith("@bb") == arrow.target[0].endswith("@bb") for arrow in timeline.arrows)
    assert timeline.shares == one.shares | {f"{who}@bb": share for who, share in one.shares.items()}


def test_a_server_that_was_started_again_goes_on_in_the_lanes_of_the_one_before() -> None:
    def later(line: str) -> str:
        elapsed, sequence, event, who, *rest = line.split(" ")
        return " ".join([f"{float(elapsed) + 3:.6f}", sequence, event, f"{who}@bb", *rest])

    lines = STORY.strip().splitlines()
    again = [later(line) for line in lines] + ["2.9 9 recv dispatcher@bb WorkerHello 0", "2.95 9 restart worker0@bb - 0 after=aa"]
    again.append("2.96 9 restart client0@bb - 0 after=aa")
    one = timeline_of(told())
    both = timeline_of(parse_log([f"{HEAD} of=aa", *lines, *again]))
    assert [lane.name for lane in both.lanes] == [lane.name for lane in one.lanes]
    assert spans_of(both, "restart") == [("client0", "restart", 2.96, 2.96), ("dispatcher", "restart", 2.9, 2.9), ("worker0", "restart", 2.95, 2.95)]
    for kind in ("plan", "fetch", "run", "flush"):
        own = spans_of(one, kind)
        moved = [(lane, name, round(start + 3, 5), round(end + 3, 5)) for lane, name, start, end in own]
        assert sorted(spans_of(both, kind)) == sorted(own + moved)
    assert len(both.arrows) == 2 * len(one.arrows)
    assert all(abs(arrow.source[1] - arrow.target[1]) < 2 for arrow in both.arrows), "equal numbers of both are no pairs"
    assert {who: share.num_runs for who, share in both.shares.items()} == {"worker0": 2, "worker1": 2}
    assert both.shares["worker0"].num_collectives == 4


def test_a_log_without_runs_has_no_shares_and_an_empty_one_no_lanes() -> None:
    assert timeline_of(told("0.1 1 recv dispatcher Bye 0 from=client0")).shares == {}
    assert timeline_of(Log(())).lanes == ()


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(1e-6, 5)), min_size=1, max_size=40))
def test_on_each_track_spans_nest_or_are_apart(times: list[tuple[float, float]]) -> None:
    lane = _lane("worker0", [Span("worker0", start, start + length, "run", "x") for start, length in times])
    events = [e for e in chrome_events(Timeline(0, 0, 15, (lane,), (), {})) if e["ph"] == "X"]
    assert len(events) == len(times)
    check_nesting(events)
    for span, (start, length) in zip(lane.spans, sorted(times, key=lambda t: (t[0], -t[0] - t[1])), strict=True):
        assert abs(span.start - start) < 1e-5 and abs(span.end - start - length) < 1e-5


def check_nesting(events: list[dict]) -> None:
    """Fail where two spans of a track overlap in part."""
    by_track: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for e in events:
        start = round(e["ts"] * 1000)
        by_track.setdefault((e["pid"], e["tid"]), []).append((start, start + round(e["dur"] * 1000)))
    for spans in by_track.values():
        open_: list[int] = []
        for start, end in sorted(spans, key=lambda s: (s[0], -s[1])):
            while open_ and open_[-1] <= start:
                open_.pop()
            assert not open_ or end <= open_[-1]
            open_.append(end)


def test_covered_counts_what_overlaps_once() -> None:
    spans = [Span("w", a, b, "run", "") for a, b in ((0, 2), (1, 3), (1.5, 1.6), (5, 6))]
    assert covered(spans) == 4


def test_chrome_events_name_lanes_and_join_flows_to_spans() -> None:
    trace = json.loads(chrome_json(timeline_of(told())))
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == ["client0", "dispatcher", "worker0", "worker1"]
    spans = [e for e in events if e["ph"] == "X"]
    check_nesting(spans)
    assert {e["ph"] for e in events} == {"M", "X", "s", "f"}
    flows = {e["id"] for e in events if e["ph"] == "s"}
    assert flows == {e["id"] for e in events if e["ph"] == "f"} and len(flows) == 5
    (run,) = [e for e in spans if e["name"] == "flush0" and names[e["pid"]] == "worker0"]
    assert (run["ts"], run["dur"], run["cat"]) == (100000.0, 900000.0, "run")


def visualize(folder: Path, *words: object, story: str = STORY) -> tuple[int, str]:
    (folder / "ops.log").write_text("\n".join([HEAD, *story.strip().splitlines()]) + "\n")
    done = CliRunner().invoke(main, ["visualize", str(folder / "ops.log"), *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


def test_a_picture_has_the_size_asked_for_and_is_drawn_on(tmp_path: Path) -> None:
    from matplotlib.image import imread

    code, out = visualize(tmp_path, "--output", tmp_path / "t.png", "--dpi", 50, "--width", 8, "--height", 4)
    assert code == 0, out
    pixels = imread(tmp_path / "t.png")
    assert pixels.shape[:2] == (200, 400)
    run, collective = (0x4C / 255, 0x78 / 255, 0xA8 / 255), (0xE4 / 255, 0x57 / 255, 0x56 / 255)
    for colour in (run, collective):
        assert (abs(pixels[..., :3] - colour).max(axis=-1) < 0.02).sum() > 100
    assert "worker0     90.0%  10.0%  30.0%       1           2" in out and "worker1     70.0%  30.0%   5.0%" in out


def test_the_same_log_gives_the_same_svg_with_its_lanes_named(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        assert visualize(tmp_path, "-o", tmp_path / name)[0] == 0
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text() and all(f"<!-- {lane} -->" in text for lane in ("client0", "worker1"))


def test_a_name_is_written_as_it_is(tmp_path: Path) -> None:
    code, out = visualize(tmp_path, "-o", tmp_path / "t.svg", story=STORY.replace("flush0 64 epoch", r"$\frac$ 64 epoch"))
    assert code == 0 and r"<!-- $\frac$ -->" in (tmp_path / "t.svg").read_text(), out


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "link.log").symlink_to("ops.log")
    once = visualize(tmp_path, "-o", tmp_path / "t.json")
    (tmp_path / "d").mkdir()
    assert once == visualize(tmp_path, tmp_path / "link.log", tmp_path / "d" / ".." / "ops.log", "-o", tmp_path / "t.json")
    (tmp_path / "ops.log.1").write_text(HEAD + "\n0.5 1 run worker7 flush0 64 epoch=2 plan=1 seconds=0.1 tier=eager fault=-\n")
    code, out = visualize(tmp_path, tmp_path / "ops.log.1", "-o", tmp_path / "t.json")
    assert code == 0 and re.search(r"worker7 .* 1 +0\n", out), out


def test_the_page_needs_nothing_else_and_runs_nothing_of_the_log(tmp_path: Path) -> None:
    story = STORY.replace("flush0 64 epoch", "</script><b>x 64 epoch")
    assert visualize(tmp_path, "-o", tmp_path / "t.html", story=story)[0] == 0
    text = (tmp_path / "t.html").read_text()
    assert not re.search(r'(src|href)="|https?:', text) and "</script><b>" not in text
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', text, re.S)[1])
    assert data["lanes"][2]["spans"][0][3:5] == ["run", "</script><b>x"] and len(data["joins"]) == 2
    assert text == page(timeline_of(told(story)))


@pytest.mark.parametrize("name", ["t.png", "t.svg", "t.html", "t.json"])
def test_where_nothing_can_be_written_is_told_in_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, why in (("missing", f"there is no folder {tmp_path / 'missing'}"), ("file", "Not a directory")):
        code, out = visualize(tmp_path, "-o", tmp_path / folder / name)
        assert (code, out) == (1, f"Error: {tmp_path / folder / name} cannot be written: {why}\n")


def test_what_cannot_be_drawn_is_told(tmp_path: Path) -> None:
    assert "expected a name that ends with .png, .svg, .pdf, .html, .json, got t.gif" in visualize(tmp_path, "-o", "t.gif")[1]
    assert re.search(r"no event that takes time in these seconds, of \d\.\d{3} in all", visualize(tmp_path, "--since", 50)[1])
    code, out = visualize(tmp_path, "-o", tmp_path / "t.png", "--dpi", 1200, "--width", 200, "--height", 200)
    assert code == 1 and "t.png would have 240000 x 240000 pixels, expected 200 million at most: give smaller --dpi" in out
    assert "--since: expected less than --until 1, got 3" in visualize(tmp_path, "--since", 3, "--until", 1)[1]
    (tmp_path / "notes").write_text("hello\n")
    done = CliRunner().invoke(main, ["visualize", str(tmp_path / "notes")])
    assert done.exit_code == 1 and "notes is no instruction log" in done.output
