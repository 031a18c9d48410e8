"""`gguf-verify explain ID`: explain an id of a message, finding, fault, culprit, sandbox or verdict."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from ..results.failures import CULPRITS
from ..support.errors import UsageError
from ..support.messages import MESSAGES
from ..support.near import nearest
from ..support.text import printable, sentence
from .command import Command
from .common import print_lines
from .parser import Parser

_WIDTH = 80
_EFFECTS = {"refuse": "the file is rejected, exit code 4", "error": "an error, exit code 1",
            "warning": "a warning; with --strict an error", "note": "a note"}  # fmt: skip


@dataclass(frozen=True)
class Explanation:
    """The explanation of an id.

    Args:
        id: the id as messages and reports show it.
        kind: plural name of the sort of thing it is, such as "findings".
        what: what it means.
        why: why it matters, or what causes it.
        fix: what to do about it.
    """

    id: str
    kind: str
    what: str
    why: str
    fix: str


#: Culprit → what it means, why it matters, what to do.
_CULPRITS = {
    "kernel": (
        "The kernel under test is incorrect: an output is outside the bound on correct arithmetic of its definition.",
        "The bound is derived from the declared arithmetic in any order of summation, so no correct kernel exceeds it. "
        "Sums in half precision that the bound cannot judge are judged by the summation orders of real kernels: a "
        "correct kernel fails that with a probability of at most 10⁻⁹.",
        "Follow the diagnosis. The report shows the block, the bytes, and the actual and expected values of the first "
        "failure.",
    ),
    "oracle": (
        "The function that the kernel's author defines the product by raised, or returned unusable values.",
        "Without it nothing can be judged.",
        "Correct the Oracle in the kernel's declaration.",
    ),
    "definition": (
        "The declared definition cannot represent these values, for example a sum above the largest half.",
        "No kernel of this definition gives a finite product here.",
        "Choose another definition for this model, or report the overflow to the authors of the definition.",
    ),
    "file": (
        "The file holds a value without a meaning to any reader, such as a scale that is not a number.",
        "Every kernel and llama.cpp compute wrong outputs from it.",
        "Run `gguf-verify audit` on the file, and convert or download it again.",
    ),
    "llama.cpp": (
        "llama.cpp computed an output outside its own bound, refused the model or crashed.",
        "The reference itself cannot be trusted for this product.",
        "Try another version or another --reference, and report it to llama.cpp with the repeat command.",
    ),
    "verifier": (
        "A decoder of gguf-verify disagrees with llama.cpp and with a second, independent decoder of gguf-verify.",
        "Results for this type mean nothing while its decoder is in doubt.",
        "Install gguf-verify again, or undo local changes to its formats; otherwise report it with the block's bytes.",
    ),
    "environment": (
        "This machine cannot run the check: no such device, a failed build, or no memory.",
        "Nothing was learned about the kernel.",
        "Read the message; if it is about a GPU, see `gguf-verify explain host-not-usable`.",
    ),
    "coverage": (
        "Checks that should have run were not reached.",
        "A check that measured nothing is never a pass.",
        "See what the report lists as not verified. If the run was cut short, remove -x and --budget, or give it more "
        "time.",
    ),
}
#: Verdict → exit code, what it means, what to do.
_VERDICTS = {
    "verified": ("0", "Every rung passed, and each measured something.", "The report says what the verdict holds for."),
    "mismatch": ("1", "Something was proved wrong.", "See the culprit (at fault) and the diagnosis."),
    "broken off": ("3", "A rung could not be completed, or the file changed during the run.", "Read the message."),
    "not everything verified": (
        "5",
        "Nothing was proved wrong, but something could not be judged.",
        "The report lists everything that was not verified.",
    ),
    "interrupted": (
        "130 by Ctrl-C, 3 by SIGTERM and SIGHUP",
        "The run ended before its last rung without a mismatch so far. (A mismatch found before would be the verdict.)",
        "Run it again; the report lists the rungs that did not start.",
    ),
}
#: `--sandbox` mode → what it blocks, what it does not block, what to do.
_SANDBOXES = {
    "bubblewrap": (
        "The boundary: a process gets an empty root with read-only system programs, Python, this project, copies of "
        "the kernel's folder and the GPU's devices, and one private writable folder; it may make listed system calls "
        "only.",
        "It keeps out your files, terminals, sockets, processes and the network. It does not protect against bugs in "
        "the operating system's kernel or in a GPU's driver.",
        "Put a kernel's modules in its folder or in PYTHONPATH, or install them; libraries may be in LD_LIBRARY_PATH, "
        "headers in CPATH.",
    ),
    "landlock": (
        "The accident guard: a process can write to its private folder only, has no TCP, and may make listed system "
        "calls only.",
        "It stops a program from doing harm by mistake. It does not hide files that you may read, the names of your "
        "processes, and what the report lists: it is no boundary against hostile code.",
        "Install bubblewrap and libseccomp. If user namespaces are refused, the report says how to allow them.",
    ),
    "none": (
        "Nothing isolates the processes; they still end with the run, and their memory and output are limited.",
        "They may do everything that you may do, so a verdict on hostile code is worthless.",
        "Do not use --sandbox none unless you trust the kernel, the file and llama.cpp.",
    ),
}


def explanations() -> dict[str, Explanation]:
    """Return id → explanation for every id that messages and reports show."""
    return {e.id: e for e in _all()}


def _all() -> Iterator[Explanation]:
    from ..diagnosis.faults import FAULTS
    from ..diagnosis.observed import OBSERVED
    from ..gguf.rules import RULES
    from ..kernels.families import FAMILIES
    from ..kernels.family import Family
    from ..kernels.ladder import KERNELS
    from ..kernels.spec import KernelSpec

    for verdict, (code, what, fix) in _VERDICTS.items():
        yield Explanation(verdict.replace(" ", "-"), "verdicts", what, f"The exit code is {code}.", fix)
    for culprit, (what, why, fix) in _CULPRITS.items():
        yield Explanation(culprit, "culprits", f"At fault: {CULPRITS[culprit]}. {what}", why, fix)  # type: ignore[index]
    for name, (what, why, fix) in _SANDBOXES.items():
        yield Explanation(name, "sandboxes", what, why, fix)
    shipped: list[Family | KernelSpec] = [*FAMILIES.values(), *KERNELS.values()]
    for kernel in shipped:
        what = _sentence(kernel.title)
        yield Explanation(
            kernel.name,
            "kernels",
            what,
            "Kernels of this project are examples to compare yours with.",
            f"Verify it with --kernel {kernel.name}; `gguf-verify export-kernel` writes a kernel as a header.",
        )
    for m in MESSAGES.values():
        yield Explanation(m.id, "messages", m.what, m.why, m.fix)
    for fault in FAULTS:
        why = "The diagnosis simulated a kernel with this fault; this kernel's outputs match it."
        yield Explanation(fault.id, "faults", _sentence(fault.words), why, _sentence(fault.fix))
    for seen in OBSERVED.values():
        yield Explanation(seen.id, "faults", _sentence(seen.words), seen.how, _sentence(seen.fix))
    for rule in sorted(RULES.values(), key=lambda rule: rule.number):
        what = f"{sentence(rule.why)} ({_EFFECTS[rule.effect]})."
        yield Explanation(rule.id, "findings", what, rule.cause, rule.cure)


def _sentence(words: str) -> str:
    return f"{sentence(words)}."


def find_explanation(given: str) -> Explanation:
    """Return the explanation of an id; a finding's number or slug alone is enough. Raises UsageError."""
    from ..gguf.rules import RULES

    known = explanations()
    by_name = {name.lower(): e for name, e in known.items()}
    for rule in RULES.values():
        by_name |= {rule.slug: known[rule.id], rule.id[:8].lower(): known[rule.id]}
    name = given.strip("[]").lower().replace(" ", "-")
    if name not in by_name:
        # Of a number, a similar one is no hint: GGUF-999 is not a misspelled GGUF-129.
        near = nearest(name, by_name) if not re.fullmatch(r"[a-z]*-?[0-9]+", name) else ""
        raise UsageError(f"unknown id '{printable(given, 80)}'; {near}`gguf-verify explain` lists all ids", "usage")
    return by_name[name]


def build_parser() -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog="gguf-verify explain",
        description="Explain an id of a message, finding, fault, culprit, sandbox or verdict; without an id, list all "
        "ids.",
    )
    parser.add_argument("id", nargs="?", metavar="ID", help="an id, such as unknown-kernel, mismatch or GGUF-013")
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


COMMAND = Command("explain", "explain an id of a message or report, and what to do about it", build_parser, run)
