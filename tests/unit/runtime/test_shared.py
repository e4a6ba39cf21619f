"""Memory shared between processes: what is read is what was sent, a slot waits for its readers, and nothing else is opened."""

from __future__ import annotations

import gc
import mmap
import os
import tempfile

import msgspec
import numpy as np
import psutil
import pytest

from gt.ir.program import WireType
from gt.runtime import env, shared, wire
from gt.runtime.errors import ProtocolError
from gt.runtime.shared import PAGE, Openings, Slot, SlotPool, rounded

pytestmark = pytest.mark.skipif(not shared.supported(), reason="this system has no memory without a name")
MIB = 1 << 20


def filled(pool: SlotPool, value: float, shape: tuple[int, ...] = (300, 100)) -> np.ndarray:
    array = pool.take(shape, np.dtype(np.float32))
    assert array is not None
    array[...] = value
    return array


def lent(pool: SlotPool, array: np.ndarray, reader: object = "w") -> shared.Region:
    slot = pool.find(array)
    assert slot is not None
    return slot.lend(reader, array.shape, tuple((0, n) for n in array.shape))


def type_of(array: np.ndarray) -> WireType:
    return WireType(array.shape, array.dtype.name)


def test_a_reader_sees_what_was_written_where_it_lies():
    pool, openings = SlotPool(), Openings()
    array = filled(pool, 7.0)
    view, _ = openings.view(lent(pool, array), type_of(array))
    assert np.array_equal(view, array) and not view.flags.writeable
    array[3, 4] = 1.0
    assert view[3, 4] == 1.0  # no copy
    slot = pool.find(array)
    rows, _ = openings.view(slot.lend("other", array.shape, ((2, 5), (10, 20))), WireType((3, 10), "float32"))
    assert np.array_equal(rows, array[2:5, 10:20]) and len(openings) == 1


def test_a_slot_is_used_again_only_when_all_have_read_and_nobody_holds_it():
    pool, openings = SlotPool(), Openings()
    first = filled(pool, 1.0)
    regions = [lent(pool, first, reader) for reader in "ab"]
    reads = [openings.view(region, type_of(first)) for region in regions]
    slot = pool.find(first)
    del first
    for view, done in reads:
        other = filled(pool, 2.0)
        assert pool.find(other) is not slot and view[0, 0] == 1.0
        del other
        done()
    again = filled(pool, 3.0)
    assert pool.find(again) is slot  # the smallest, and free now
    part = again[5:]
    del again
    other = filled(pool, 4.0)
    assert pool.find(other) is not slot and part[0, 0] == 3.0


def test_sizes_are_shared_and_limited():
    assert [rounded(n) for n in (1, PAGE, PAGE + 1, 100_000, MIB, MIB + 1)] == [PAGE, PAGE, 2 * PAGE, 114688, MIB, MIB + MIB // 4]
    pool = SlotPool(max_nbytes=4 * MIB)
    held = [pool.take((MIB,), np.dtype(np.uint8)) for _ in range(5)]
    assert [h is not None for h in held] == [True, True, True, False, False]
    held.clear()
    assert pool.take((3 * MIB,), np.dtype(np.uint8)) is not None and pool.nbytes <= 4 * MIB
    assert pool.take((5 * MIB,), np.dtype(np.uint8)) is None


def test_slots_go_with_their_descriptors(monkeypatch):
    gc.collect()  # what tests before have left
    before = psutil.Process().num_fds()
    pool, openings = SlotPool(), Openings()
    held = [filled(pool, 1.0) for _ in range(shared.MAX_SLOTS)]
    assert pool.take((300, 100), np.dtype(np.float32)) is None
    views = [openings.view(lent(pool, array), type_of(array)) for array in held]
    while views:
        views.pop()[1]()
    pool.trim(0.0)  # all are still held here
    openings.sweep()
    assert len(openings) == shared.MAX_SLOTS
    held.clear()
    pool.trim(0.0)
    openings.sweep()
    assert (len(openings), pool.nbytes) == (0, 0)
    gc.collect()
    assert psutil.Process().num_fds() == before
    monkeypatch.setattr(os, "memfd_create", lambda *_: (_ for _ in ()).throw(OSError(24, "Too many open files")))
    assert pool.take((300, 100), np.dtype(np.float32)) is None and shared.probe() is None


def test_what_a_lost_reader_was_lent_is_not_used_again():
    pool = SlotPool()
    array = filled(pool, 1.0)
    lent(pool, array, "lost")
    slot = pool.find(array)
    pool.lose("lost")
    del array
    assert pool.find(filled(pool, 2.0)) is not slot and slot.memory[shared.RETIRED] == 1


def test_what_others_were_lent_is_theirs_to_open_though_one_reader_is_lost():
    pool = SlotPool()
    array = filled(pool, 1.0)
    _, *regions = [lent(pool, array, reader) for reader in ("lost", "slow", "slower")]
    slot, type_ = pool.find(array), type_of(array)
    pool.lose("lost")
    del array
    assert filled(pool, 2.0) is not None and pool.named(slot.secret) is slot and not slot.memory[shared.RETIRED]
    for region in regions:
        view, over = Openings().view(region, type_)
        assert (view == 1.0).all()
        over()
    assert pool.find(filled(pool, 3.0)) is not slot and pool.named(slot.secret) is None and slot.memory[shared.RETIRED] == 1
    pool.close()


def test_a_slots_size_is_sealed():
    slot = Slot(2 * PAGE)
    for size in (0, PAGE, 4 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(slot.fd, size)


def test_nothing_but_a_slot_is_opened():
    pool, openings = SlotPool(), Openings()
    array = filled(pool, 1.0)
    region, type_ = lent(pool, array), type_of(array)
    wrong = msgspec.structs.replace
    for damaged in (
        wrong(region, secret=bytes(16)), wrong(region, nbytes=region.nbytes + 1), wrong(region, lane=PAGE), wrong(region, pid=0),
        wrong(region, fd=-1), wrong(region, secret=b""), wrong(region, bounds=((0, 301), (0, 100))), wrong(region, bounds=()),
        wrong(region, shape=(1 << 40, 100)), wrong(region, bounds=((1, 300), (0, 100))), wrong(region, nbytes=1 << 62),
    ):  # fmt: skip
        with pytest.raises(ProtocolError):
            openings.view(damaged, type_)
    unsealed = os.memfd_create("gt")
    os.ftruncate(unsealed, region.nbytes)
    with mmap.mmap(unsealed, region.nbytes) as memory:
        memory[:16] = region.secret
    read, write = os.pipe()
    with tempfile.TemporaryFile() as file:
        file.truncate(region.nbytes)
        for fd in (unsealed, read, write, file.fileno()):
            with pytest.raises(ProtocolError):
                openings.view(wrong(region, fd=fd), type_)
    for fd in (unsealed, read, write):
        os.close(fd)
    with pytest.raises(OSError):
        openings.view(wrong(region, fd=9999), type_)
    assert len(openings) == 0 and np.array_equal(openings.view(region, type_)[0], array)
    with pytest.raises(ProtocolError):  # once opened, too
        openings.view(wrong(region, nbytes=region.nbytes - PAGE), WireType((1, 1), "float32"))


def test_a_probe_says_whether_slots_can_be_opened():
    slot, openings = shared.probe(), Openings()
    assert slot is not None and openings.opens(slot.offer()) and not openings.opens(None)
    assert not openings.opens(msgspec.structs.replace(slot.offer(), secret=bytes(16)))
    assert not openings.opens(msgspec.structs.replace(slot.offer(), pid=1 << 22))
    env.SHARED_MEMORY.set(False)
    try:
        assert not openings.opens(slot.offer()) and shared.probe() is None
    finally:
        env.SHARED_MEMORY.forget()


def test_messages_carry_data_or_say_where_it_is():
    pool = SlotPool()
    array = filled(pool, 1.0)
    region = lent(pool, array)
    upload = wire.Upload(b"t", type_of(array), region)
    assert wire.UPLOADS.decode([wire.encode(upload)]) == (upload, None)
    part = wire.Part(1, WireType((600, 100), "float32"), ((300, 600), (0, 100)), 2, True, region)
    assert wire.TO_CLIENT.decode([wire.encode(part)]) == (part, None)
    for message in (upload, part, wire.Upload(b"t", type_of(array))):
        frames = [wire.encode(message), array.tobytes()] if message.region else [wire.encode(message)]
        with pytest.raises(ProtocolError, match="data frame"):
            (wire.TO_CLIENT if message is part else wire.UPLOADS).decode(frames)
    with pytest.raises(ProtocolError, match="are not"):
        wire.UPLOADS.decode([wire.encode(wire.Upload(b"t", WireType((2, 2), "float32"), region))])


def test_slots_lie_in_no_directory():
    pool = SlotPool()
    slot = pool.find(filled(pool, 1.0))
    assert slot is not None and os.readlink(f"/proc/self/fd/{slot.fd}") == "/memfd:gt (deleted)"
