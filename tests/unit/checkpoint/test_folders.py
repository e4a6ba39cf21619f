"""Folders of checkpoints: whole or not there, whatever the moment at which the writer is killed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gt.checkpoint import files, folders

ROOT = Path(__file__).resolve().parents[3]

# Saves step 2 over step 1, keeping one; dies by SIGKILL at the n-th call to the system that changes the disk, before or after it.
WRITER = """
import os, shutil, signal, sys
from pathlib import Path
import numpy as np
from gt.checkpoint import files, folders

ENTRY = files.Entry("x", "F32", (3,))

def write(folder, step, keep=1):
    with folders.written(folder, step) as partial:
        info = files.write_part(partial / "part-00000.safetensors", [ENTRY], iter([np.full(3, step, np.float32)]), lambda nbytes: None)
        files.write_index(partial / files.INDEX, files.Index(1, step, {"tensor": "x", "dtype": "float32"}, {}, {"part-00000.safetensors": info}))
    folders.prune(folder, step, keep)

def counted(module, name, state):
    real = getattr(module, name)
    def call(*args, **options):
        mode = args[1] if len(args) > 1 else ""
        if module is not builtins or "x" in str(mode):
            state["calls"].append(name)
            if len(state["calls"]) == state["die"][0] and state["die"][1] == "before":
                os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **options)
        if len(state["calls"]) == state["die"][0] and state["die"][1] == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(module, name, call)

import builtins
def child(folder, die):
    state = {"calls": [], "die": die}
    for module, name in ((os, "mkdir"), (os, "fsync"), (os, "rename"), (os, "unlink"), (os, "rmdir"), (builtins, "open")):
        counted(module, name, state)
    write(folder, 2)
    print(" ".join(state["calls"]), flush=True)
    os._exit(0)

root = Path(sys.argv[1])
total = 99
for n in range(0, total):
    for when in ("before", "after"):
        folder = root / f"{n}-{when}"
        write(folder, 1)
        pid = os.fork()
        if not pid:
            child(folder, (n, when))
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            assert status == 0, (n, when, status)
            if n:
                print("calls", n - 1)
                sys.exit()
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", WRITER, tmp_path], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    calls = done.stdout.split("\n")[0].split()
    assert {"mkdir", "open", "fsync", "rename", "unlink", "rmdir"} <= set(calls)
    renamed = calls.index("rename")
    assert calls[:renamed].count("fsync") == 3, "both files and their folder are synced before the folder gets its name"
    assert calls[renamed + 1] == "fsync" and calls.index("unlink") > renamed + 1, "and that is synced before an older one goes"
    left = set()
    for folder in tmp_path.iterdir():
        there = folders.whole(folder)
        assert there and set(there) <= {1, 2}
        for step, path in there.items():
            index = files.read_index(path)
            files.verify(path, index)
            assert index.step == step and files.Parts(path, index).read("x").tolist() == [step] * 3
        left.add((*there, len(listed(folder)) - len(there)))
        with folders.written(folder, 3):
            assert len(listed(folder)) == len(there) + 1, "the next writer removes what is left"
    assert {(1, 1), (1, 2, 0), (2, 1), (2, 0)} <= left, (
        "killed before the rename, behind it, while the older one went, and not at all"
    )


def listed(folder: Path) -> list[str]:
    """Give the names of what is in a folder, but for its lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != folders.LOCK)


def test_what_a_living_writer_holds_stays(tmp_path: Path) -> None:
    with folders.written(tmp_path, 5) as first:
        with folders.written(tmp_path, 6) as second, folders.written(tmp_path, 7):
            assert first.is_dir() and second.is_dir()
        assert list(folders.whole(tmp_path)) == [6, 7] and first.is_dir()
        first.with_name(first.name[:-8] + "01234567").mkdir()
    assert list(folders.whole(tmp_path)) == [5, 6, 7] and len(listed(tmp_path)) == 4
    with folders.written(tmp_path, 8):
        assert len(listed(tmp_path)) == 4, "with the writers gone, so is what nobody writes"


def test_who_sweeps_is_waited_for_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LOCK_S", 0.05)
    with (tmp_path / folders.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="another process holds"), folders.written(tmp_path, 1):
            pass
    with folders.written(tmp_path, 1):
        pass
    assert listed(tmp_path) == ["step-00000001"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), folders.written(tmp_path / "a" / "b", 5) as partial:
        (partial / "x").write_text("half")
        raise KeyboardInterrupt
    assert listed(tmp_path / "a" / "b") == []


def test_pruning_leaves_what_is_newer_and_what_is_not_gts(tmp_path: Path) -> None:
    for step in (1, 2, 10, 30):
        with folders.written(tmp_path, step):
            pass
    (tmp_path / "step-00000003.txt").touch()
    (tmp_path / ".step-mine").touch()
    with folders.written(tmp_path, 12):
        pass
    folders.prune(tmp_path, 12, keep=2)
    assert list(folders.whole(tmp_path)) == [10, 12, 30]
    assert set(listed(tmp_path)) == {"step-00000003.txt", ".step-mine", *(folders.name_of(s) for s in (10, 12, 30))}


def test_a_sweep_follows_no_links(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "x").touch()
    there = tmp_path / "there"
    there.mkdir()
    (there / ".step-00000001.partial-0123abcd").symlink_to(mine)
    with folders.written(there, 1):
        pass
    assert (mine / "x").exists()


def test_a_step_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    with folders.written(tmp_path, 1) as partial:
        (partial / "x").write_text("first")
    with pytest.raises(FileExistsError, match="another writer was faster"), folders.written(tmp_path, 1) as partial:
        (partial / "x").write_text("second")
    assert (tmp_path / "step-00000001" / "x").read_text() == "first"
    assert listed(tmp_path) == ["step-00000001"]
