"""What communication and compute cost: alpha + bytes / bandwidth, by the faster of two ways to send.

Owns: ``Machine`` and the predicted seconds of each collective. The numbers are those of two and of four H200s joined by NVLink, with
NCCL 2.28 in a CUDA graph, as ``benchmarks/collectives.py`` measures them. Must not know: graphs. Next: ``reshard`` (the cheapest way
by this cost).
"""

from __future__ import annotations

from dataclasses import dataclass

from gt.ir.ops.collective import SHARE, sent_bytes

NEVER_S = 1e9


@dataclass(frozen=True)
class Machine:
    """launch_s: to start a collective; hop_s: latency per hop; bandwidths in bytes/s that a worker sends, flops in 1/s.

    ``reduce_bandwidth``: of all_reduce; ``gather_bandwidth``: of all_gather and reduce_scatter; ``exchange_bandwidth``: of all_to_all;
    ``link_bandwidth``: of messages, where all send at once. ``brief_launch_s``, ``brief_bandwidth``: of NCCL's way to send little (its
    protocol LL), whatever the kind, among ``brief_workers`` at most; the first hop is in its launch. ``pair``: what holds between two
    workers, if something else does.
    """

    launch_s: float
    hop_s: float
    reduce_bandwidth: float
    gather_bandwidth: float
    exchange_bandwidth: float
    link_bandwidth: float
    memory_bandwidth: float = 3e12
    flops: float = 400e12
    brief_launch_s: float = NEVER_S
    brief_bandwidth: float = 1.0
    brief_workers: int = 4
    pair: Machine | None = None

    def among(self, workers: int) -> Machine:
        """Give what holds among so many workers."""
        return self.pair if workers == 2 and self.pair is not None else self


H100 = Machine(  # what is brief among more than two is not measured: two's latency, a hop's for each hop more, a bandwidth that 4 MiB allow
    launch_s=18e-6, hop_s=2e-6, reduce_bandwidth=335e9, gather_bandwidth=295e9, exchange_bandwidth=260e9, link_bandwidth=155e9,
    brief_launch_s=10.45e-6, brief_bandwidth=95e9,
    pair=Machine(
        launch_s=15.6e-6, hop_s=3e-6, reduce_bandwidth=293e9, gather_bandwidth=221e9, exchange_bandwidth=248e9, link_bandwidth=262e9,
        brief_launch_s=10.45e-6, brief_bandwidth=125e9,
    ),
)  # fmt: skip
LEAST_SHOWN = 1e-8  # seconds


def step_s(kind: str, parts: int, nbytes: int, machine: Machine = H100, starts: bool = True) -> float:
    """Give the predicted seconds of one collective; local steps cost nothing worth comparing. ``starts``: it is not in another's launch."""
    if parts == 1 or kind not in SHARE:
        return 0.0
    at, sent = machine.among(parts), sent_bytes(kind, parts, nbytes)
    rounds, bandwidth = {
        "all_reduce": (2, at.reduce_bandwidth), "all_to_all": (0, at.exchange_bandwidth)
    }.get(kind, (1, at.gather_bandwidth))  # fmt: skip
    if not starts:
        return sent / bandwidth
    usual_s = at.launch_s + rounds * (parts - 1) * at.hop_s + sent / bandwidth
    brief_s = at.brief_launch_s + rounds * (parts - 2) * at.hop_s + sent / at.brief_bandwidth
    return min(usual_s, brief_s) if parts <= at.brief_workers else usual_s


def transfer_s(messages: int, nbytes: int, workers: int, machine: Machine = H100) -> float:
    """Give the predicted seconds of a transfer among so many workers in which one sends or gets so many messages, ``nbytes`` in all."""
    at = machine.among(workers)
    return min(messages * at.launch_s + nbytes / at.link_bandwidth, messages * at.brief_launch_s + nbytes / at.brief_bandwidth)


def compute_s(work: int, nbytes: int, machine: Machine = H100) -> float:
    """Give the predicted seconds of ``work`` multiply-adds that touch ``nbytes`` of memory."""
    return max(2 * work / machine.flops, nbytes / machine.memory_bandwidth)


def time_text(seconds: float) -> str:
    """Give a duration for a reason shown to users."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us" if seconds > LEAST_SHOWN else "0"
