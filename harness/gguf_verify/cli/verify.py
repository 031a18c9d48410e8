"""`gguf-verify MODEL.gguf` and `scripts/verify_model.py`: a kernel against llama.cpp."""

from __future__ import annotations

import argparse
import re
from itertools import combinations
from pathlib import Path

from ..hosts import HOST_CHOICES, help_of_hosts
from ..identification import identify_model
from ..kernels import DEFAULT_KERNEL, FAMILIES, KERNELS, Family, KernelSpec
from ..report import heat_map, identify_report, json_report, text
from ..results import DEFAULT_N_PREDICT, DEFAULT_PROMPT, Options
from ..rungs import RUNGS
from ..rungs.run import REFERENCES
from ..support.errors import EXIT_ENVIRONMENT, UsageError, say
from ..verification import verify
from .common import (
    MOST_THREADS,
    add_common,
    check_output,
    check_ranges,
    cores,
    deliver,
    internal_errors,
    on_terminal,
    save,
    shows_blocks,
    spell,
)

_MOST_TOKENS = 1 << 20

_EPILOG = """\
exit codes: 0 verified · 1 a mismatch · 2 usage · 3 the environment cannot (no such host, a build failed, llama.cpp
died) · 4 the file is malformed · 5 not everything could be verified

gguf-verify audit MODEL.gguf looks at the file alone: every byte owned, explained and judged.
"""


def _parser() -> argparse.ArgumentParser:
    listed: list[Family | KernelSpec] = [*FAMILIES.values(), *KERNELS.values()]
    kernels = "\n".join(f"  {k.name:<17}{k.title}" for k in listed)
    parser = argparse.ArgumentParser(
        prog="gguf-verify", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Prove on the bytes of a GGUF model that a CUDA kernel computes what llama.cpp computes.",
        epilog=f"kernels:\n{kernels}\n\n{_EPILOG}",
    )  # fmt: skip
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL.gguf", help="the file, or the first part of a split one")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("-p", "--prompt", default=None, help=f"prompt (default: {DEFAULT_PROMPT!r})")
    prompt.add_argument("-f", "--file", type=Path, metavar="FILE", help="file that holds the prompt")
    add(
        "-n",
        "--n-predict",
        type=int,
        default=DEFAULT_N_PREDICT,
        metavar="N",
        help="tokens to predict (default: %(default)s)",
    )
    add(
        "-c", "--ctx-size", type=int, default=0, metavar="N", help="context size (default: what prompt and tokens need)"
    )
    add("-s", "--seed", type=int, default=0, metavar="N", help="seed of what is drawn (default: %(default)s)")
    add(
        "--host",
        choices=HOST_CHOICES,
        default="auto",
        help=f"where the kernel runs; {help_of_hosts()}; auto takes the first of these that this machine has",
    )
    add(
        "--reference",
        choices=REFERENCES,
        default=REFERENCES[0],
        help="where llama.cpp runs; gpu takes a llama-cpp-python with the CUDA backend (default: %(default)s)",
    )
    add(
        "--kernel",
        default=DEFAULT_KERNEL,
        metavar="NAME",
        help="kernel or family to verify, or one of your own, FILE.py:NAME or FILE.cu:SYMBOL (default: %(default)s)",
    )
    add(
        "--kernel-time-limit",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds for a call of a kernel of your own (default: %(default)g)",
    )
    add("--rungs", default=",".join(RUNGS), metavar="LIST", help="rungs to climb (default: %(default)s)")
    add(
        "--identify",
        action="store_true",
        help="say which definition of the product the kernel and llama.cpp compute, instead of climbing rungs",
    )
    add("--tensor", metavar="REGEX", help="only tensors whose name matches")
    add(
        "--heat-map",
        type=Path,
        metavar="FILE",
        help="also draw the utilisation of each matrix, and of the first wrong GEMM, as FILE.svg or FILE.png",
    )
    add(
        "--repack",
        action="store_true",
        help="let llama.cpp repack its weights (its default; it crashes on some machines)",
    )
    add("--html", type=Path, metavar="FILE", help="also write the report as one HTML file that needs no other")
    add("-v", "--verbose", action="store_true", help="one line a tensor, GEMM and token; llama.cpp's log on stderr")
    add_common(parser)
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify [verify] …`; returns the exit code. Raises HarnessError."""
    args = _parser().parse_args(argv)
    with internal_errors(args.verbose):
        return _run(args, argv)


def _run(args: argparse.Namespace, argv: list[str]) -> int:
    _check(args)
    options = Options(
        prompt=_prompt(args), n_predict=args.n_predict, threads=args.threads or cores(),
        ctx_size=args.ctx_size, seed=args.seed, tensor=args.tensor, repack=args.repack, time_limit=args.time_limit,
        verbose=args.verbose, progress=on_terminal(), reference=args.reference,
        kernel_time_limit=args.kernel_time_limit,
    )  # fmt: skip
    if args.identify:
        found = identify_model(args.model, args.kernel, args.host, options, spell(argv))
        as_json = identify_report.to_json(found) if args.json is not None else None
        return deliver(identify_report.render(found), args.json, as_json, found.exit_code)
    rungs = _rungs(args)
    report = verify(args.model, args.kernel, args.host, rungs, options, spell(argv))
    rendered = json_report.render(report) if args.json is not None else None
    exit_code = deliver(text.render(report, args.verbose, shows_blocks()), args.json, rendered, report.exit_code)
    if args.html is not None:
        from ..report import html  # late: no other run needs templates

        exit_code = save(args.html, html.render_run(report).encode(), exit_code)
    if args.heat_map is None:
        return exit_code
    maps = heat_map.grids(report.rungs)
    if not maps:
        say("no heat map: the layers rung judged nothing")
        return exit_code or EXIT_ENVIRONMENT
    drawn = heat_map.png(maps) if args.heat_map.suffix == ".png" else heat_map.svg(maps).encode()
    return save(args.heat_map, drawn, exit_code)


def _rungs(args: argparse.Namespace) -> list[str]:
    return [r.strip() for r in args.rungs.split(",") if r.strip()]


def _check(args: argparse.Namespace) -> None:
    check_ranges(
        ("-n", args.n_predict, 1, _MOST_TOKENS), ("-c", args.ctx_size, 0, _MOST_TOKENS),
        ("-t", args.threads, 0, MOST_THREADS), ("-s", args.seed, 0, 2**63 - 1),
        ("--time-limit", args.time_limit, 0.001, 10**6), ("--kernel-time-limit", args.kernel_time_limit, 0.001, 10**6),
    )  # fmt: skip
    check_output(args.json, args.model)
    check_output(args.html, args.model, flag="--html")
    check_output(args.heat_map, args.model, flag="--heat-map")
    if args.html is not None and args.identify:
        raise UsageError("--html shows the rungs, and --identify climbs none")
    if args.heat_map is not None:
        if args.heat_map.suffix not in (".svg", ".png"):
            raise UsageError("--heat-map writes FILE.svg or FILE.png")
        if args.identify or "layers" not in _rungs(args):
            raise UsageError("--heat-map draws what the layers rung finds")
    given = {"--json": args.json, "--html": args.html, "--heat-map": args.heat_map}
    outputs = {flag: path.resolve() for flag, path in given.items() if path is not None}
    for (flag, path), (other, also) in combinations(outputs.items(), 2):
        if path == also:
            raise UsageError(f"{flag} and {other} name the same file")
    if args.tensor is not None:
        try:
            re.compile(args.tensor)
        except re.error as error:
            raise UsageError(f"--tensor is not a regular expression: {error}") from None


def _prompt(args: argparse.Namespace) -> str:
    if args.file is None:
        prompt = DEFAULT_PROMPT if args.prompt is None else str(args.prompt)
        if any("\ud800" <= c <= "\udfff" for c in prompt):
            raise UsageError("the prompt is not UTF-8")
        return prompt
    try:
        return str(args.file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the prompt from {args.file}: {error}") from None
