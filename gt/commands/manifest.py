"""``gt manifest``: what a scheduler wants to read for a job of ``gt launch``, printed.

Owns: the command and the four forms. Each starts the same ``gt launch`` line on every node; exit codes that another try may mend are
retried, others are not. Next: ``gt.runtime.launchers`` (what that line finds there), ``gt.runtime.exit_codes``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import click

from gt.commands.launch import PORT
from gt.commands.script_arguments import ScriptCommand
from gt.runtime.exit_codes import ExitCode

RETRIES = 3
NAME = re.compile(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?")  # a DNS label that leaves room for -0-0-xxxxx
SECRET, POD_KEYS = "/etc/gt-keys", "/tmp/gt-keys"
TIME = re.compile(r"(\d+-)?\d{1,3}(:\d{2}){0,2}")
MENDED = (ExitCode.SERVER_LOST, ExitCode.WORKER_LOST, ExitCode.NO_WORKERS, 137, 143)


@dataclass(frozen=True)
class Wanted:
    """A job: what runs, on how many nodes with how many GPUs each, under which name."""

    command: tuple[str, ...]
    nodes: int
    gpus: int
    name: str
    image: str
    time: str
    accelerator: str
    cpus: int
    memory: str
    port: int
    keys: str

    def line(self, *options: str) -> list[str]:
        """Give the line that every node runs."""
        network = [] if self.nodes == 1 else ["--keys", self.keys] if self.keys else ["--insecure"]
        workers = [] if self.gpus else ["--workers", "1"]
        end = ["--"] if any(word.startswith("-") for word in self.command[:2]) else []  # what follows is not for gt
        return ["gt", "launch", *options, *network, *workers, *end, *self.command]


@click.command(cls=ScriptCommand)
@click.argument("form", type=click.Choice(["slurm", "jobset", "indexed-job", "skypilot"]))
@click.argument("source", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes.")
@click.option("--gpus", type=click.IntRange(0), default=0, show_default=True, help="GPUs of each node.")
@click.option("--name", help="Name of the job. [default: the script's]")
@click.option("--image", default="IMAGE", show_default=True, help="Container image, for Kubernetes and SkyPilot.")
@click.option("--time", default="", help="Time limit for Slurm, as in 12:00:00.")
@click.option("--accelerator", default="H200", show_default=True, help="Kind of GPU, for SkyPilot.")
@click.option("--cpus", type=click.IntRange(1), default=8, show_default=True, help="CPUs of each node.")
@click.option("--memory", default="32Gi", show_default=True, help="Memory of each node, as Kubernetes writes it.")
@click.option("--port", type=click.IntRange(1024, 65535), default=PORT, show_default=True, help="Port that node 0 listens on.")
@click.option("--keys", default="~/.config/gt/keys", show_default=True, metavar="FOLDER", help="Folder that gt keygen made: on the "
              "nodes for Slurm, here for SkyPilot; for Kubernetes, what is put into a secret.")  # fmt: skip
@click.option("--insecure", is_flag=True, help="Without keys: whoever reaches the nodes' ports may use them.")
def manifest(
    form: str, source: str | None, arguments: tuple[str, ...], nodes: int, gpus: int, name: str | None, image: str, time: str,
    accelerator: str, cpus: int, memory: str, port: int, keys: str, insecure: bool,
) -> None:  # fmt: skip
    """Print a manifest for FORM that runs SOURCE, a script, on --nodes nodes: sbatch, kubectl apply -f or sky launch takes it.

    Options may follow the script; the first word that is none of them begins the script's own ARGUMENTS. The script's path is the one that
    it has on the nodes.
    """
    if source is None:
        raise click.UsageError("give the script, by its path on the nodes")
    name = name or _name_of(source)
    if not NAME.fullmatch(name):
        raise click.BadParameter(
            f"{name!r}: expected lower-case letters, digits and dashes, at most 42, a letter first", param_hint="--name"
        )
    if time and not TIME.fullmatch(time):
        raise click.BadParameter(f"{time!r}: expected minutes, HH:MM:SS or D-HH:MM:SS", param_hint="--time")
    if not re.fullmatch(r"\d+(\.\d+)?([KMGT]i?)?", memory):
        raise click.BadParameter(f"{memory!r}: expected a quantity such as 32Gi", param_hint="--memory")
    if any("\n" in word or "\0" in word for word in (source, *arguments, image, accelerator, keys)):
        raise click.UsageError("a word with a line break in it cannot be put into a manifest")
    wanted = Wanted((source, *arguments), nodes, gpus, name, image, time, accelerator, cpus, memory, port, "" if insecure else keys)
    click.echo(FORMS[form](wanted), nl=False)


def _name_of(source: str) -> str:
    stem = re.sub(r"[^a-z0-9]+", "-", source.rpartition("/")[2].removesuffix(".py").lower()).strip("-")
    return f"gt-{stem}"[:42].rstrip("-")


def slurm(job: Wanted) -> str:
    """Give an sbatch script. srun ends all nodes when one fails; Slurm starts the job anew where another try may mend it."""
    words = job.line("--launcher", "slurm", "--port", "PORT")
    at = words.index("PORT")
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={job.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --cpus-per-task={job.cpus}",
        f"#SBATCH --mem={_gigabytes(job.memory)}G",
        *([f"#SBATCH --gpus-per-node={job.gpus}"] if job.gpus else []),
        *([f"#SBATCH --time={job.time}"] if job.time else []),
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "",
        "# Jobs on one machine listen on different ports.",
        f"port=$(({job.port} + SLURM_JOB_ID % 1000))",
        f'srun --cpus-per-task={job.cpus} --kill-on-bad-exit=0 {shlex.join(words[:at])} "$port" {shlex.join(words[at + 1 :])}',
    ]
    codes = "|".join(str(int(code)) for code in MENDED)
    lines += [
        "code=$?",
        'case "$code" in',
        f"  {codes})",
        "    # Lost machines, not the script's own fault: once more, at most so often.",
        f'    if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {RETRIES} ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
        "    ;;",
        "esac",
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _pod(job: Wanted, head: str, subdomain: str | None) -> dict[str, Any]:
    """Give a pod's spec. ``head``: the name of node 0's; ``subdomain``: the service under which pods find each other, None where JobSet says."""
    options = ["--launcher", "kubernetes", "--nnodes", str(job.nodes), "--head", head, "--port", str(job.port)]
    keyed = job.nodes > 1 and bool(job.keys)
    line = replace(job, keys=POD_KEYS).line(*options) if keyed else job.line(*options)
    if keyed:  # what a secret's volume holds is not this user's alone, so that gt would refuse it
        line = ["sh", "-c", f'umask 077 && cp -rL {SECRET} {POD_KEYS} && exec "$@"', "sh", *line]
    limits: dict[str, Any] = {"cpu": str(job.cpus), "memory": job.memory}
    if job.gpus:
        limits["nvidia.com/gpu"] = job.gpus
    container = {
        "name": "gt",
        "image": job.image,
        "command": line,
        "ports": [{"containerPort": job.port, "name": "gt"}],
        "resources": {"limits": limits, "requests": dict(limits)},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, *([{"name": "keys", "mountPath": SECRET}] if keyed else [])],
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60,
        "containers": [container],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            *([{"name": "keys", "secret": {"secretName": f"{job.name}-keys"}}] if keyed else []),
        ],
    }
    return {"subdomain": subdomain, **spec} if subdomain else spec


def _job_spec(job: Wanted, pod: dict[str, Any], labels: dict[str, str], retries: int) -> dict[str, Any]:
    """Give the spec of an indexed Job. A failure that another try would repeat fails it at once."""
    final = [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": "gt", "operator": "NotIn", "values": [int(code) for code in MENDED]},
        }
    ]
    return {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "backoffLimit": retries,
        "podFailurePolicy": {"rules": final},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }


def _policy(job: Wanted, labels: dict[str, str]) -> dict[str, Any]:
    """Let the job's own pods reach each other, and nobody else reach them."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": job.name},
        "spec": {
            "podSelector": {"matchLabels": labels},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": labels}}]}],
        },
    }


def jobset(job: Wanted) -> str:
    """Give a JobSet of one indexed Job. When machines are lost all pods start anew, at most three times."""
    labels = {"app": job.name}
    pod = _pod(job, f"{job.name}-node-0-0.{job.name}", None)
    spec = {
        "network": {"enableDNSHostnames": True, "subdomain": job.name, "publishNotReadyAddresses": True},
        "failurePolicy": {
            "maxRestarts": RETRIES,
            "rules": [{"name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
        },
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": _job_spec(job, pod, labels, 0)}}],
    }
    made = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": job.name}, "spec": spec}
    return _secret_note(job) + _yaml(_policy(job, labels), made)


def indexed_job(job: Wanted) -> str:
    """Give an indexed Job with the service under which its pods find each other. Pods that lost others start anew."""
    labels = {"app": job.name}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.name},
        "spec": {
            "clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels, "ports": [{"name": "gt", "port": job.port}],
        },
    }  # fmt: skip
    spec = _job_spec(job, _pod(job, f"{job.name}-0.{job.name}", job.name), labels, RETRIES * job.nodes)
    made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job.name}, "spec": spec}
    return _secret_note(job) + _yaml(service, _policy(job, labels), made)


def _secret_note(job: Wanted) -> str:
    """Give the comment that says how the secret of a job's keys is made."""
    if job.nodes == 1 or not job.keys:
        return ""
    folder = "$HOME" + shlex.quote(job.keys.removeprefix("~")) if job.keys.startswith("~/") else shlex.quote(job.keys)
    return f"# Before: gt keygen -o {folder}; kubectl create secret generic {job.name}-keys --from-file={folder}\n"


def skypilot(job: Wanted) -> str:
    """Give a SkyPilot task. As a managed job it is started anew where another try may mend it."""
    resources: dict[str, Any] = {"cpus": f"{job.cpus}+", "memory": f"{_gigabytes(job.memory)}+"}
    if job.gpus:
        resources["accelerators"] = f"{job.accelerator}:{job.gpus}"
    if job.image != "IMAGE":
        resources["image_id"] = f"docker:{job.image}"
    resources["job_recovery"] = {"recover_on_exit_codes": [int(code) for code in MENDED]}
    keyed = job.nodes > 1 and bool(job.keys)
    run = shlex.join((replace(job, keys=POD_KEYS) if keyed else job).line("--launcher", "skypilot", "--port", str(job.port)))
    task: dict[str, Any] = {"name": job.name, "num_nodes": job.nodes, "resources": resources, "workdir": "."}
    if keyed:
        task["file_mounts"] = {POD_KEYS: job.keys}
        run = f"chmod -R go= {POD_KEYS}\n{run}"
    return _yaml({**task, "run": f"{run}\n"})


def _gigabytes(memory: str) -> int:
    match = re.match(r"[\d.]+", memory)
    assert match is not None
    scale = {"K": 2**-20, "M": 2**-10, "G": 1.0, "T": 1024.0}.get(memory[match.end() :][:1], 2**-30)
    return max(1, round(float(match[0]) * scale))


def _yaml(*documents: dict[str, Any]) -> str:
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return str(yaml.dump_all(documents, Dumper=Plain, sort_keys=False, width=1000))


FORMS: dict[str, Callable[[Wanted], str]] = {
    "slurm": slurm,
    "jobset": jobset,
    "indexed-job": indexed_job,
    "skypilot": skypilot,
}

__all__ = ["FORMS", "Wanted", "manifest"]
