"""Imports of processes that start often or should be small."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.machinery import PathFinder

import pytest

from gguf_verify.cli import verify
from gguf_verify.kernels import families
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.rungs.registry import rungs_for
from tests.support.tools import ROOT

#: Each takes a megabyte or more, or some milliseconds.
LEFT_OUT = (
    "asyncio", "urllib.request", "numpy.random", "gguf_verify_nightly", "gguf_verify.audit.remote", "llama_cpp",
    "gguf_verify.audit.source", "importlib.metadata",
)  # fmt: skip
#: Modules for a wrong output, for kernels of one's own, and for a GPU.
NOT_OF_A_PLAIN_RUN = (
    "gguf_verify.diagnosis.faults", "gguf_verify.kernels.foreign.opening", "gguf_verify.hosts.cupy_host",
    "gguf_verify.audit.remote", "gguf_verify.audit.source", "rich", "llama_cpp", "importlib.metadata",
)  # fmt: skip


def test_help_needs_no_numpy() -> None:
    """Every command's module is imported for the list of commands; its implementation is not."""
    code = (
        "import json, sys; from gguf_verify.cli.command import find; from gguf_verify.cli.command import commands\n"
        "find('verify').parser().format_help()\n"
        "print(json.dumps([len(commands()), *(n for n in ('numpy', 'rich', 'logging.handlers') if n in sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    (n, *heavy) = json.loads(done.stdout)
    assert n >= 13
    assert heavy == []


def test_names_in_the_help_are_those_of_the_registries() -> None:
    assert rungs_for() == verify.RUNGS
    assert {*families.FAMILIES, *KERNELS} <= set(re.findall(r"\w+", verify.build_parser().format_help()))


@pytest.mark.parametrize(
    ("loads", "unused"),
    [
        ("import gguf_verify.cli.runs.verify", NOT_OF_A_PLAIN_RUN),
        ("from gguf_verify.cli import audit; audit.build_parser(); import gguf_verify.audit.audit, "
         "gguf_verify.audit.many", LEFT_OUT),
    ],
    ids=["verify", "audit"],
)  # fmt: skip
def test_a_command_loads_only_what_it_uses(loads: str, unused: tuple[str, ...]) -> None:
    code = f"import json, sys; {loads}\nprint(json.dumps([name for name in {unused} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(done.stdout) == []


# ---- blas ------------------------------------------------------------------------------------------------------------
# The command line multiplies by one thread of NumPy's library, and its children by as many as they like.


SCRIPT = """
import os, sys
from gguf_verify.cli import main
main(["no-such.gguf", "--host", "cpu"])
import numpy as np
a = np.ones((600, 600))
a @ a
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.parametrize(("asked", "threads"), [(None, 1), ("3", 3)])
def test_threads_of_blas(asked: str | None, threads: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    if asked is not None:
        environment["OPENBLAS_NUM_THREADS"] = asked
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    found, told = done.stdout.split()[-2:]
    assert (int(found), told) == (min(threads, max(1, os.cpu_count() or 1)), str(asked))


def test_tools_is_the_package_of_the_checkout() -> None:
    """Kernels of tests put tests/support on the path, which holds a module of this name."""
    found = PathFinder.find_spec("tools", [str(ROOT), str(ROOT / "tests" / "support")])
    assert found is not None
    assert found.origin == str(ROOT / "tools" / "__init__.py")
