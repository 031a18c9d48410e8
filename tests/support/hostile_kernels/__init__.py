"""Kernels that attack the verifier. Each module is a kind of attack, each function with `@attack` one attack, and each
`.cu` file is one that the CPU runs natively.

Every attack is bounded and aimed at what the test made: `targets.json` beside the kernel names it. No attack touches a
process that is neither of the run nor the test's bystander. The modules use the standard library alone, and do nothing
when they are imported.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from ._attack import ATTACKS, Attack

HERE = Path(__file__).parent


def attacks() -> dict[str, Attack]:
    """Every attack in Python by its name."""
    for path in sorted(HERE.glob("[a-z]*.py")):
        importlib.import_module(f"{__name__}.{path.stem}")
    return ATTACKS


def sources() -> dict[str, Path]:
    """Every attack in CUDA C++ by its name."""
    found = {path.stem: path for path in sorted(HERE.glob("*.cu"))}
    return {name: path for name, path in found.items() if "// [attack]" in path.read_text()}
