"""`gguf-verify cost MODEL.gguf --source FILE.gguf`: measure the cost of a quantization."""

from __future__ import annotations

from pathlib import Path

from ..processes.sandbox import sandboxed
from ..report.writer import Kind
from ..results.options import DEFAULT_PROMPT
from ..support.errors import EXIT_UNVERIFIED
from .command import Command
from .common import EXIT_CODES, add_common, add_prompt, add_reports, internal_errors
from .kernel_options import add_display, add_llama, add_model, add_reference, add_seed, add_tensor, without_kernel
from .parser import WHAT, Parser, basic

_RUNGS = ("bytes",)
_EPILOG = """\
example:
  gguf-verify cost model-Q4_0.gguf --source model-F16.gguf --text wiki.test.raw

First the bytes rung checks that the file is read as llama.cpp reads it. Then the relative error of each matrix
product, perplexity, KL divergence and the share of equal predictions are measured against the source. The costs have
no verdict: the exit code is that of the bytes rung.

"""


def build_parser() -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog="gguf-verify cost",
        description="Measure the cost of a quantization against the model that it was made from.",
        epilog=_EPILOG + EXIT_CODES.format(verified="the costs were measured", mismatch="the file is read incorrectly"),
    )
    add = parser.group(WHAT).add_argument
    add_model(parser, "the quantized model, or its first part")
    basic(
        add(
            "--source",
            type=Path,
            required=True,
            metavar="FILE.gguf",
            help="the model that it was quantized from",
        )
    )
    basic(add("--text", dest="source_text", type=Path, metavar="FILE", help="text to predict (default: the prompt)"))
    add_tensor(parser, "measure only tensors whose name matches")
    add_prompt(parser, DEFAULT_PROMPT)
    add_seed(parser)
    add_llama(parser)
    add_reference(parser)
    add_display(parser)
    without_kernel(parser)
    add_reports(parser, Kind.RUN)
    add_common(parser)
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify cost …`; returns the exit code. Raises HarnessError."""
    args = build_parser().parse_args(argv)
    with internal_errors(args.detail > 0), sandboxed(args.sandbox, args.kernel_memory):
        from ..rungs.opening import Request
        from .runs.verify import deliver_run, options_of, report_files, verified

        args.rungs = ",".join(_RUNGS)
        files, options = report_files(args, Kind.RUN, _RUNGS), options_of(args)
        request = Request(
            args.model,
            host=args.host,
            rungs=_RUNGS,
            options=options,
            source=args.source,
            source_text=args.source_text,
        )
        report = verified(request, args)
        exit_code = deliver_run(report, args, files)
        measured = report.costs is not None and bool(report.costs.gemms)
        return exit_code if measured else exit_code or EXIT_UNVERIFIED


COMMAND = Command("cost", "measure the cost of a quantization against the original model", build_parser, run)
