"""What communication and compute cost: alpha + bytes / bandwidth.

Owns: ``Machine`` and the predicted seconds of each collective. The numbers are those of two H200s joined by NVLink, with NCCL 2.28 in
a CUDA graph, as ``benchmarks/collectives.py`` measures them. Must not know: graphs. Next: ``reshard`` (the cheapest way by this cost).
"""

from __future__ import annotations

from dataclasses import dataclass

from gt.ir.ops.collective import SHARE, sent_bytes


@dataclass(frozen=True)
class Machine:
    """launch_s: to start a collective; hop_s: latency per hop; bandwidths in bytes/s that a worker sends, flops in 1/s.

    ``reduce_bandwidth``: of all_reduce; ``gather_bandwidth``: of all_gather and reduce_scatter; ``link_bandwidth``: of messages, also all
    at once.
    """

    launch_s: float = 20e-6
    hop_s: float = 0.6e-6
    reduce_bandwidth: float = 300e9
    gather_bandwidth: float = 245e9
    link_bandwidth: float = 280e9
    memory_bandwidth: float = 3e12
    flops: float = 400e12


H100 = Machine()
LEAST_SHOWN = 1e-8  # seconds


def step_s(kind: str, parts: int, nbytes: int, machine: Machine = H100) -> float:
    """Give the predicted seconds of one collective; local steps cost nothing worth comparing."""
    if parts == 1 or kind not in SHARE:
        return 0.0
    hops = 2 * (parts - 1) if kind == "all_reduce" else parts - 1
    bandwidth = {"all_reduce": machine.reduce_bandwidth, "all_to_all": machine.link_bandwidth}.get(kind, machine.gather_bandwidth)
    return machine.launch_s + hops * machine.hop_s + sent_bytes(kind, parts, nbytes) / bandwidth


def transfer_s(messages: int, nbytes: int, machine: Machine = H100) -> float:
    """Give the predicted seconds of a transfer in which one worker sends or gets so many messages, ``nbytes`` in all."""
    return messages * machine.launch_s + nbytes / machine.link_bandwidth


def compute_s(work: int, nbytes: int, machine: Machine = H100) -> float:
    """Give the predicted seconds of ``work`` multiply-adds that touch ``nbytes`` of memory."""
    return max(2 * work / machine.flops, nbytes / machine.memory_bandwidth)


def time_text(seconds: float) -> str:
    """Give a duration for a reason shown to users."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us" if seconds > LEAST_SHOWN else "0"
