"""`gguf-verify audit MODEL.gguf` and `scripts/audit_layout.py`: a file by itself, every byte of it."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

from ..llama.child import Child
from ..report.writer import Kind
from ..support.command_line import cores
from ..support.errors import EXIT_MISMATCH, EXIT_UNVERIFIED, EXIT_VERIFIED, UsageError
from .command import Command
from .common import (
    EXIT_CODES,
    MOST_THREADS,
    add_common,
    add_reports,
    asked_for,
    check_ranges,
    check_regex,
    deliver,
    form,
    internal_errors,
    on_terminal,
    spell,
)

# An audit multiplies no matrices, and idle threads of NumPy's BLAS spin for a while. It reads this when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_VERIFIED = "the file is clean"
_MISMATCH = "an error was found (with --strict: or a warning)"


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = argparse.ArgumentParser(
        prog="gguf-verify audit", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Audit a GGUF file: every byte belongs to one field, and every block decodes as in llama.cpp.",
        epilog=EXIT_CODES.format(verified=_VERIFIED, mismatch=_MISMATCH),
    )  # fmt: skip
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL.gguf", help="the file, or the first part of a split model")
    add("--map", action="store_true", help="show the byte map: every range of the file and its owner")
    add("--source", type=Path, metavar="FILE.gguf",
        help="also compare the file with what llama.cpp makes of this F16 or F32 file")  # fmt: skip
    add("--strict", action="store_true", help="count warnings as errors")
    add("--no-sha256", action="store_true", help="do not hash the file, which takes as long as the rest of the audit")
    add(
        "--no-readers", action="store_true", help="do not ask gguf-py and llama.cpp's reader what they make of the file"
    )
    add("-v", "--verbose", action="store_true", help="show statistics of every tensor, and llama.cpp's log on stderr")
    block = parser.add_argument_group("x-ray of one block")
    block.add_argument("--tensor", metavar="NAME",
        help="the block's tensor; without the options below: audit only the tensors whose name matches this regular "
        "expression")  # fmt: skip
    block.add_argument("--block", type=int, metavar="B", help="its number in the tensor, or in the row with --row")
    block.add_argument("--row", type=int, metavar="R", help="its row")
    block.add_argument("--offset", metavar="BYTE", help="instead: a byte of the file that it holds, decimal or 0x…")
    block.add_argument("--part", type=int, default=1, metavar="N",
        help="the part of a split model that --offset counts in (default: %(default)s)")  # fmt: skip
    add_reports(parser, Kind.AUDIT, Kind.XRAY)
    add_common(parser)
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify audit …`; returns the exit code. Raises HarnessError."""
    args = build_parser().parse_args(argv)
    with internal_errors(args.verbose):
        check_ranges(
            ("-t", args.threads, 0, MOST_THREADS), ("--time-limit", args.time_limit, 0.001, 10**6),
            ("--part", args.part, 1, 10**5),
        )  # fmt: skip
        if args.block is not None or args.row is not None or args.offset is not None:
            return _xray(args)
        check_regex(args.tensor)
        return _audit(args, argv)


def _inputs(args: argparse.Namespace) -> list[Path]:
    return [args.model, *([args.source] if args.source else [])]


def _audit(args: argparse.Namespace, argv: list[str]) -> int:
    files = asked_for(args, Kind.AUDIT, *_inputs(args))
    with contextlib.closing(Child(args.verbose)) as child:  # it starts while this process loads the rest
        from ..audit import AuditOptions, audit

        options = AuditOptions(
            tensor=args.tensor, source=args.source, readers=not args.no_readers, digest=not args.no_sha256,
            strict=args.strict, threads=args.threads or cores(), time_limit=args.time_limit, verbose=args.verbose,
            progress=on_terminal(),
        )  # fmt: skip
        result = audit(args.model, options, spell(argv), child)
        return deliver(Kind.AUDIT, result, result.exit_code, form(args.verbose, args.map), files)


def _xray(args: argparse.Namespace) -> int:
    import numpy as np

    from ..audit.xray import find_block, llama_values, parse_offset, xray
    from ..gguf import open_model
    from ..llama import Llama

    if args.map or args.source or args.strict:
        raise UsageError("--map, --source and --strict belong to a whole audit, not to the x-ray of one block")
    files = asked_for(args, Kind.XRAY, *_inputs(args))
    offset = None if args.offset is None else parse_offset(args.offset)
    with open_model(args.model) as model:
        tensor, row, block = find_block(
            model, args.tensor, row=args.row, block=args.block, offset=offset, part=args.part - 1
        )
        with Llama(args.time_limit, args.verbose) as llama:
            found = xray(tensor, row, block, llama_values(llama, tensor, row, block), asked=offset)
    exit_code = EXIT_VERIFIED
    if found.differs or not np.isfinite(found.ours or ()).all():
        exit_code = EXIT_MISMATCH
    elif found.ours is None:
        exit_code = EXIT_UNVERIFIED
    return deliver(Kind.XRAY, found, exit_code, form(), files)


COMMAND = Command("audit", "audit a file by itself: every byte owned, explained and judged", build_parser, run)
