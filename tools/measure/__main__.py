"""`python -m tools.measure MEASURE …`: measures the verifier itself, from a checkout of the project."""

from __future__ import annotations

import argparse
import os
import sys

# Measures start a process per core, so NumPy's BLAS gets one thread in each. BLAS reads this when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from gguf_verify import cli
from gguf_verify.cli.parser import Parser

from .measure import all_measures

_EPILOG = """\
exit codes: 0 measured · 1 an incorrect diagnosis, a false alarm, an input that breaks the parser, or an outdated page
2 usage · 3 this machine cannot run the measure
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with a subcommand for each measure."""
    parser: argparse.ArgumentParser = Parser(
        prog="python -m tools.measure",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_EPILOG,
        description="Measure the verifier itself.",
    )
    commands = parser.add_subparsers(dest="measure", required=True, metavar="MEASURE")
    for measure in all_measures():
        measure.add_to(commands)
    return parser


def run(argv: list[str]) -> int:
    """Run one measure and return the exit code. Raises HarnessError."""
    options = build_parser().parse_args(argv)
    return int(options.run(options))


def main(argv: list[str] | None = None) -> int:
    """Run one measure, with `gguf-verify`'s handling of errors and interrupts."""
    return cli.main(argv, run)


if __name__ == "__main__":
    sys.exit(main())
