"""`gguf-verify judge --tensor T --x x.npy --y y.npy MODEL.gguf`: judge a product that any engine has computed."""

from __future__ import annotations

import re
from pathlib import Path

from ..processes.sandbox import sandboxed
from ..report.writer import Kind
from ..support.errors import UsageError
from .command import Command
from .common import (
    EXIT_CODES,
    MOST_THREADS,
    add_common,
    add_detail,
    add_reports,
    asked_for,
    check_ranges,
    deliver,
    form,
    internal_errors,
)
from .parser import Parser

_EPILOG = """\
examples:
  gguf-verify judge --tensor blk.0.attn_q.weight --x x.npy --y y.npy model.gguf
  gguf-verify judge --tensor blk.0.attn_q.weight --x x.f32 --y y.f32 --shape 5x256 model.gguf
  gguf-verify judge --tensor blk.0.attn_q.weight --x dump.safetensors --y dump.safetensors model.gguf
  gguf-verify judge CASE      # a folder that `gguf-verify MODEL.gguf --save-case CASE` wrote

"""


def build_parser() -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog="gguf-verify judge",
        description="Judge a product y = x·Wᵀ that any engine has computed, from captured arrays.",
        epilog=_EPILOG
        + EXIT_CODES.format(verified="every output is within its bound", mismatch="an output is outside its bound"),
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL.gguf|CASE", help="the file that holds the weights, or a saved case")
    add("--tensor", metavar="NAME", help="exact name of the weights' tensor")
    add(
        "--x",
        metavar="FILE",
        help="the activations [M, K], before any quantization: .npy, .safetensors (FILE:TENSOR of several), or plain "
        "numbers (.f32, .f16, .bf16)",
    )
    add("--y", metavar="FILE", help="the outputs [M, N], likewise; an array that is transposed is recognised")
    add("--shape", metavar="MxK", help="the shape of a plain x: tokens x columns, or columns x tokens if transposed")
    add(
        "--definition",
        metavar="NAME",
        help="the definition that the engine claims to compute; auto finds one that fits (default: auto, or the "
        "case's own)",
    )
    add("--rows", metavar="A:B", help="the rows of the tensor that y was computed from: A to B - 1 (default: all)")
    add(
        "--fast-math",
        action="store_true",
        help="tolerate codes changed by approximate division, for engines that quantize activations with fast-math",
    )
    add_detail(parser, "the traceback of an internal error")
    add_reports(parser, Kind.JUDGEMENT)
    add_common(parser)
    parser.show_first("model", "--tensor", "--x", "--y", "--shape", "--definition", "--rows")
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify judge …`; returns the exit code. Raises HarnessError."""
    from ..captured import AUTO, judge_captured, judge_case

    args = build_parser().parse_args(argv)
    with internal_errors(args.detail > 0), sandboxed(args.sandbox):
        check_ranges(("-t", args.threads, 0, MOST_THREADS))
        files = asked_for(args, Kind.JUDGEMENT)
        if args.model.is_dir():
            own = [name for name in ("tensor", "x", "y", "rows", "shape") if getattr(args, name) is not None]
            if own:
                raise UsageError(f"a case holds its own arrays: remove {', '.join(f'--{name}' for name in own)}")
            judged = judge_case(args.model, args.definition or "", threads=args.threads, fast_math=args.fast_math)
        else:
            missing = [f"--{name}" for name in ("tensor", "x", "y") if getattr(args, name) is None]
            if missing:
                raise UsageError(f"judge needs {', '.join(missing)}, or a folder written by --save-case")
            judged = judge_captured(
                args.model,
                args.tensor,
                args.x,
                args.y,
                args.definition or AUTO,
                _numbers("--rows", args.rows, ":", "A:B"),
                shape=_numbers("--shape", args.shape, "x", "MxK"),
                threads=args.threads,
                fast_math=args.fast_math,
            )
        return deliver(Kind.JUDGEMENT, judged, judged.exit_code, form(args), files)


def _numbers(option: str, text: str | None, between: str, form: str) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(f"([0-9]{{1,12}}){between}([0-9]{{1,12}})", text)
    if found is None:
        raise UsageError(f"{option} must be {form}, two numbers, not {text[:40]!a}")
    return int(found[1]), int(found[2])


COMMAND = Command("judge", "judge a product that any engine has computed, from captured arrays", build_parser, run)
