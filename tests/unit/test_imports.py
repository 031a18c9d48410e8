"""What processes import that start often or should be small."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from gguf_verify.cli import verify
from gguf_verify.kernels import families
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.rungs import rungs_for
from tests.support.tools import ROOT

#: Each takes a megabyte or more.
LEFT_OUT = (
    "asyncio", "urllib.request", "numpy.random", "gguf_verify_nightly", "gguf_verify.audit.remote", "llama_cpp",
)  # fmt: skip


def test_help_needs_no_numpy() -> None:
    """Every command's module is imported for the list of commands; what a command runs is not."""
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


def test_an_audit_loads_only_what_it_uses() -> None:
    code = (
        "import json, sys; from gguf_verify.cli import audit; audit.build_parser(); import gguf_verify.audit.many\n"
        f"print(json.dumps([name for name in {LEFT_OUT} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(done.stdout) == []


#: The modules of this project that the process of a kernel in Python imports.
OF_A_KERNEL = {
    "hosts": {"memory"},
    "kernels": {"foreign"},
    "kernels.foreign": {
        "__main__", "api", "child", "faults", "frames", "operands", "python_kernel", "task_runner",
    },
    "support": {"errors", "numbers", "paths", "text"},
}  # fmt: skip
#: Modules that no package brings: those of Python's start.
OF_PYTHON = {"__main__", "__mp_main__", "_distutils_hack", "sitecustomize", "usercustomize"}


def test_a_kernels_process_imports_numpy_and_little_else() -> None:
    """It starts some thousand times in these tests, and is not trusted with more."""
    code = "import gguf_verify.kernels.foreign.__main__, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    modules = json.loads(done.stdout)
    allowed = {f"gguf_verify.{package}" for package in OF_A_KERNEL} | {
        f"gguf_verify.{package}.{name}" for package, names in OF_A_KERNEL.items() for name in names
    }
    assert {name for name in modules if name.startswith("gguf_verify.")} <= allowed
    others = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - OF_PYTHON
    assert others == {"gguf_verify", "numpy"}
