"""`gguf-verify` and `scripts/verify_model.py`. stdout is the result, stderr is progress and errors."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from .container import printable
from .errors import EXIT_ENVIRONMENT, HarnessError, UsageError
from .hosts import HOSTS
from .kernels import DEFAULT_KERNEL, KERNELS
from .report import json_report, text
from .rungs import RUNGS, Options
from .rungs.run import DEFAULT_N_PREDICT, DEFAULT_PROMPT
from .verify import project_version, verify

_MOST_TOKENS, _MOST_THREADS = 1 << 20, 512

_EPILOG = """\
exit codes: 0 verified · 1 a mismatch · 2 usage · 3 the environment cannot (no such host, a build failed, llama.cpp
died) · 4 the file is malformed · 5 not everything could be verified
"""


def _parser() -> argparse.ArgumentParser:
    kernels = "\n".join(f"  {k.name:<14}{k.title}" for k in KERNELS.values())
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
    add("-t", "--threads", type=int, default=0, metavar="N", help="threads (default: every core)")
    add(
        "-c", "--ctx-size", type=int, default=0, metavar="N", help="context size (default: what prompt and tokens need)"
    )
    add("-s", "--seed", type=int, default=0, metavar="N", help="seed of what is drawn (default: %(default)s)")
    add("--host", choices=HOSTS, default="auto", help="where the kernel runs; auto takes a GPU if there is one")
    add("--kernel", default=DEFAULT_KERNEL, metavar="NAME", help="kernel to verify (default: %(default)s)")
    add("--rungs", default=",".join(RUNGS), metavar="LIST", help="rungs to climb (default: %(default)s)")
    add("--tensor", metavar="REGEX", help="only tensors whose name matches")
    add("--json", type=Path, metavar="FILE", help="also write the report as JSON")
    add(
        "--repack",
        action="store_true",
        help="let llama.cpp repack its weights (its default; it crashes on some machines)",
    )
    add(
        "--time-limit",
        type=float,
        default=900.0,
        metavar="S",
        help="seconds without a word after which llama.cpp is hung",
    )
    add("-v", "--verbose", action="store_true", help="one line a tensor, GEMM and token; llama.cpp's log on stderr")
    add("--version", action="version", version=f"gguf-verify {project_version()}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # a name from a file must not break a terminal that cannot show it
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    args = _parser().parse_args(argv)
    try:
        return _run(args, argv)
    except HarnessError as error:
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except MemoryError:
        _say("out of memory")
        return EXIT_ENVIRONMENT
    except Exception as error:  # a fault of ours must not look like a mismatch, which exit code 1 means
        if args.verbose:
            traceback.print_exc()
        _say(f"internal error, please report it: {type(error).__name__}: {error}")
        return EXIT_ENVIRONMENT


def _say(line: str) -> None:
    """One line on standard error, where there is one."""
    with contextlib.suppress(OSError, AttributeError):
        print(f"gguf-verify: {line}", file=sys.stderr)


def _run(args: argparse.Namespace, argv: list[str]) -> int:
    _check(args)
    options = Options(
        prompt=_prompt(args), n_predict=args.n_predict, threads=args.threads or len(os.sched_getaffinity(0)),
        ctx_size=args.ctx_size, seed=args.seed, tensor=args.tensor, repack=args.repack, time_limit=args.time_limit,
        verbose=args.verbose, progress=sys.stderr is not None and sys.stderr.isatty(),
    )  # fmt: skip
    rungs = [r.strip() for r in args.rungs.split(",") if r.strip()]
    command = shlex.join([Path(sys.argv[0]).name, *argv])
    report = verify(args.model, args.kernel, args.host, rungs, options, command)
    try:
        if sys.stdout is not None:
            sys.stdout.write(text.render(report, args.verbose))
            sys.stdout.flush()
    except OSError:  # nobody reads, or the disk is full: the verdict stands, and is the exit code
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if args.json is not None:
        try:
            args.json.write_text(json_report.render(report))
        except OSError as error:
            _say(f"cannot write {printable(str(args.json))}: {error.strerror}")
            return report.exit_code or EXIT_ENVIRONMENT
    return report.exit_code


def _check(args: argparse.Namespace) -> None:
    for flag, value, low, high in (
        ("-n", args.n_predict, 1, _MOST_TOKENS),
        ("-c", args.ctx_size, 0, _MOST_TOKENS),
        ("-t", args.threads, 0, _MOST_THREADS),
        ("-s", args.seed, 0, 2**63 - 1),
        ("--time-limit", args.time_limit, 0.001, 10**6),
    ):
        if not low <= value <= high:
            raise UsageError(f"{flag} must be from {low} to {high}")
    if args.json is not None:
        folder = args.json.absolute().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK) or args.json.is_dir():
            raise UsageError(f"cannot write {printable(str(args.json))}")
        if args.json.suffix == ".gguf":
            raise UsageError("--json would overwrite a model: give it another name than .gguf")
        if args.json.exists() and args.model.exists() and args.json.samefile(args.model):
            raise UsageError("--json would overwrite the model")
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


if __name__ == "__main__":
    sys.exit(main())
