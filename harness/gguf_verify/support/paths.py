"""Locations of the project's own files, in a checkout and in an installation."""

from __future__ import annotations

from pathlib import Path

#: The folder of this package.
PACKAGE = Path(__file__).resolve().parents[1]
#: The top of the checkout that holds the package; meaningless in an installation.
CHECKOUT = PACKAGE.parents[1]


def kernel_root() -> Path:
    """Return the folder of the kernel sources: at the top of a checkout, inside the package in an installation.

    Raises FileNotFoundError if an installation lacks them.
    """
    for root in (CHECKOUT / "kernels", PACKAGE / "_kernels"):
        if (root / "common.cuh").is_file():
            return root
    raise FileNotFoundError("the kernel sources are missing from this installation")
