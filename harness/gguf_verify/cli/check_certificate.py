"""`gguf-verify check-certificate FILE`: print a certificate and compare its digests with files."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..support.command_line import shown
from ..support.errors import EXIT_MISMATCH, UsageError
from ..support.text import printable
from .command import Command
from .common import internal_errors, print_lines
from .parser import Parser

if TYPE_CHECKING:
    from ..certificates.check import Checked, Line, Signature
    from ..certificates.records import Predicate


_WIDTH, _LABEL = 80, 12
_EPILOG = """\
exit codes:
  0  every file of the certificate was compared and is identical, the signature is good,
     and the certified verdict is that of a whole run, verified without waivers
  1  a file differs, the signature is bad, or the certified verdict is a mismatch
  2  usage error: a file cannot be read
  3  this machine cannot check the signature: ssh-keygen is not installed
  4  the file is not a certificate
  5  something could not be compared, or the certified verdict is none of the above
"""


def build_parser() -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog="gguf-verify check-certificate",
        epilog=_EPILOG,
        description="Compare a certificate of --certificate with the files that it lists, with this installation and\n"
        "with a signature.",
    )
    add = parser.add_argument
    add("certificate", type=Path, metavar="FILE", help="the certificate")
    add(
        "--model",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="the model's file, or its first part; may be repeated (default: the recorded name under --root)",
    )
    add(
        "--kernel",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="files of the kernel; others are searched beside them (default: recorded names under --root)",
    )
    add(
        "--root",
        type=Path,
        metavar="DIR",
        help="folder that recorded names are relative to (default: the certificate's folder)",
    )
    add("--signature", type=Path, metavar="FILE.sig", help="the signature (default: FILE.sig beside the certificate)")
    add(
        "--allowed-signers",
        type=Path,
        metavar="FILE",
        help="check the signature against these allowed signers, a file as in ssh-keygen(1)",
    )
    add("--signer", default="", metavar="NAME", help="the signer to require (default: any of the allowed signers)")
    add("--unsigned", action="store_true", help="do not require a signature: you trust where the certificate came from")
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify check-certificate …`; returns the exit code. Raises HarnessError."""
    from ..certificates.check import compare
    from ..certificates.read import read_certificate

    args = build_parser().parse_args(argv)
    with internal_errors(False):
        statement, content = read_certificate(args.certificate)
        folder = args.certificate.absolute().parent if args.root is None else args.root
        signature = _signature(args)
        checked = compare(statement, content, folder, args.model, args.kernel, signature, args.unsigned)
        return print_lines(*_told(checked), exit_code=checked.exit_code)


def _signature(args: argparse.Namespace) -> Signature | None:
    from ..certificates.check import Signature
    from ..certificates.signing import signature_path

    if args.allowed_signers is None:
        if args.signature is not None or args.signer:
            raise UsageError("--signature and --signer need --allowed-signers, which lists the accepted keys")
        return None
    if args.unsigned:
        raise UsageError("--unsigned and --allowed-signers contradict each other")
    return Signature(args.signature or signature_path(args.certificate), args.allowed_signers, args.signer)


# ---- the printed report ----------------------------------------------------------------------------------------------


def _told(checked: Checked) -> Iterator[str]:
    said = checked.statement.predicate
    yield f"{_head(checked)}: the certificate says {printable(said.words, 60).upper()}"
    for label, text in _facts(said):
        yield from _wrapped(label, text)
    yield ""
    yield from _compared(checked.lines)


def _head(checked: Checked) -> str:
    if checked.exit_code == EXIT_MISMATCH:
        return "NOT THE SAME, OR NOT VERIFIED"
    if any(line.outcome != "matches" for line in checked.lines):
        return "NOT EVERYTHING COULD BE COMPARED"
    return "CERTIFIED AND THE SAME" + (", BUT NOT A WHOLE VERIFICATION" if checked.exit_code else "")


def _facts(said: Predicate) -> Iterator[tuple[str, str]]:
    where = f"llama.cpp {said.reference.llama_cpp}, {said.reference.where}"
    yield (
        "model",
        f"{said.model.files[0]}, {said.model.size:,} bytes, "
        + ", ".join(f"{n} {kind}" for kind, n in list(said.model.tensor_types.items())[:8]),
    )
    yield "kernel", f"{said.kernel.name}, definition {said.kernel.definition}"
    if said.kernel.judged_by:
        yield "judged by", said.kernel.judged_by
    yield "ran on", said.host.words
    yield "against", where
    yield "rungs", ", ".join(f"{rung.name} {rung.verdict}" for rung in said.rungs[:8])
    if said.culprits:
        yield "at fault", ", ".join(f"{who} ({n:,})" for who, n in said.culprits.items())
    if said.asked.left_out:
        yield "skipped", "; ".join(said.asked.left_out)
    for envelope in [e for e in said.envelope if e.under_test][:2]:
        yield "holds for", f"{envelope.type}: M {envelope.tokens}, N {envelope.rows}, K {envelope.columns}"
    if gaps := sum(len(e.not_covered) for e in said.envelope):
        yield (
            "not tried",
            f"{gaps} part{'' if gaps == 1 else 's'} of the probe plan, {said.asked.probes}, seed {said.asked.seed}",
        )
    if said.waivers:
        yield "waivers", "; ".join(f"{w.what} until {w.until}: {w.reason}" for w in said.waivers[:3])
    yield "finished", f"{said.finished}, by gguf-verify {said.project.version}"
    yield "repeat with", shown(said.command)[:400]


def _compared(lines: tuple[Line, ...]) -> Iterator[str]:
    """One line counts the matching files; everything else gets its own line."""
    for what in ("model", "kernel"):
        same = [line for line in lines if line.what.startswith(f"{what}: ") and line.outcome == "matches"]
        if same:
            names = same[0].what.removeprefix(f"{what}: ") if len(same) == 1 else f"{len(same)} files"
            yield from _wrapped("matches", f"{what}: {names}")
    others = [line for line in lines if line.outcome != "matches" or ": " not in line.what]
    for line in others[:12]:
        yield from _wrapped(line.outcome, f"{line.what}: {line.remark}" if line.remark else line.what)
    if len(others) > 12:
        yield from _wrapped("", f"and {len(others) - 12} more")


def _wrapped(label: str, text: str) -> Iterator[str]:
    start = f"{label:<{_LABEL}}"
    short = printable(text, 240) if label != "repeat with" else text
    yield from textwrap.wrap(short, _WIDTH, initial_indent=start, subsequent_indent=" " * _LABEL) or [start.rstrip()]


COMMAND = Command(
    "check-certificate",
    "compare a certificate with the files that it lists, and check its signature",
    build_parser,
    run,
)
