"""Which node this is, from the variables that each launcher sets, and what is said where they contradict or lack."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt.runtime.launchers import Asked, LauncherError, Place, detect, hosts_of

NOTHING = Asked()
SLURM = {
    "SLURM_JOB_ID": "77", "SLURM_NNODES": "4", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_NODELIST": "gpu[01-03],big7",
    "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NODELIST": "gpu[01-03],big7", "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NODEID": "2", "SLURM_PROCID": "2", "SLURM_LOCALID": "0",
}  # fmt: skip
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "abc", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2",
    "RANK": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.5", "MASTER_PORT": "29500",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}  # fmt: skip
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.1.0.1\n10.1.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "8",
    "SKYPILOT_TASK_ID": "sky-2026-11-29_train-0",
}  # fmt: skip
KUBERNETES = {"JOB_COMPLETION_INDEX": "3"}


def place(variables: dict[str, str], asked: Asked = NOTHING, host: str = "box") -> Place:
    return detect({"PATH": "/bin", **variables}, asked, host)


@pytest.mark.parametrize(
    ("variables", "asked", "host", "found"),
    [
        (SLURM, NOTHING, "gpu03", Place("slurm", 4, 2, "gpu01", "slurm 77.0")),
        (TORCHRUN, NOTHING, "x", Place("torchrun", 2, 1, "10.0.0.5", "torchrun abc")),
        (OPEN_MPI, NOTHING, "x", Place("openmpi", 3, 1, "10.96.0.1", "mpirun")),
        (OPEN_MPI, Asked(head="lead"), "x", Place("openmpi", 3, 1, "lead", "mpirun")),
        (SKYPILOT, NOTHING, "x", Place("skypilot", 2, 1, "10.1.0.1", "skypilot sky-2026-11-29_train-0")),
        (KUBERNETES, Asked(num_nodes=4), "train-3.net.default.svc", Place("kubernetes", 4, 3, "train-0.net.default.svc", "kubernetes train")),
        (KUBERNETES, Asked(num_nodes=4, head="train-0.net"), "train-3", Place("kubernetes", 4, 3, "train-0.net", "kubernetes train")),
        (KUBERNETES, Asked(num_nodes=4, head="h"), "odd", Place("kubernetes", 4, 3, "h", "kubernetes")),
        ({}, NOTHING, "box", Place("flags", 1, 0, "", "")),
        ({}, Asked(2, 1, "10.0.0.1"), "box", Place("flags", 2, 1, "10.0.0.1", "")),
        ({**SLURM, **TORCHRUN}, NOTHING, "x", Place("torchrun", 2, 1, "10.0.0.5", "torchrun abc")),  # torchrun started by srun
        ({**SLURM, **TORCHRUN}, Asked(launcher="slurm"), "x", Place("slurm", 4, 2, "gpu01", "slurm 77.0")),
        ({**SKYPILOT, **KUBERNETES}, NOTHING, "x", Place("skypilot", 2, 1, "10.1.0.1", "skypilot sky-2026-11-29_train-0")),
        (SLURM, Asked(num_nodes=2, node=0, head="h", launcher="none"), "x", Place("flags", 2, 0, "h", "")),
    ],
)  # fmt: skip
def test_what_each_launcher_says(variables: dict[str, str], asked: Asked, host: str, found: Place) -> None:
    assert place(variables, asked, host) == found


def test_a_job_step_on_some_of_the_nodes_counts_its_own() -> None:
    step = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[02-03]", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "1"}
    assert place({**SLURM, **step}) == Place("slurm", 2, 1, "gpu02", "slurm 77.0")


def test_one_node_of_slurm_without_srun_is_enough() -> None:
    batch = {"SLURM_JOB_ID": "5", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "gpu01", "SLURM_NODEID": "0"}
    assert place(batch) == Place("slurm", 1, 0, "", "slurm 5")


@pytest.mark.parametrize(
    ("variables", "asked", "words"),
    [
        ({k: v for k, v in SLURM.items() if "STEP" not in k}, NOTHING, "srun --ntasks-per-node=1 gt launch"),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "32"}, NOTHING, "starts 8 processes on a node.*--ntasks-per-node=1"),
        ({**SLURM, "SLURM_STEP_NODELIST": "gpu[01-02]"}, NOTHING, "SLURM_STEP_NUM_NODES=4.*names 2 nodes"),
        ({k: v for k, v in SLURM.items() if k != "SLURM_NODEID"}, NOTHING, "SLURM_NODEID is not set"),
        ({k: v for k, v in SLURM.items() if "NODELIST" not in k}, NOTHING, "SLURM_STEP_NODELIST is not set"),
        ({**SLURM, "SLURM_NODEID": "4"}, NOTHING, "node 4 of 4: nodes count from 0"),
        ({**SLURM, "SLURM_NODEID": "two"}, NOTHING, "SLURM_NODEID='two' is not a number"),
        (SLURM, Asked(num_nodes=2), "--nnodes 2 contradicts SLURM_STEP_NUM_NODES, which says 4"),
        (SLURM, Asked(node=1), "--node-rank 1 contradicts slurm, which says 2"),
        ({**TORCHRUN, "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, NOTHING, "--nproc-per-node=1"),
        ({**TORCHRUN, "WORLD_SIZE": "3"}, NOTHING, "WORLD_SIZE=3 is not GROUP_WORLD_SIZE=2 times LOCAL_WORLD_SIZE=1"),
        ({k: v for k, v in TORCHRUN.items() if k != "GROUP_RANK"}, NOTHING, "GROUP_RANK is not set"),
        ({k: v for k, v in TORCHRUN.items() if k != "MASTER_ADDR"}, NOTHING, "give --head HOST"),
        ({k: v for k, v in OPEN_MPI.items() if "uri" not in k}, NOTHING, "openmpi does not say where node 0 is: give --head"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, NOTHING, "--map-by ppr:1:node"),
        ({**SKYPILOT, "SKYPILOT_NODE_IPS": ""}, NOTHING, "SKYPILOT_NODE_IPS names no node"),
        ({**SKYPILOT, "SKYPILOT_NUM_NODES": "3"}, NOTHING, "SKYPILOT_NUM_NODES=3, but SKYPILOT_NODE_IPS names 2"),
        (KUBERNETES, NOTHING, "kubernetes does not say how many nodes there are: give --nnodes"),
        (KUBERNETES, Asked(num_nodes=3, head="h"), "node 3 of 3"),
        (KUBERNETES, Asked(num_nodes=4), "give --head"),
        ({}, Asked(num_nodes=2), "needs --node-rank and --head"),
        ({}, Asked(num_nodes=2, node=1), "needs --head"),
        ({}, Asked(node=1), "--node-rank 1 of one node: give --nnodes"),
        ({}, Asked(num_nodes=2, node=2, head="h"), "node 2 of 2"),
        ({}, Asked(launcher="slurm"), "none of its variables is set here"),
        ({}, Asked(launcher="ray"), "expected one of none, torchrun"),
    ],
)  # fmt: skip
def test_contradictions_and_gaps_say_what_to_do(variables: dict[str, str], asked: Asked, words: str) -> None:
    with pytest.raises(LauncherError) as caught:
        place(variables, asked, "odd")
    assert re.search(words, str(caught.value)), caught.value


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ["a"]),
        ("a,b-2.site", ["a", "b-2.site"]),
        ("gpu[01-03,7],login2", ["gpu01", "gpu02", "gpu03", "gpu7", "login2"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("n[9-11]-ib", ["n9-ib", "n10-ib", "n11-ib"]),
    ],
)
def test_lists_of_slurm_hosts(text: str, hosts: list[str]) -> None:
    assert hosts_of(text) == hosts


@pytest.mark.parametrize("text", ["gpu[", "gpu[3-1]", "gpu[1-9999999]", "gpu[a]", ",,", "a b", "gpu[]"])
def test_what_is_no_list_of_hosts_is_said(text: str) -> None:
    with pytest.raises(LauncherError, match="not a list of nodes"):
        hosts_of(text)


@given(st.dictionaries(st.sampled_from(sorted({*SLURM, *TORCHRUN, *OPEN_MPI, *SKYPILOT, *KUBERNETES})), st.text(max_size=12)))
def test_whatever_is_in_the_environment_gives_a_place_or_an_error(variables: dict[str, str]) -> None:
    try:
        found = place(variables)
    except LauncherError:
        return
    assert 0 <= found.node < found.num_nodes
