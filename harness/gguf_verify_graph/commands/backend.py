"""`gguf-verify backend MODEL.gguf --device D`: judge every operation of llama.cpp's graph on one of its devices."""

from __future__ import annotations

import argparse
from pathlib import Path

from gguf_verify.backend_results import PROMPT, GraphOptions
from gguf_verify.cli.command import Command
from gguf_verify.cli.common import (
    EXIT_CODES,
    MOST_THREADS,
    add_common,
    add_detail,
    add_prompt,
    add_reports,
    asked_for,
    check_ranges,
    deliver,
    form,
    internal_errors,
    on_terminal,
    prompt_of,
    spell,
)
from gguf_verify.cli.parser import Parser
from gguf_verify.report.writer import Kind
from gguf_verify.support.command_line import cores
from gguf_verify.support.errors import UsageError

_MOST_TOKENS, _MOST_LAYERS = 1 << 20, 1 << 16
_EPILOG = """\
examples:
  gguf-verify backend model.gguf                          # llama.cpp's CPU backend
  gguf-verify backend model.gguf --device CUDA0 -ub 1,8,64,512
  gguf-verify backend model.gguf --device Vulkan0 --llama node_modules/@node-llama-cpp/linux-x64-vulkan
  gguf-verify backend model.gguf --ops 'ROPE|FLASH_ATTN_EXT' -ctk q8_0 -ctv q8_0 -fa on

`gguf-verify devices` lists the devices.

"""


def build_parser() -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog="gguf-verify backend",
        description="Judge every operation of llama.cpp's graph of a model, on any device of llama.cpp, against exact "
        "results.",
        epilog=_EPILOG
        + EXIT_CODES.format(verified="every node is within its bound", mismatch="a node is outside its bound"),
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL.gguf", help="the file, or the first part of a split model")
    add("--device", default="CPU", metavar="NAME", help="ggml's name of the device (default: %(default)s)")
    add(
        "--llama",
        type=Path,
        metavar="PATH",
        help="another build of llama.cpp: its folder or one library (default: llama-cpp-python)",
    )
    add_prompt(parser, PROMPT)
    add(
        "-n",
        "--n-predict",
        type=int,
        default=2,
        metavar="N",
        help="tokens after the prompt, one at a time (default: %(default)s)",
    )
    add(
        "-c",
        "--ctx-size",
        type=int,
        default=0,
        metavar="N",
        help="context size (default: what the prompt and the predicted tokens need)",
    )
    add(
        "-ub",
        "--ubatch-size",
        type=_sizes,
        default=(),
        metavar="N[,N]",
        help="evaluate the prompt in micro-batches of N tokens, once for each N (default: in one batch)",
    )
    add(
        "--slots",
        action="store_true",
        help="also evaluate the prompt in another slot of the KV cache, and next to another sequence",
    )
    add(
        "--fused",
        action="store_true",
        help="also evaluate the prompt with nodes computed together, so that the device may fuse them, and judge the "
        "differences",
    )
    add(
        "-ngl", "--n-gpu-layers", type=int, default=-1, metavar="N", help="layers to place on the device (default: all)"
    )
    add("-ctk", "--cache-type-k", default="", metavar="TYPE", help="type of the K cache, such as q8_0")
    add("-ctv", "--cache-type-v", default="", metavar="TYPE", help="type of the V cache; a quantized one needs -fa on")
    add(
        "-fa",
        "--flash-attn",
        choices=("auto", "on", "off"),
        default="auto",
        help="compute attention as one operation (default: %(default)s: llama.cpp chooses)",
    )
    add(
        "--ops",
        default=".*",
        metavar="REGEX",
        help="judge only operations whose full name matches, such as 'ROPE|UNARY SILU'",
    )
    add("--node", default="", metavar="NAME", help="judge only the nodes with this name in the graph, such as Qcur-0")
    add(
        "--repack",
        action="store_true",
        help="let llama.cpp repack the weights, as it does by default; repacking crashes on some machines",
    )
    add("-x", "--exitfirst", action="store_true", help="stop at the first wrong node")
    add_detail(parser, "every recorded node", "llama.cpp's log")
    add_reports(parser, Kind.GRAPH)
    add_common(parser)
    parser.show_first("model", "--device", "--llama", "-n", "-ub", "-fa", "--ops", "--node", "-x", "-v")
    return parser


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"takes numbers, not {text[:40]!a}") from None
    if not sizes or not all(1 <= size <= _MOST_TOKENS for size in sizes):
        raise argparse.ArgumentTypeError(f"takes numbers from 1 to {_MOST_TOKENS}")
    return sizes


def run(argv: list[str]) -> int:
    """`gguf-verify backend …`; returns the exit code. Raises HarnessError."""
    from ..verification import check_pattern, verify_graph

    args = build_parser().parse_args(argv)
    with internal_errors(args.detail > 0):
        check_ranges(
            ("-t", args.threads, 0, MOST_THREADS),
            ("-n", args.n_predict, 0, _MOST_TOKENS),
            ("-c", args.ctx_size, 0, _MOST_TOKENS),
            ("-ngl", args.n_gpu_layers, -1, _MOST_LAYERS),
        )
        check_pattern(args.ops)
        if not args.device:
            raise UsageError("--device needs a name; `gguf-verify devices` lists them")
        files = asked_for(args, Kind.GRAPH)
        options = GraphOptions(
            device=args.device,
            llama="" if args.llama is None else str(args.llama),
            prompt=prompt_of(args, PROMPT),
            n_predict=args.n_predict,
            micro_batches=args.ubatch_size,
            slots=args.slots,
            fused=args.fused,
            layers=args.n_gpu_layers,
            type_k=args.cache_type_k,
            type_v=args.cache_type_v,
            flash=args.flash_attn,
            ops=args.ops,
            node=args.node,
            threads=args.threads or cores(),
            ctx_size=args.ctx_size,
            repack=args.repack,
            time_limit=args.time_limit,
            exit_first=args.exitfirst,
            verbose=args.detail > 1,
            progress=on_terminal() and args.detail >= 0,
            sandbox=args.sandbox,
        )
        report = verify_graph(args.model, options, spell(argv))
        return deliver(Kind.GRAPH, report, report.exit_code, form(args), files)


COMMAND = Command("backend", "judge every operation of llama.cpp's graph, on any of its devices", build_parser, run)
