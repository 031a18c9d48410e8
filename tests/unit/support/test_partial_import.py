"""Imports of a part of a package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gguf_verify.support.partial_import import submodule
from tests.support.tools import ROOT


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_rest_of_the_package_is_not_run() -> None:
    """A later ordinary import works as usual."""
    out = python(
        "import sys; from gguf_verify.support.partial_import import submodule\n"
        "part, other = submodule('gguf.constants'), submodule('gguf.quants')\n"
        "whole = [m for m in sys.modules if m.partition('.')[0] in ('gguf', 'yaml')]\n"
        "print(whole, submodule('gguf.constants') is part)\n"
        "assert other.GGMLQuantizationType is part.GGMLQuantizationType\n"
        "import gguf; print(gguf.constants.GGUF_MAGIC == part.GGUF_MAGIC, gguf.quants.Q4_0, gguf.GGUFReader.__name__)\n"
        "print(submodule('gguf.quants') is gguf.quants)\n"
    )
    assert out == "[] True\nTrue <class 'gguf.quants.Q4_0'> GGUFReader\nTrue\n"


def test_threads_may_import_at_once() -> None:
    out = python(
        "from concurrent.futures import ThreadPoolExecutor; from gguf_verify.support.partial_import import submodule\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    names = ['gguf.constants', 'gguf.quants', 'gguf.lazy', 'gguf.utility'] * 8\n"
        "    print({m.__name__ for m in pool.map(submodule, names)} == set(names))\n"
    )
    assert out == "True\n"


def test_a_missing_module_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        submodule("no_such_package.part")
    with pytest.raises(ModuleNotFoundError, match=r"gguf\.no_such_part"):
        submodule("gguf.no_such_part")
