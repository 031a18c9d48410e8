"""Where the project's own files lie: in a checkout, and once installed."""

from __future__ import annotations

from pathlib import Path

#: The folder of this package.
PACKAGE = Path(__file__).resolve().parents[1]
#: The top of the checkout that the package lies in; meaningless once it is installed.
CHECKOUT = PACKAGE.parents[1]


def kernel_root() -> Path:
    """The folder of the kernels' sources: at the top of a checkout, inside the package once installed.

    Raises FileNotFoundError where an installation lacks them.
    """
    for root in (CHECKOUT / "kernels", PACKAGE / "_kernels"):
        if (root / "common.cuh").is_file():
            return root
    raise FileNotFoundError("the kernel sources are missing from this installation")


__all__ = ["CHECKOUT", "PACKAGE", "kernel_root"]
