"""Shared memory between a client and workers of one host: values are right under load, and nothing is left, whoever is killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from gt.ir.types import TensorType, float32
from gt.runtime import env, shared, wire, worker_links
from gt.runtime.launch import LocalCluster
from gt.runtime.remote import RemoteSession
from gt.runtime.shared import Openings, Slot
from tests.integration.cluster import Desk, cols, rows
from tests.integration.programs import server, start, wait_for

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not shared.supported(), reason="this system has no memory without a name"),
]
SHM = Path("/dev/shm")


@pytest.fixture
def desk(pair: LocalCluster) -> Iterator[Desk]:
    session = RemoteSession(pair.address, timeout=60)
    assert wait_for(lambda: len(session._links.sharing) == len(session._links.opened) == 2)
    yield Desk(session)
    session.close()


@pytest.fixture
def travelled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Collect, for each upload and each part of a result, whether it came through shared memory."""
    seen: list[bool] = []
    send, got = worker_links.send, RemoteSession._part

    def sending(socket, message, *rest):
        if isinstance(message, wire.Upload):
            seen.append(message.region is not None)
        send(socket, message, *rest)

    def receiving(self, request, part, data):
        seen.append(part.region is not None)
        got(self, request, part, data)

    monkeypatch.setattr(worker_links, "send", sending)
    monkeypatch.setattr(RemoteSession, "_part", receiving)
    return seen


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def in_room(desk: Desk, array: np.ndarray, signal: object = None) -> int:
    """Upload an array as a tensor does: copied once, into the session's own memory."""
    room = desk.session.room(array.shape, array.dtype)
    np.copyto(room, array)
    buffer = next(desk.count)
    desk.session.put(buffer, TensorType(array.shape, float32), room, signal)
    return buffer


def mapped(process: object) -> int:
    """Give how many slots, its probe included, a process holds."""
    return sum("memfd:gt" in m.path for m in psutil.Process(process.pid).memory_maps(grouped=False))


@pytest.mark.parametrize("signal", [None, rows(), cols()], ids=["whole", "rows", "cols"])
@pytest.mark.parametrize("shape", [(300, 301), (601, 555)], ids=str)
def test_large_arrays_travel_in_shared_memory(desk, travelled, shape, signal):
    array = numbers(*shape)
    assert np.array_equal(desk.get(in_room(desk, array, signal)), array)
    assert np.array_equal(desk.get(desk.put(array, signal)), array)  # not in a slot yet: copied to one
    assert travelled and all(travelled)


def test_small_ones_do_not(desk, travelled):
    array = numbers(20, 20)
    assert np.array_equal(desk.get(in_room(desk, array)), array) and travelled == [False]


def test_an_array_is_as_it_was_at_the_call_whatever_is_written_to_it_next(desk, travelled):
    """Rule 6, under load: one array is filled anew for each upload, while earlier ones are on their way; results are kept."""
    array, x, held, buffers = np.empty((200, 200), np.float32), desk.put(np.ones((200, 200))), [], []
    for i in range(300):
        array[...] = i
        buffers.append((i, in_room(desk, array, rows() if i % 3 else None)))
        if i % 5 == 0:
            x = desk.run("add", (x, (200, 200)), (buffers[-1][1], (200, 200)), frees=(x,))
        if len(buffers) == 20:
            held += [(n, desk.session.fetch(b)) for n, b in buffers]
            desk.session.free([b for _, b in buffers])
            buffers.clear()
    for i, future in held:
        got = future.result(30)
        assert got.min() == got.max() == i
        got[...] = -1  # the reader's own
    assert desk.get(x)[0, 0] == 1 + sum(range(0, 300, 5))
    assert sum(travelled) > len(travelled) / 2


@pytest.mark.parametrize("signal", [None, rows()], ids=["whole", "rows"])
def test_a_slot_is_not_taken_again_before_all_its_parts_are_lent(desk, travelled, monkeypatch, signal):
    """What is not in a slot yet is copied to one on the io thread, while the caller's thread takes others and fills them."""
    array, taken, lend = numbers(300, 300), [], Slot.lend

    def meanwhile(self, *rest):
        taken.append(desk.session._links.pool.take(array.shape, array.dtype))
        taken[-1][...] = -1
        return lend(self, *rest)

    monkeypatch.setattr(Slot, "lend", meanwhile)
    assert np.array_equal(desk.get(desk.put(array, signal)), array) and taken


def test_uploads_called_off_give_their_slots_back(desk):
    array, pool = numbers(300, 300), desk.session._links.pool
    for i in range(3 * shared.MAX_SLOTS):
        desk.session.free([in_room(desk, array, rows() if i % 2 else None)])
    assert np.array_equal(desk.get(in_room(desk, array)), array)
    assert wait_for(lambda: not any(slot.busy for slot in pool._slots))


def test_what_a_worker_cannot_open_after_all_is_sent_again(desk, travelled, monkeypatch):
    array, lend = numbers(400, 400), Slot.lend

    def nowhere(self, *rest):
        return msgspec.structs.replace(lend(self, *rest), fd=99_999)

    with monkeypatch.context() as patch:
        patch.setattr(Slot, "lend", nowhere)
        assert np.array_equal(desk.get(in_room(desk, array, rows())), array)
    assert travelled[:4] == [True, True, False, False] and not desk.session._links.sharing
    assert wait_for(lambda: not any(slot.busy for slot in desk.session._links.pool._slots))
    assert np.array_equal(desk.get(in_room(desk, array)), array)


def test_what_a_client_cannot_open_after_all_is_fetched_again(desk, travelled, monkeypatch):
    array = numbers(400, 400)
    buffer = in_room(desk, array, rows())
    monkeypatch.setattr(Openings, "view", lambda *_: (_ for _ in ()).throw(OSError(24, "Too many open files")))
    assert np.array_equal(desk.get(buffer), array)
    assert np.array_equal(desk.get(buffer), array)
    assert travelled[-2:] == [False, False] and not desk.session._links.opened


def test_who_cannot_open_the_others_memory_uses_frames(pair, travelled):
    array = numbers(300, 300)
    env.SHARED_MEMORY.set(False)
    try:
        session = RemoteSession(pair.address, timeout=60)
        desk = Desk(session)
        assert all(np.array_equal(desk.get(in_room(desk, array, rows())), array) for _ in range(5))
        assert not any(travelled) and not session._links.sharing
        session.close()
    finally:
        env.SHARED_MEMORY.forget()


def test_a_value_comes_to_a_worker_that_opens_its_memory_after_another_that_had_it_too_died(monkeypatch):
    array, late = numbers(300, 300), []
    send, set_ = worker_links.send, worker_links.WorkerLinks.set

    with server(2) as there:
        session = RemoteSession(there.address, timeout=60)
        assert wait_for(lambda: len(session._links.sharing) == 2)

        def sending(socket, message, *rest):
            if isinstance(message, wire.Upload) and socket is not session._links.sockets[min(session._links.sockets)]:
                late.append((socket, message, *rest))
            else:
                send(socket, message, *rest)

        def setting(self, workers):
            lost = set_(self, workers)
            while lost and late:  # it is as slow as that
                send(*late.pop())
            return lost

        monkeypatch.setattr(worker_links, "send", sending)
        monkeypatch.setattr(worker_links.WorkerLinks, "set", setting)
        desk = Desk(session)
        buffer = in_room(desk, array)
        assert wait_for(lambda: late)
        first = min(session.status().workers, key=lambda w: w.id)
        psutil.Process(first.pid).kill()
        assert np.array_equal(desk.get(buffer), array)
        session.close()


HOLDS = """
import sys
import numpy as np
import gt
gt.connect(sys.argv[1])
held = [gt.from_numpy(np.ones((1 << 20,), np.float32)) for _ in range(20)]
print(int(held[-1].numpy().sum()), flush=True)
while gt.num_workers() == 2:
    for t in held:
        t.numpy()
        gt.from_numpy(np.ones((1 << 20,), np.float32))
again = gt.from_numpy(np.ones((1 << 20,), np.float32))
print(int(again.numpy().sum()))
"""


def test_a_killed_worker_or_client_leaves_nothing_behind(tmp_path: Path) -> None:
    before = set(SHM.iterdir()) if SHM.is_dir() else set()
    with server(2) as there:
        at_first = [mapped(p) for p in there.workers]
        for name in "ab":
            (tmp_path / name).mkdir()
        with start(HOLDS, tmp_path / "a", there.address) as killed, start(HOLDS, tmp_path / "b", there.address) as other:
            for client in (killed, other):
                assert client.stdout is not None and client.stdout.readline() == "1048576\n"
            assert wait_for(lambda: mapped(there.workers[0]) > at_first[0] + 1)
            killed.send_signal(signal.SIGKILL)
            killed.communicate(timeout=60)
            there.workers[1].send_signal(signal.SIGKILL)
            out, err = other.communicate(timeout=60)
            assert (other.returncode, out) == (0, "1048576\n"), err
        assert wait_for(lambda: mapped(there.workers[0]) <= at_first[0], 30), mapped(there.workers[0])
        assert there.workers[1].wait(60) == -signal.SIGKILL
        there.workers[0].send_signal(signal.SIGINT)
        there.workers[0].wait(60)
    assert wait_for(lambda: not SHM.is_dir() or set(SHM.iterdir()) <= before)  # other programs come and go there, too
