"""`gguf-verify explain ID`: the meaning of an id of a message, finding, fault, culprit, sandbox or verdict."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from ..diagnosis.faults import FAULTS
from ..diagnosis.observed import OBSERVED
from ..gguf.rules import RULES
from ..results import CULPRITS
from ..support.errors import UsageError
from ..support.messages import MESSAGES
from ..support.near import nearest
from ..support.text import printable, sentence
from .command import Command
from .common import Parser, print_lines

_WIDTH = 80
_EFFECTS = {"refuse": "the file is refused, exit code 4", "error": "an error, exit code 1",
            "warning": "a warning; with --strict an error", "note": "a note"}  # fmt: skip


@dataclass(frozen=True)
class Explanation:
    """What an id means.

    Args:
        id: as messages and reports show it.
        kind: what sort of thing it is, in the plural.
        what: what it says.
        why: why it matters, or how it comes.
        fix: what to do.
    """

    id: str
    kind: str
    what: str
    why: str
    fix: str


#: Culprit → what it means, why, what to do.
_CULPRITS = {
    "kernel": (
        "The kernel under test is wrong: an output is outside what correct arithmetic of its definition can give.",
        "The bound is derived from the declared arithmetic in any order of summation, so no correct kernel exceeds it. "
        "Sums in half that it cannot judge are judged by the orders that kernels have: a correct kernel fails that "
        "with a probability of 10⁻⁹ at most.",
        "Follow the diagnosis; the block, the bytes, the got and expected values of the first failure are in the "
        "report.",
    ),
    "oracle": (
        "The function by which the kernel's author defines the product raised, or gave values that cannot be used.",
        "Without it nothing can be judged.",
        "Correct the Oracle of the kernel's declaration.",
    ),
    "definition": (
        "The declared definition cannot represent these values, such as a sum above the largest half.",
        "No kernel of this definition gives a finite product here.",
        "Choose another definition for this model, or report the overflow to whoever defined it.",
    ),
    "file": (
        "The file holds what no reader can give a meaning to, such as a scale that is not a number.",
        "Every kernel and llama.cpp give wrong outputs with it.",
        "Run `gguf-verify audit` on it, and convert or download it again.",
    ),
    "llama.cpp": (
        "llama.cpp gave an output outside its own bound, refused the model or crashed.",
        "The reference itself cannot be trusted for this product.",
        "Try another version or another --reference, and report it to llama.cpp with the repeat command.",
    ),
    "verifier": (
        "A decoder of gguf-verify gives other values than llama.cpp and than a second, independent decoder of its own.",
        "What it judges with such a decoder means nothing for this type.",
        "Install gguf-verify again, or undo the change to its formats; else report it with the block's bytes.",
    ),
    "environment": (
        "This machine cannot run the check: no such device, a failed build, or no memory.",
        "Nothing is known about the kernel.",
        "See the message; `gguf-verify explain host-not-usable` where it is about a GPU.",
    ),
    "coverage": (
        "Something should have been checked and nothing covers it.",
        "Nothing measured is never a pass.",
        "See what the report names as not verified; drop -x and --budget, or give the run the time that it needs, "
        "where it was ended.",
    ),
}
#: Verdict → exit code, what it means, what to do.
_VERDICTS = {
    "verified": ("0", "Every rung passed, and something was measured in each.", "The report says for what it holds."),
    "mismatch": ("1", "Something is shown to be wrong.", "See who is at fault, and the diagnosis."),
    "broken off": ("3", "A rung could not be run to its end, or the file was changed meanwhile.", "See the message."),
    "not everything verified": (
        "5",
        "Nothing is shown to be wrong, and something could not be judged.",
        "The report names each thing that was not verified.",
    ),
    "interrupted": (
        "130 by Ctrl-C, 3 by SIGTERM and SIGHUP",
        "The run was ended before its last rung, and nothing was wrong by then; a known mismatch stays one.",
        "Run it again; the report names the rungs that were not begun.",
    ),
}
#: What `--sandbox` takes → what it keeps out, what it does not, what to do.
_SANDBOXES = {
    "bubblewrap": (
        "The boundary: a process gets an empty root with the system's programs, Python, this project, copies of the "
        "kernel's folder and the GPU's devices, all of it read-only, and a private folder, and may make listed system "
        "calls only.",
        "It keeps out your files, terminals, sockets, processes and the network. It does not keep out faults of the "
        "operating system's kernel and of a GPU's driver.",
        "A kernel's modules lie in its folder, in PYTHONPATH or are installed; libraries may lie in LD_LIBRARY_PATH, "
        "headers in CPATH.",
    ),
    "landlock": (
        "The accident guard: a process writes into its private folder alone, has no TCP, and may make listed system "
        "calls only.",
        "It keeps a program from doing harm by mistake. It does not keep out what you may read, the names of your "
        "processes, and what the report lists: it is no boundary against hostile code.",
        "Install bubblewrap and libseccomp. Where user namespaces are refused, the report says how to allow them.",
    ),
    "none": (
        "Nothing confines the processes; they are still ended with the run, and their memory and output are limited.",
        "They may do all that you may do, so a verdict on hostile code is worth nothing.",
        "Leave out --sandbox none, unless you trust the kernel, the file and llama.cpp.",
    ),
}


def explanations() -> dict[str, Explanation]:
    """Id → explanation, of every id that messages and reports show."""
    return {e.id: e for e in _all()}


def _all() -> Iterator[Explanation]:
    for verdict, (code, what, fix) in _VERDICTS.items():
        yield Explanation(verdict.replace(" ", "-"), "verdicts", what, f"The exit code is {code}.", fix)
    for culprit, (what, why, fix) in _CULPRITS.items():
        yield Explanation(culprit, "culprits", f"At fault: {CULPRITS[culprit]}. {what}", why, fix)  # type: ignore[index]
    for name, (what, why, fix) in _SANDBOXES.items():
        yield Explanation(name, "sandboxes", what, why, fix)
    for m in MESSAGES.values():
        yield Explanation(m.id, "messages", m.what, m.why, m.fix)
    for fault in FAULTS:
        why = "The diagnosis computed what a kernel with this fault gives, and it is what this kernel gave."
        yield Explanation(fault.id, "faults", _sentence(fault.words), why, _sentence(fault.fix))
    for seen in OBSERVED.values():
        yield Explanation(seen.id, "faults", _sentence(seen.words), seen.how, _sentence(seen.fix))
    for rule in sorted(RULES.values(), key=lambda rule: rule.number):
        what = f"{sentence(rule.why)} ({_EFFECTS[rule.effect]})."
        yield Explanation(rule.id, "findings", what, rule.cause, rule.cure)


def _sentence(words: str) -> str:
    return f"{sentence(words)}."


def find_explanation(given: str) -> Explanation:
    """The explanation of an id, also without the number or the name of a finding. Raises UsageError."""
    known = explanations()
    by_name = {name.lower(): e for name, e in known.items()}
    for rule in RULES.values():
        by_name |= {rule.slug: known[rule.id], rule.id[:8].lower(): known[rule.id]}
    name = given.strip("[]").lower().replace(" ", "-")
    if name not in by_name:
        near = nearest(name, by_name)
        raise UsageError(
            f"no id is called '{printable(given, 80)}'; {near}`gguf-verify explain` lists all of them", "usage"
        )
    return by_name[name]


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = Parser(
        prog="gguf-verify explain",
        description="Print what an id of a message, finding, fault, culprit, sandbox or verdict means; without an id, "
        "list all.",
    )
    parser.add_argument("id", nargs="?", metavar="ID", help="such as unknown-kernel, mismatch or GGUF-013")
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify explain …`; returns the exit code. Raises HarnessError."""
    args = build_parser().parse_args(argv)
    if args.id is None:
        return print_lines(*_listed())
    e = find_explanation(args.id)
    lines = [f"{e.id} ({e.kind})"]
    for label, words in (("what", e.what), ("why", e.why), ("fix", e.fix)):
        start = f"  {label:<5} "
        lines += textwrap.wrap(words, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
    return print_lines(*lines)


def _listed() -> Iterator[str]:
    kind = ""
    for e in explanations().values():
        if e.kind != kind:
            yield from (*([""] if kind else []), e.kind)
            kind = e.kind
        yield "  " + textwrap.shorten(f"{e.id}: {e.what}", _WIDTH - 2, placeholder=" …")


COMMAND = Command("explain", "say what an id of a message or report means, and what to do", build_parser, run)
