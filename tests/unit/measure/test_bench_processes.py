"""What a command uses: memory, cores and GPUs, with its children."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.measure.bench import processes
from tools.measure.bench.processes import Gpus, measured, visible_gpus

#: Spends a fifth of a second of a core, takes 64 MiB, says so, and waits.
CHILD = """
import sys, time
held = bytearray(b"x") * (1 << 26)
while time.process_time() < 0.2: pass
print("ready", flush=True)
sys.stdin.read()
"""
#: As `CHILD`, in a child of its own.
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


@pytest.mark.parametrize("program", [CHILD, PARENT])
def test_resources_of_a_process_tree(program: str) -> None:
    seen = processes._Seen()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:  # fmt: skip
        assert child.stdout.readline() == "ready\n"
        seen.look(child.pid)
        child.stdin.close()
    assert seen.peaks[0] >= seen.peaks[1] >= 1 << 26
    assert sum(seen.processor.values()) >= 0.15
    assert len(seen.processor) == (2 if program is PARENT else 1)


def test_memory_without_a_proportional_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda self: False)
    monkeypatch.setattr(Path, "read_text", lambda self: "900 70 30 1 0 50 0\n")
    assert processes.memory(1) == (70 * processes._PAGE, 40 * processes._PAGE)


def test_a_measured_command() -> None:
    done = measured(
        [sys.executable, "-c", "import os, sys; sys.exit(int(os.environ['CODE']))"], variables={"CODE": "7"}
    )
    assert done.code == 7
    assert done.seconds > 0
    assert done.gpu is None
    assert done.disk is None  # of no file
    unwatched = measured([sys.executable, "-c", ""], watched=False)
    assert (unwatched.peak, unwatched.processor) == (0, None)


def test_the_disk_of_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    assert processes.device_seconds(tmp_path) is None or processes.device_seconds(tmp_path) >= 0
    lines = "\n".join([
        " 7 0 loop0 1 0 0 0 0 0 0 0 111 0",
        f" {number >> 8 & 0xFFF} {number & 0xFF} sda 1 0 0 0 0 0 0 0 0 2500 0",
    ])  # fmt: skip
    monkeypatch.setattr(Path, "read_text", lambda self: lines)
    monkeypatch.setattr("os.major", lambda n: n >> 8 & 0xFFF)
    monkeypatch.setattr("os.minor", lambda n: n & 0xFF)
    assert processes.device_seconds(tmp_path) == 2.5


def program(folder: Path, text: str) -> None:
    """A `nvidia-smi` in a folder."""
    folder.joinpath("nvidia-smi").write_text(f"#!/bin/sh\n{text}\n")
    folder.joinpath("nvidia-smi").chmod(0o755)


def test_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Means over samples and GPUs; the largest memory of each; what is not known counts for nothing."""
    said = "GPU-a, 50, 100\\nGPU-b, 0, 10\\nGPU-a, [N/A], 7\\nGPU-a, 100, 300\\nGPU-b, 50, 5\\n"
    program(tmp_path, f'echo "$@" > {tmp_path}/arguments; printf "{said}"; exec sleep 600')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    gpus = Gpus(["0", "GPU-b"])
    assert (gpus.busy, gpus.memory) == (None, None)
    with gpus.watched():
        while len(gpus._busy) < 4:
            time.sleep(0.01)
    assert gpus.busy == 0.5
    assert gpus.memory == 310 << 20
    assert "-i 0,GPU-b --query-gpu=" in (tmp_path / "arguments").read_text()


def test_visible_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path, "printf '0\\n1\\n'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-x")
    assert visible_gpus() == ["3", "GPU-x"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    program(tmp_path, "exit 9")
    assert visible_gpus() == []
    (tmp_path / "nvidia-smi").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == []
    with Gpus(["0"]).watched():
        pass
