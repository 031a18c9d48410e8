"""`gguf-verify audit MODEL.gguf` and `scripts/audit_layout.py`: a file by itself, every byte of it."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ..llama.child import Child
from ..llama.installed import why_missing
from ..processes.sandbox import sandboxed
from ..report.writer import Kind
from ..support.address import Address, located
from ..support.command_line import cores
from ..support.errors import EXIT_MISMATCH, EXIT_UNVERIFIED, EXIT_VERIFIED, UsageError
from ..support.seeds import fresh_seed
from .command import Command
from .common import (
    EXIT_CODES,
    MOST_THREADS,
    Parser,
    add_common,
    add_ray,
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

_VERIFIED = "no error was found, and everything was checked"
_MISMATCH = "an error was found (with --strict: or a warning)"


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = Parser(
        prog="gguf-verify audit", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Audit a GGUF file: every byte belongs to one field, and every block decodes as in llama.cpp.",
        epilog=EXIT_CODES.format(verified=_VERIFIED, mismatch=_MISMATCH),
    )  # fmt: skip
    add = parser.add_argument
    add("model", type=located, nargs="+", metavar="MODEL.gguf",
        help="files, first parts of split models, or folders that are searched for *.gguf; of several files the exit "
        "code is the worst: 4, 1, 3, 2, 5, 0. Of hf://OWNER/REPO/FILE, https://… and http://… the header is read, and "
        "a sample of the blocks")  # fmt: skip
    add("--map", action="store_true", help="show the byte map: every range of the file and its owner")
    add("--source", type=Path, metavar="FILE",
        help="also compare the file with what llama.cpp makes of this one: a GGUF in F32, F16 or BF16, a safetensors "
        "file, or a folder of them")  # fmt: skip
    add("--imatrix", type=Path, metavar="FILE",
        help="the importance matrix that the file was quantized with, .gguf or .dat, for --source")  # fmt: skip
    add("--waivers", type=Path, metavar="FILE.toml",
        help="known findings, each with a reason and an end date, which do not count until then")  # fmt: skip
    add("--strict", action="store_true", help="count warnings as errors")
    add("--no-sha256", action="store_true", help="do not hash the file, which takes as long as the rest of the audit")
    add(
        "--no-readers", action="store_true", help="do not ask gguf-py and llama.cpp's reader what they make of the file"
    )
    add(
        "--no-llama",
        action="store_true",
        help="do without llama.cpp, which then need not be installed: blocks are decoded, but compared with nothing",
    )
    add("-s", "--seed", type=int, metavar="N",
        help="of the sample of a remote file (default: a new random seed for each audit)")  # fmt: skip
    add("--allow-redirects", action="append", default=[], metavar="HOST",
        help="follow redirects of a remote file's server to this host, too; may be repeated (default: to the server "
        "itself, and from the Hugging Face hub to its servers of files)")  # fmt: skip
    add_ray(parser, "scan tensors, and compare them with --source,")
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
    add_reports(parser, Kind.AUDIT, Kind.AUDITS, Kind.XRAY)
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


def _spelled(argv: list[str]) -> str:
    """The command line as `spell` has it, without the secrets that an address may hold."""
    return spell([text if Address.of(text) is None else str(Address(text)) for text in argv])


def _audit(args: argparse.Namespace, argv: list[str]) -> int:
    if args.imatrix and not args.source:
        raise UsageError("--imatrix says how --source was quantized: give both")
    if args.no_llama and args.source:
        raise UsageError("--source compares with what llama.cpp makes of it, and --no-llama does without")
    remote = any(isinstance(model, Address) for model in args.model)
    if remote and args.ray is not None:
        raise UsageError(
            "--ray has files of this machine read in several processes; of a remote one a sample is read: leave it out"
        )
    one = len(args.model) == 1 and (remote or not args.model[0].is_dir())
    kind = Kind.AUDIT if one else Kind.AUDITS
    files = asked_for(args, kind)
    seed = fresh_seed() if args.seed is None else args.seed
    command = _spelled([*argv, "--seed", str(seed)] if remote and args.seed is None else argv)
    llama = not args.no_llama and why_missing() is None
    with (
        sandboxed(args.sandbox),
        _ray(args.ray),
        contextlib.closing(Child(args.verbose, llama)) as child,
    ):  # it starts while this process loads the rest
        from ..audit import AuditOptions, audit
        from ..audit.many import Audits, audit_each, gguf_files

        options = AuditOptions(
            tensor=args.tensor, source=args.source, imatrix=args.imatrix, llama=not args.no_llama,
            readers=not args.no_readers, digest=not args.no_sha256, strict=args.strict,
            threads=args.threads or cores(), time_limit=args.time_limit, verbose=args.verbose, progress=on_terminal(),
            waivers=args.waivers, sandbox=args.sandbox, seed=seed,
            redirects=tuple(args.allow_redirects),
        )  # fmt: skip
        elsewhere = None
        if args.ray is not None:
            from ..distributed.audits import examiners

            elsewhere = examiners(args.ray, options)
        shown = form(args.verbose, args.map)
        if one:
            result = audit(args.model[0], options, command, child, elsewhere)
            return deliver(kind, result, result.exit_code, shown, files)
        child.close()  # each audit has its own
        start = time.perf_counter()
        done = audit_each(gguf_files(args.model), lambda path: audit(path, options, elsewhere=elsewhere))
        results = Audits(done, time.perf_counter() - start, command)
        return deliver(kind, results, results.exit_code, shown, files)


@contextlib.contextmanager
def _ray(address: str | None) -> Iterator[None]:
    """In this block Ray is connected, where it was asked for. Raises EnvironmentFault."""
    if address is None:
        yield
        return
    from ..distributed import ray_at  # it loads what else an audit need not wait for

    with ray_at(address):
        yield


def _xray(args: argparse.Namespace) -> int:
    import numpy as np

    from ..audit.places import find_block, parse_offset
    from ..audit.xray import llama_values, xray
    from ..gguf.model import open_model
    from ..llama import Llama

    if args.map or args.source or args.strict or args.waivers or args.ray is not None:
        raise UsageError(
            "--map, --source, --strict, --waivers and --ray belong to a whole audit, not to one block's x-ray"
        )
    if len(args.model) > 1:
        raise UsageError("the x-ray of one block is one of one file")
    if isinstance(args.model[0], Address):
        raise UsageError("the x-ray of one block reads a file of this machine: download it first")
    files = asked_for(args, Kind.XRAY)
    offset = None if args.offset is None else parse_offset(args.offset)
    with open_model(args.model[0]) as model:
        tensor, row, block = find_block(
            model, args.tensor, row=args.row, block=args.block, offset=offset, part=args.part - 1
        )
        theirs = None
        if not args.no_llama:
            with sandboxed(args.sandbox), Llama(args.time_limit, args.verbose) as llama:
                theirs = llama_values(llama, tensor, row, block)
        found = xray(tensor, row, block, theirs, asked=offset)
    exit_code = EXIT_VERIFIED
    if found.differs or not np.isfinite(found.ours or ()).all():
        exit_code = EXIT_MISMATCH
    elif found.ours is None:
        exit_code = EXIT_UNVERIFIED
    return deliver(Kind.XRAY, found, exit_code, form(), files)


COMMAND = Command("audit", "audit a file by itself: every byte owned, explained and judged", build_parser, run)
