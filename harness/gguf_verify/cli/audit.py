"""`gguf-verify audit MODEL.gguf` and `scripts/audit_layout.py`: check every byte of a file."""

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
    add_common,
    add_detail,
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
from .parser import Parser

# An audit multiplies no matrices, and idle threads of NumPy's BLAS spin. OpenBLAS reads this when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_VERIFIED = "no error found, and everything was checked"
_MISMATCH = "an error found (with --strict: or a warning)"


def build_parser() -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog="gguf-verify audit",
        description="Audit a GGUF: every byte must belong to one field, and every block must decode as in llama.cpp.",
        epilog=EXIT_CODES.format(verified=_VERIFIED, mismatch=_MISMATCH),
    )
    add = parser.add_argument
    add(
        "model",
        type=located,
        nargs="+",
        metavar="MODEL.gguf",
        help="files, first parts of split models, or folders to search for *.gguf; with several files the exit code "
        "is the worst one, in the order 4, 1, 3, 2, 5, 0. hf://OWNER/REPO/FILE, https://… and http://… are read over "
        "the network: the header, and a sample of the blocks",
    )
    add("--map", action="store_true", help="show the byte map: every range of the file and its owner")
    add(
        "--source",
        type=Path,
        metavar="FILE",
        help="the original model: also compare the file with llama.cpp's quantization of it; a GGUF in F32, F16 or "
        "BF16, a safetensors file, or a folder of them",
    )
    add(
        "--imatrix",
        type=Path,
        metavar="FILE",
        help="the importance matrix (.gguf or .dat) that the file was quantized with; needs --source",
    )
    add(
        "--waivers",
        type=Path,
        metavar="FILE.toml",
        help="known findings, each with a reason and an end date; they do not count until that date",
    )
    add("--strict", action="store_true", help="count warnings as errors")
    add("--no-sha256", action="store_true", help="do not hash the file; hashing takes as long as the rest of the audit")
    add("--no-readers", action="store_true", help="do not compare with the readers of gguf-py and llama.cpp")
    add(
        "--no-llama",
        action="store_true",
        help="run without llama.cpp, which need not be installed: blocks are decoded but not compared",
    )
    add(
        "-s",
        "--seed",
        type=int,
        metavar="N",
        help="seed of the sample of a remote file (default: a new one for each audit)",
    )
    add(
        "--allow-redirects",
        action="append",
        default=[],
        metavar="HOST",
        help="also follow redirects of a remote file's server to this host; may be repeated (default: only redirects "
        "within one server, and from the Hugging Face hub to its file servers)",
    )
    add_ray(parser, "scan tensors and compare them with --source")
    add_detail(parser, "each finding by itself", "statistics of every tensor, and llama.cpp's log")
    block = parser.add_argument_group("x-ray of one block")
    block.add_argument(
        "--tensor",
        metavar="NAME",
        help="the block's tensor; without the options below, a regular expression: audit only tensors whose name "
        "matches",
    )
    block.add_argument(
        "--block", type=int, metavar="B", help="the block's index in the tensor, or in the row with --row"
    )
    block.add_argument("--row", type=int, metavar="R", help="the block's row")
    block.add_argument("--offset", metavar="BYTE", help="select the block by a byte offset in the file, decimal or 0x…")
    block.add_argument(
        "--part",
        type=int,
        default=1,
        metavar="N",
        help="the part of a split model that --offset refers to (default: %(default)s)",
    )
    add_reports(parser, Kind.AUDIT, Kind.AUDITS, Kind.XRAY)
    add_common(parser)
    parser.show_first("model", "--map", "--source", "--imatrix", "--waivers", "--strict", "--no-llama", "-v")
    parser.show_first("--tensor", "--block", "--row", "--offset")
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify audit …`; returns the exit code. Raises HarnessError."""
    args = build_parser().parse_args(argv)
    with internal_errors(args.detail > 0):
        check_ranges(
            ("-t", args.threads, 0, MOST_THREADS),
            ("--time-limit", args.time_limit, 0.001, 10**6),
            ("--part", args.part, 1, 10**5),
        )
        if args.block is not None or args.row is not None or args.offset is not None:
            return _xray(args)
        check_regex(args.tensor)
        return _audit(args, argv)


def _spelled(argv: list[str]) -> str:
    """Return the command line as `spell` does, without the secrets that an address may hold."""
    return spell([text if Address.of(text) is None else str(Address(text)) for text in argv])


def _audit(args: argparse.Namespace, argv: list[str]) -> int:
    if args.imatrix and not args.source:
        raise UsageError("--imatrix needs --source: it is the matrix that --source was quantized with")
    if args.no_llama and args.source:
        raise UsageError("--source needs llama.cpp, and --no-llama turns it off")
    remote = any(isinstance(model, Address) for model in args.model)
    if remote and args.ray is not None:
        raise UsageError(
            "--ray reads files of this machine in several processes; a remote file is only sampled: remove --ray"
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
        contextlib.closing(Child(args.detail > 1, llama)) as child,
    ):  # the child starts while this process still imports the rest
        from ..audit.audit import audit
        from ..audit.many import Audits, audit_each, gguf_files
        from ..audit.record import AuditOptions

        options = AuditOptions(
            tensor=args.tensor,
            source=args.source,
            imatrix=args.imatrix,
            llama=not args.no_llama,
            readers=not args.no_readers,
            digest=not args.no_sha256,
            strict=args.strict,
            threads=args.threads or cores(),
            time_limit=args.time_limit,
            verbose=args.detail > 1,
            progress=on_terminal() and args.detail >= 0,
            waivers=args.waivers,
            sandbox=args.sandbox,
            seed=seed,
            redirects=tuple(args.allow_redirects),
        )
        elsewhere = None
        if args.ray is not None:
            from ..distributed.audits import examiners

            elsewhere = examiners(args.ray, options)
        shown = form(args, args.map)
        if one:
            result = audit(args.model[0], options, command, child, elsewhere)
            return deliver(kind, result, result.exit_code, shown, files)
        child.close()  # each audit starts its own
        start = time.perf_counter()
        done = audit_each(gguf_files(args.model), lambda path: audit(path, options, elsewhere=elsewhere))
        results = Audits(done, time.perf_counter() - start, command)
        return deliver(kind, results, results.exit_code, shown, files)


@contextlib.contextmanager
def _ray(address: str | None) -> Iterator[None]:
    """Connect to Ray inside this block if an address is given. Raises EnvironmentFault."""
    if address is None:
        yield
        return
    from ..distributed.judges import ray_at  # slow to import, and most audits do not need it

    with ray_at(address):
        yield


def _xray(args: argparse.Namespace) -> int:
    import numpy as np

    from ..audit.places import find_block, parse_offset
    from ..audit.xray import llama_values, xray
    from ..gguf.model import open_model
    from ..llama.library import Llama

    if args.map or args.source or args.strict or args.waivers or args.ray is not None:
        raise UsageError(
            "--map, --source, --strict, --waivers and --ray apply to a whole audit, not to the x-ray of one block"
        )
    if len(args.model) > 1:
        raise UsageError("the x-ray of one block takes one file")
    if isinstance(args.model[0], Address):
        raise UsageError("the x-ray of one block needs a local file: download it first")
    files = asked_for(args, Kind.XRAY)
    offset = None if args.offset is None else parse_offset(args.offset)
    with open_model(args.model[0]) as model:
        tensor, row, block = find_block(
            model, args.tensor, row=args.row, block=args.block, offset=offset, part=args.part - 1
        )
        theirs = None
        if not args.no_llama:
            with sandboxed(args.sandbox), Llama(args.time_limit, args.detail > 1) as llama:
                theirs = llama_values(llama, tensor, row, block)
        found = xray(tensor, row, block, theirs, asked=offset)
    exit_code = EXIT_VERIFIED
    if found.differs or not np.isfinite(found.ours or ()).all():
        exit_code = EXIT_MISMATCH
    elif found.ours is None:
        exit_code = EXIT_UNVERIFIED
    return deliver(Kind.XRAY, found, exit_code, form(args), files)


COMMAND = Command("audit", "check a file: every byte, every block, every field", build_parser, run)
