"""Manifests: what schedulers' schemas require of them is there, and nothing that the schemas do not know.

The parts of the schemas are written down here from their public references: batch/v1 Job, Service and NetworkPolicy of Kubernetes,
JobSet v1alpha2, SkyPilot's task YAML, and sbatch's manual page.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gt.cli import main
from gt.runtime.exit_codes import ExitCode
from gt.runtime.keys import make_keys, read_keys
from gt.runtime.launchers import Asked, detect

# A schema: a type, a list of one schema, a dict of fields (required if the name ends with "!"), a set of values, or Any.
LABELS = {"app!": str}
CONTAINER = {
    "name!": str, "image!": str, "command!": [str], "ports": [{"containerPort!": int, "name": str}],
    "resources": {"limits": {"cpu": str, "memory": str, "nvidia.com/gpu": int}, "requests": {"cpu": str, "memory": str, "nvidia.com/gpu": int}},
    "volumeMounts": [{"name!": str, "mountPath!": str}],
}  # fmt: skip
POD = {
    "restartPolicy!": {"Never"},  # what a pod failure policy requires
    "subdomain": str, "terminationGracePeriodSeconds": int, "containers!": [CONTAINER],
    "volumes": [{"name!": str, "emptyDir": {"medium": {"Memory", ""}}, "secret": {"secretName": str}}],
}  # fmt: skip
JOB_SPEC = {
    "completionMode!": {"Indexed"}, "completions!": int, "parallelism!": int, "backoffLimit": int,
    "podFailurePolicy": {"rules!": [{
        "action!": {"FailJob", "Ignore", "Count", "FailIndex"},
        "onExitCodes": {"containerName": str, "operator!": {"In", "NotIn"}, "values!": [int]},
    }]},
    "template!": {"metadata": {"labels": LABELS}, "spec!": POD},
}  # fmt: skip
NAMED = {"name!": str}
JOB = {"apiVersion!": {"batch/v1"}, "kind!": {"Job"}, "metadata!": NAMED, "spec!": JOB_SPEC}
SERVICE = {
    "apiVersion!": {"v1"}, "kind!": {"Service"}, "metadata!": NAMED,
    "spec!": {"clusterIP": {"None"}, "publishNotReadyAddresses": bool, "selector": LABELS, "ports": [{"name": str, "port!": int}]},
}  # fmt: skip
POLICY = {
    "apiVersion!": {"networking.k8s.io/v1"}, "kind!": {"NetworkPolicy"}, "metadata!": NAMED,
    "spec!": {
        "podSelector!": {"matchLabels": LABELS}, "policyTypes": [{"Ingress", "Egress"}],
        "ingress": [{"from": [{"podSelector": {"matchLabels": LABELS}}]}],
    },
}  # fmt: skip
JOBSET = {
    "apiVersion!": {"jobset.x-k8s.io/v1alpha2"}, "kind!": {"JobSet"}, "metadata!": NAMED,
    "spec!": {
        "network": {"enableDNSHostnames": bool, "subdomain": str, "publishNotReadyAddresses": bool},
        "failurePolicy": {
            "maxRestarts": int,
            "rules": [{"name!": str, "action!": {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"},
                       "onJobFailureReasons": [{"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded",
                                                "PodFailurePolicy"}], "targetReplicatedJobs": [str]}],
        },
        "replicatedJobs!": [{"name!": str, "replicas": int, "template!": {"spec!": JOB_SPEC}}],
    },
}  # fmt: skip
SKYPILOT = {
    "name": str, "num_nodes": int, "workdir": str, "setup": str, "run": str, "file_mounts": {"/tmp/gt-keys": str},
    "resources": {
        "cpus": str, "memory": str, "accelerators": str, "image_id": str,
        "job_recovery": {"strategy": str, "max_restarts_on_errors": int, "recover_on_exit_codes": [int]},
    },
}  # fmt: skip
SBATCH = {
    "job-name", "nodes", "ntasks-per-node", "cpus-per-task", "mem", "gpus-per-node", "time", "requeue", "open-mode",
}  # fmt: skip


def check(value: Any, schema: Any, at: str = "$") -> None:
    match schema:
        case dict():
            assert isinstance(value, dict), f"{at}: {value!r}"
            known = {name.rstrip("!"): part for name, part in schema.items()}
            assert set(value) <= set(known), f"{at}: unknown {set(value) - set(known)}"
            missing = {name[:-1] for name in schema if name.endswith("!")} - set(value)
            assert not missing, f"{at}: {missing} missing"
            for name, part in value.items():
                check(part, known[name], f"{at}.{name}")
        case list():
            assert isinstance(value, list) and value, f"{at}: {value!r}"
            for i, part in enumerate(value):
                check(part, schema[0], f"{at}[{i}]")
        case set():
            assert value in schema, f"{at}: {value!r}"
        case _:
            assert type(value) is schema, f"{at}: {value!r}"


def printed(*words: object) -> str:
    done = CliRunner().invoke(main, ["manifest", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def documents(*words: object) -> list[dict[str, Any]]:
    text = printed(*words)
    assert not [e for e in yaml.parse(text) if isinstance(e, yaml.AliasEvent)]
    return list(yaml.safe_load_all(text))


def ends(line: list[str]) -> list[str]:
    """Give what the line that nodes run hands to Python."""
    return line[line.index("--") + 1 :] if "--" in line else line[line.index("train.py") :]


@pytest.mark.parametrize("gpus", [0, 8])
def test_an_indexed_job_has_what_its_pods_need_to_find_each_other(gpus: int) -> None:
    service, policy, job = documents("indexed-job", "train.py", "--nodes", 4, "--gpus", gpus, "--image", "me/gt:1", "--lr", 0.1)
    for made, schema in ((service, SERVICE), (policy, POLICY), (job, JOB)):
        check(made, schema)
    pod = job["spec"]["template"]["spec"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    assert (
        service["metadata"]["name"] == pod["subdomain"]
        and service["spec"]["selector"] == job["spec"]["template"]["metadata"]["labels"]
    )
    (container,) = pod["containers"]
    assert container["image"] == "me/gt:1" and container["resources"]["limits"].get("nvidia.com/gpu", 0) == gpus
    assert ends(container["command"]) == ["train.py", "--lr", "0.1"]
    line = container["command"]
    head = line[line.index("--head") + 1]
    name = job["metadata"]["name"]
    place = detect({"JOB_COMPLETION_INDEX": "2"}, Asked(4, head=head, launcher="kubernetes"), f"{name}-2")
    assert (place.node, place.num_nodes, place.head) == (2, 4, f"{name}-0.{pod['subdomain']}")


def test_pods_make_their_keys_their_own_before_they_start(tmp_path: Path) -> None:
    """What a secret's volume holds are links that others may read."""
    made = make_keys(tmp_path / "made", ["client"], ["worker"])
    secret, own = tmp_path / "secret", tmp_path / "own"
    (secret / "..data").mkdir(parents=True, mode=0o755)
    for path in (*made, tmp_path / "made" / "allowed"):
        (secret / "..data" / path.name).write_bytes(path.read_bytes())
        (secret / path.name).symlink_to(f"..data/{path.name}")
    job = documents("indexed-job", "train.py", "--nodes", 2, "-x", "a b")[-1]
    pod = job["spec"]["template"]["spec"]
    assert {"name": "keys", "secret": {"secretName": "gt-train-keys"}} in pod["volumes"]
    (container,) = pod["containers"]
    assert {"name": "keys", "mountPath": "/etc/gt-keys"} in container["volumeMounts"]
    command = [w.replace("/etc/gt-keys", str(secret)).replace("/tmp/gt-keys", str(own)) for w in container["command"]]
    (tmp_path / "gt").write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    (tmp_path / "gt").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert words[0] == "launch" and words[words.index("--keys") + 1] == str(own) and words[-4:] == ["--", "train.py", "-x", "a b"]
    assert read_keys(own / "worker.key", "worker").public == read_keys(made[-1], "worker").public


@pytest.mark.parametrize(("nodes", "words", "said"), [(2, [], "--keys"), (2, ["--insecure"], "--insecure"), (1, [], None)])
@pytest.mark.parametrize("form", ["slurm", "jobset", "indexed-job", "skypilot"])
def test_several_nodes_have_keys_unless_told_otherwise(form: str, nodes: int, words: list[str], said: str | None) -> None:
    text = printed(form, "train.py", "--nodes", nodes, *words)
    assert [flag for flag in ("--keys", "--insecure") if flag in text] == ([] if said is None else [said])
    assert ("gt keygen" in text) == (said == "--keys" and form in ("jobset", "indexed-job"))


def test_a_jobset_names_the_pod_that_leads() -> None:
    policy, made = documents("jobset", "train.py", "--nodes", 4, "--gpus", 8, "--name", "big")
    check(policy, POLICY)
    check(made, JOBSET)
    (replicated,) = made["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    line = container["command"]
    # <jobset>-<replicated job>-<job index>-<pod index>.<subdomain>
    assert line[line.index("--head") + 1] == f"big-{replicated['name']}-0-0.{made['spec']['network']['subdomain']}"
    assert replicated["template"]["spec"]["template"]["metadata"]["labels"] == policy["spec"]["podSelector"]["matchLabels"]
    assert len(made["metadata"]["name"]) + len("-node-0-0-xxxxx") <= 63


@pytest.mark.parametrize("form", ["jobset", "indexed-job"])
def test_kubernetes_retries_what_another_try_may_mend(form: str) -> None:
    made = documents(form, "train.py", "--nodes", 2)[-1]
    spec = made["spec"] if form == "indexed-job" else made["spec"]["replicatedJobs"][0]["template"]["spec"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    values = rule["onExitCodes"]["values"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["operator"] == "NotIn" and values == sorted(set(values))
    assert {ExitCode.SERVER_LOST, ExitCode.WORKER_LOST, ExitCode.NO_WORKERS} < set(values)
    assert not {ExitCode.ERROR, ExitCode.USAGE, 130} & set(values)


def test_a_skypilot_task() -> None:
    (made,) = documents(
        "skypilot", "train.py", "--nodes", 2, "--gpus", 4, "--accelerator", "A100-80GB", "--image", "me/gt:1", "a b"
    )
    check(made, SKYPILOT)
    assert made["num_nodes"] == 2 and made["resources"]["accelerators"] == "A100-80GB:4"
    assert shlex.split(made["run"])[-2:] == ["train.py", "a b"]


def test_an_sbatch_script() -> None:
    words = ("slurm", "train.py", "--nodes", 4, "--gpus", 8, "--time", "12:00:00", "--memory", "64Gi", "it's", "$HOME; rm")
    text = printed(*words)
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    directives = [line.removeprefix("#SBATCH --").partition("=") for line in lines if line.startswith("#SBATCH")]
    assert lines[1 : 1 + len(directives)] == [line for line in lines if line.startswith("#SBATCH")]  # before any command
    given = {name: value for name, _, value in directives}
    assert set(given) <= SBATCH
    assert (given["nodes"], given["ntasks-per-node"], given["gpus-per-node"], given["mem"], given["time"]) == (
        "4",
        "1",
        "8",
        "64G",
        "12:00:00",
    )
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    (srun,) = [line for line in lines if line.startswith("srun")]
    assert shlex.split(srun)[-3:] == ["train.py", "it's", "$HOME; rm"]


def test_the_sbatch_script_runs_and_asks_for_another_try(tmp_path: Any) -> None:
    for name, body in (("srun", 'echo "$@" >> srun.log; exit "$CODE"'), ("scontrol", 'echo "$@" >> scontrol.log')):
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    text = printed("slurm", "train.py", "--nodes", 2, "-x", "a b")
    for code, restarts, requeued in ((0, 0, 0), (1, 0, 0), (4, 0, 1), (4, 3, 0), (130, 0, 0), (137, 1, 1)):
        (tmp_path / "scontrol.log").unlink(missing_ok=True)
        variables = {
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "CODE": str(code),
            "SLURM_JOB_ID": "2077",
            "SLURM_RESTART_COUNT": str(restarts),
        }
        done = subprocess.run(["bash"], input=text, text=True, cwd=tmp_path, env=variables)
        assert done.returncode == code
        assert (tmp_path / "scontrol.log").exists() == bool(requeued)
    last = (tmp_path / "srun.log").read_text().splitlines()[-1]
    assert "--port 29677" in last and last.endswith("-- train.py -x a b")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ray", "train.py"], "Invalid value for"),
        (["slurm"], "give the script"),
        (["slurm", "train.py", "--name", "Has_Caps"], "--name"),
        (["jobset", "train.py", "--name", "x" * 43], "--name"),
        (["slurm", "train.py", "--time", "1h\n#SBATCH --uid=0"], "--time"),
        (["slurm", "train.py", "--memory", "lots"], "--memory"),
        (["slurm", "train.py", "--nodes", "0"], "--nodes"),
        (["slurm", "a\nrm -rf"], "line break"),
    ],
)  # fmt: skip
def test_what_cannot_be_put_into_a_manifest_is_said(words: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["manifest", *words])
    assert done.exit_code == 2 and said in done.output, done.output
