"""Benchmarks: the time of kernels on a GPU, and the cost of a verification and of an audit."""

from __future__ import annotations

import argparse

from ..measure import Measure
from . import audit, experts, kernels, planted, verify

_PARTS = (
    Measure("kernels", "the kernels on a GPU", kernels.__doc__ or "", kernels.add_arguments, kernels.run),
    Measure("experts", "mixtures of experts on a GPU", experts.__doc__ or "", experts.add_arguments, experts.run),
    Measure("verify", "a verification from end to end", verify.__doc__ or "", verify.add_arguments, verify.run),
    Measure("planted", "how often a wrong code is found", planted.__doc__ or "", planted.add_arguments, planted.run),
    Measure("audit", "an audit", audit.__doc__ or "", audit.add_arguments, audit.run),
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="|".join(part.name for part in _PARTS))
    for part in _PARTS:
        part.add_to(commands)


MEASURE = Measure("bench", "what kernels, a verification and an audit cost", __doc__ or "", _add_arguments)
