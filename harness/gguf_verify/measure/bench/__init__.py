"""Benchmarks: what the kernels cost on a GPU, and what a verification and an audit cost."""

from __future__ import annotations

import argparse

from ..measure import Measure
from . import audit, kernels, verify

_PARTS = (
    Measure("kernels", "the kernels on a GPU", kernels.__doc__ or "", kernels.add_arguments, kernels.run),
    Measure("verify", "a verification from end to end", verify.__doc__ or "", verify.add_arguments, verify.run),
    Measure("audit", "an audit", audit.__doc__ or "", audit.add_arguments, audit.run),
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="kernels|verify|audit")
    for part in _PARTS:
        part.add_to(commands)


MEASURE = Measure("bench", "what kernels, a verification and an audit cost", __doc__ or "", _add_arguments)
