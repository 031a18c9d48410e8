"""`gguf-verify measure mutation|naming|alarms|claims|bench|fuzz …`: measure the verifier's quality and cost."""

from __future__ import annotations

import argparse
import os

# The measures use several processes with one thread each. OpenBLAS reads this when NumPy loads it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from ..measure.measure import all_measures, need_checkout
from .command import Command
from .common import Parser

_EPILOG = """\
exit codes: 0 measured · 1 a wrong name, a missed place, a false alarm, an input that breaks the parser, or a page that
is out of date · 2 usage · 3 this machine cannot run the measure
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command and its measures."""
    made: argparse.ArgumentParser = Parser(
        prog="gguf-verify measure",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_EPILOG,
        description="Measure the verifier itself. Measures need a checkout of the project.",
    )
    commands = made.add_subparsers(dest="measure", required=True, metavar="MEASURE")
    for measure in all_measures():
        measure.add_to(commands)
    return made


def run(argv: list[str]) -> int:
    """`gguf-verify measure …`; returns the exit code. Raises HarnessError."""
    options = build_parser().parse_args(argv)
    need_checkout()
    return int(options.run(options))


COMMAND = Command("measure", "measure the verifier itself; needs a checkout of the project", build_parser, run)
