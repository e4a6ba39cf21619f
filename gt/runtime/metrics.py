"""A server's status in the text form that Prometheus scrapes (exposition format 0.0.4).

Owns: the names. Counters end with ``_total`` and only grow while a server and its workers live. Next: ``status``, ``web`` (who serves it).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gt.runtime.status import ServerStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[Mapping[str, object], float]


def metrics_text(status: ServerStatus) -> str:
    """Give all metrics."""
    workers, clients = status.workers, status.clients
    kinds = ("run", "collective", "load", "ship")
    families: list[tuple[str, str, str, Iterable[Sample]]] = [
        ("gt_uptime_seconds", "gauge", "Since the server began.", [({}, status.uptime_s)]),
        ("gt_workers", "gauge", "Workers that have joined.", [({}, sum(w.joined for w in workers))]),
        ("gt_clients", "gauge", "Clients that are connected.", [({}, len(clients))]),
        ("gt_epochs_total", "counter", "Runs that were sent to workers, and groups that they formed.", [({}, status.epoch)]),
        ("gt_epochs_in_flight", "gauge", "Of these, those that some worker is not through with.", [({}, status.num_in_flight)]),
        ("gt_malformed_messages_total", "counter", "Messages that were dropped.", [({}, status.malformed)]),
        (
            "gt_plans", "gauge", "Plans by state.",
            [({"state": s}, n) for s, n in (("ready", status.plans_ready), ("made", status.plans_made), ("failed", status.plans_failed))],
        ),
        (
            "gt_worker_seconds_total", "counter", "What workers' time went to.",
            [({"worker": w.id, "kind": kind}, getattr(w.usage, f"{kind}_s")) for w in workers for kind in kinds],
        ),
        (
            "gt_worker_op_seconds_total", "counter", "Of what runs took, the part of each kind of op, by estimate.",
            [({"worker": w.id, "kind": kind}, n) for w in workers for kind, n in sorted(w.usage.kinds_s.items())],
        ),
        ("gt_worker_runs_total", "counter", "Programs run; one that goes in parts once.", [({"worker": w.id}, w.usage.runs) for w in workers]),
        ("gt_worker_sent_bytes_total", "counter", "Sent in collectives.", [({"worker": w.id}, w.usage.sent_nbytes) for w in workers]),
        ("gt_worker_queued_epochs", "gauge", "Epochs sent and not over.", [({"worker": w.id}, w.queued) for w in workers]),
        ("gt_worker_values", "gauge", "Values held.", [({"worker": w.id}, w.usage.values) for w in workers]),
        (
            "gt_worker_memory_bytes", "gauge", "Bytes by what holds them: values, the process, its GPU's allocator.",
            [
                ({"worker": w.id, "of": of}, n)
                for w in workers
                for of, n in (("values", w.usage.values_nbytes), ("process", w.usage.process_nbytes), ("device", w.usage.device_nbytes))
            ],
        ),
        (
            "gt_worker_programs", "gauge", "Loaded programs by tier.",
            [({"worker": w.id, "tier": tier}, n) for w in workers for tier, n in sorted(w.tiers.items())],
        ),
        ("gt_client_runs_total", "counter", "Runs that are over.", [({"client": c.id}, c.runs) for c in clients]),
        ("gt_client_worker_seconds_total", "counter", "Workers' time that it had.", [({"client": c.id}, c.used_s) for c in clients]),
        ("gt_client_waiting_calls", "gauge", "Calls that wait.", [({"client": c.id}, c.waiting) for c in clients]),
        ("gt_client_memory_bytes", "gauge", "Bytes of values, one copy each.", [({"client": c.id}, c.nbytes) for c in clients]),
    ]  # fmt: skip
    lines = []
    for name, kind, doc, samples in families:
        lines += [f"# HELP {name} {doc}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{_labels(labels)} {value!r}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, object]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


__all__ = ["CONTENT_TYPE", "metrics_text"]
