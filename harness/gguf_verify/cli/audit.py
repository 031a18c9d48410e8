"""`gguf-verify audit MODEL.gguf` and `scripts/audit_layout.py`: a file alone, every byte of it."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from pathlib import Path

from ..llama.child import Child
from ..support.errors import EXIT_MISMATCH, EXIT_UNVERIFIED, EXIT_VERIFIED, UsageError
from .common import (
    MOST_THREADS,
    add_common,
    check_output,
    check_ranges,
    cores,
    deliver,
    internal_errors,
    on_terminal,
    spell,
)

# An audit multiplies no matrices, and idle threads of NumPy's BLAS spin for a while. It reads this when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_EPILOG = """\
exit codes: 0 clean · 1 an error was found (with --strict: or a warning) · 2 usage · 3 the environment cannot (llama.cpp
died, no compiler) · 4 the file is malformed and was not read on · 5 not everything could be judged
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gguf-verify audit", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Audit a GGUF file: every byte owned by one field, every block decoded as llama.cpp decodes it.",
        epilog=_EPILOG,
    )  # fmt: skip
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL.gguf", help="the file, or the first part of a split one")
    add("--map", action="store_true", help="the byte map: every range of the file and its owner")
    add(
        "--source",
        type=Path,
        metavar="FILE.gguf",
        help="also compare with what llama.cpp makes of this F16 or F32 file",
    )
    add("--strict", action="store_true", help="warnings count as errors")
    add("--no-sha256", action="store_true", help="do not hash the file, which takes as long as the rest of the audit")
    add("--no-readers", action="store_true", help="leave out what gguf-py and llama.cpp's reader make of the file")
    add("-v", "--verbose", action="store_true", help="statistics of every tensor; llama.cpp's log on stderr")
    look = parser.add_argument_group("x-ray of one block")
    look.add_argument("--tensor", metavar="NAME", help="its tensor; without the options below: audit only the tensors "
                      "whose name matches this regular expression")  # fmt: skip
    look.add_argument(
        "--block", type=int, metavar="B", help="its number in the tensor, or in the row if --row is given"
    )
    look.add_argument("--row", type=int, metavar="R", help="its row")
    look.add_argument("--offset", metavar="BYTE", help="the byte of the file that it holds, decimal or 0x…")
    look.add_argument("--part", type=int, default=1, metavar="N", help="of a split model, which --offset counts in")
    add_common(parser)
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify audit …`; returns the exit code. Raises HarnessError."""
    args = _parser().parse_args(argv)
    with internal_errors(args.verbose):
        _check(args)
        looks = args.block is not None or args.row is not None or args.offset is not None
        return _xray(args) if looks else _audit(args, argv)


def _audit(args: argparse.Namespace, argv: list[str]) -> int:
    with contextlib.closing(Child(args.verbose)) as child:  # starts while this process loads the rest
        return _audit_with(child, args, argv)


def _audit_with(child: Child, args: argparse.Namespace, argv: list[str]) -> int:
    from ..audit import AuditOptions, audit
    from ..report import audit_text

    options = AuditOptions(
        tensor=args.tensor, source=args.source, readers=not args.no_readers, digest=not args.no_sha256,
        strict=args.strict, threads=args.threads or cores(), time_limit=args.time_limit, verbose=args.verbose,
        progress=on_terminal(),
    )  # fmt: skip
    result = audit(args.model, options, spell(argv), child)
    text = audit_text.render(result, args.verbose, args.map, _colour())
    rendered = None
    if args.json:
        from ..report import audit_json

        rendered = audit_json.render(result)
    return deliver(text, args.json, rendered, result.exit_code)


def _xray(args: argparse.Namespace) -> int:
    import numpy as np

    from ..audit.xray import find_block, llama_values, parse_offset, to_dict, xray
    from ..gguf import open_model
    from ..llama import Llama
    from ..report import audit_json, xray_text

    if args.map or args.source or args.strict:
        raise UsageError("--map, --source and --strict go with a whole audit, not with the x-ray of one block")
    offset = None if args.offset is None else parse_offset(args.offset)
    with open_model(args.model) as model:
        tensor, row, block = find_block(
            model, args.tensor, row=args.row, block=args.block, offset=offset, part=args.part - 1
        )
        with Llama(args.time_limit, args.verbose) as llama:
            found = xray(tensor, row, block, llama_values(llama, tensor, row, block), asked=offset)
    rendered = audit_json.render_xray(to_dict(found)) if args.json else None
    exit_code = EXIT_VERIFIED
    if found.differs or not np.isfinite(found.ours or ()).all():
        exit_code = EXIT_MISMATCH
    elif found.ours is None:
        exit_code = EXIT_UNVERIFIED
    return deliver(xray_text.render(found, _colour()), args.json, rendered, exit_code)


def _colour() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _check(args: argparse.Namespace) -> None:
    check_ranges(
        ("-t", args.threads, 0, MOST_THREADS), ("--time-limit", args.time_limit, 0.001, 10**6),
        ("--part", args.part, 1, 10**5),
    )  # fmt: skip
    check_output(args.json, args.model, *([args.source] if args.source else []))
    if args.tensor is not None and args.block is None and args.row is None and args.offset is None:
        try:
            re.compile(args.tensor)
        except re.error as error:
            raise UsageError(f"--tensor is not a regular expression: {error}") from None
