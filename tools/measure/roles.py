"""Five roles, played by the commands that the pages in docs/ print: times, exit codes, and the recorded terminal.

Each role has a fresh folder and an empty cache, and each command a pseudo-terminal of 100 columns. A role's clock is
the time of its commands: reading and typing are not counted.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gguf_verify.gguf.model import open_model
from gguf_verify.hosts.compiler import cpu_name
from gguf_verify.support.command_line import cores
from gguf_verify.support.errors import UsageError
from gguf_verify.support.paths import CHECKOUT

from . import markdown
from .measure import Measure
from .terminal import run_at_terminal

#: The names that the publisher's page gives to the real model, to a smaller one, and to its source.
REAL, SMALL, SOURCE = "gemma-3-270m-Q4_K_M.gguf", "model-Q4_0.gguf", "model-f16.gguf"
FIXTURE = "fixtures/tiny-Q4_0.gguf"


@dataclass(frozen=True)
class Command:
    """The first command of the page that a pattern finds.

    Args:
        pattern: a regular expression.
        exit_code: the expected one.
        answers: whether its result is useful by itself.
    """

    pattern: str
    exit_code: int = 0
    answers: bool = True


@dataclass(frozen=True, eq=False)
class Role:
    """A role, and its steps: commands, and changes of files between them, which are given the folder and the page.

    Args:
        first, verified, total: goals in seconds for the first useful answer, VERIFIED, and all commands.
        names: names on the page → those that are used instead.
    """

    name: str
    page: str
    steps: tuple[Command | Callable[[Path, str], object], ...]
    first: float | None = None
    verified: float | None = None
    total: float | None = None
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Played:
    """A command that was played: its seconds, exit code and expectation, and what the terminal showed at its end."""

    command: str
    seconds: float
    exit_code: int
    expected: Command
    shown: str

    @property
    def verified(self) -> bool:
        """Whether the command verified something on a model."""
        return self.exit_code == 0 and bool(re.search(r"^VERIFIED(?! ON RANDOM)", self.shown, re.MULTILINE))


# ---- changes of files ------------------------------------------------------------------------------------------------


def block(file: str, holds: str) -> Callable[[Path, str], object]:
    """Write the code block of the page that contains a text."""

    def write(folder: Path, page: str) -> None:
        found = [code for code in re.findall(r"^```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) if holds in code]
        if not found:
            raise UsageError(f"the page has no code block that contains {holds!r}")
        (folder / file).write_text(found[0])

    return write


def edit(file: str, old: str, new: str) -> Callable[[Path, str], object]:
    """Replace a text in a file."""

    def change(folder: Path, page: str) -> None:
        text = (folder / file).read_text()
        if old not in text:
            raise UsageError(f"{file} does not contain {old!r}")
        (folder / file).write_text(text.replace(old, new))

    return change


def copy(source: str, file: str) -> Callable[[Path, str], object]:
    """Copy a file of the checkout."""
    return lambda folder, page: shutil.copy(CHECKOUT / source, folder / file)


def product(*rows: int) -> Callable[[Path, str], object]:
    """Write a product as an engine would, x float32[7, 256] and y float32[7, 256], with these two rows of the weights
    exchanged."""

    def write(folder: Path, page: str) -> None:
        with open_model(folder / FIXTURE) as model:
            tensor = model.tensors["blk.0.attn_q.weight"]
            assert tensor.type.format is not None
            blocks = tensor.raw.reshape(-1, tensor.type.format.block_bytes)
            weights = np.asarray(tensor.type.format.decode(blocks), np.float32).reshape(tensor.n_rows, tensor.k)
        if rows:
            weights[[*rows]] = weights[[*rows[::-1]]]
        x = np.random.default_rng(0).standard_normal((7, weights.shape[1])).astype(np.float32)
        x.tofile(folder / "x.f32")
        (x @ weights.T).tofile(folder / "y.f32")

    return write


ROLES = (
    Role("author of a kernel", "tutorials/kernel-author.md", (
        Command(" new-kernel "), Command("^gguf-verify kernel "), Command("^cp ", answers=False),
        block("my_kernel.py", "def gemm"), Command(r"my_kernel\.py:gemm --rungs layers$", 1),
        edit("my_kernel.py", "np.stack(", "np.concatenate("), Command(r"--kernel my_kernel\.py:gemm$"),
    ), first=60, verified=300),
    Role("maintainer of an engine", "tutorials/engine-maintainer.md", (
        product(5, 9), Command(" judge ", 1), product(), Command(" judge "),
        copy("examples/numpy_q4_0.py", "verify_kernel.py"), Command(r"verify_kernel\.py:gemm --rungs blocks,layers"),
        Command("^pytest "),
    )),
    Role("publisher", "tutorials/model-publisher.md", (
        copy("README.md", "text.txt"), Command(r"^gguf-verify audit \S+$"), Command("^gguf-verify backend "),
        Command("^gguf-verify cost "),
    ), total=300),
    Role("student", "tutorials/student.md", (
        Command(" audit "), Command("q8_1_naive"), Command("^cp ", answers=False),
        edit("mine.cu", " - 8.0f * from_half(xb.s)", ""), Command("mine.cu:gemm", 1),
    )),
    Role("maintainer of a backend", "backends.md", (
        Command("^gguf-verify devices", answers=False), Command("^gguf-verify backend "),
    ), names={"MODEL.gguf": FIXTURE, "Vulkan0": "CPU"}),
)  # fmt: skip


# ---- playing ---------------------------------------------------------------------------------------------------------


def commands_of(page: str) -> list[str]:
    """The commands that a page prints: its indented lines outside of fences, without comments."""
    outside = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r"\s+#.*$", "", line) for line in re.findall(r"^    (\S.*)$", outside, re.MULTILINE)]


def find(command: Command, page: str, names: Mapping[str, str]) -> str:
    """The command on the page, with the names that are used. Raises UsageError if there is none."""
    line = next((line for line in commands_of(page) if re.search(command.pattern, line)), None)
    if line is None:
        raise UsageError(f"the page prints no command that fits {command.pattern!r}")
    return " ".join(names.get(word, word) for word in line.split(" "))


def play(role: Role, names: Mapping[str, str]) -> Iterator[Played]:
    """Play a role in a fresh folder. Raises UsageError if its page lacks a command."""
    page = (CHECKOUT / "docs" / role.page).read_text()
    folder = Path(tempfile.mkdtemp(prefix="role-"))
    try:
        for name, there in (("fixtures", "fixtures"), ("models", "fixtures"), ("examples", "examples")):
            (folder / name).symlink_to(CHECKOUT / there)
        (folder / ".venv").symlink_to(sys.prefix)
        for step in role.steps:
            if not isinstance(step, Command):
                step(folder, page)
                continue
            command = find(step, page, {**names, **role.names})
            code, seconds, shown = run_at_terminal(command, folder)
            yield Played(find(step, page, role.names), seconds, code, step, shown)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- the page --------------------------------------------------------------------------------------------------------


def goal(seconds: float | None, most: float | None) -> str:
    """A time and whether it is within its goal."""
    words = "–" if seconds is None else f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if most is None:
        return words
    return f"{words} (goal {most:g} s{'' if seconds is not None and seconds <= most else ': missed'})"


def tables(found: Mapping[Role, list[Played]]) -> str:
    """The times of the roles, and of their commands, as Markdown."""
    roles, commands = [], []
    for role, played in found.items():
        first = verified = None
        clock = 0.0
        for one in played:
            clock += one.seconds
            good = one.exit_code == one.expected.exit_code
            first = clock if first is None and good and one.expected.answers else first
            verified = clock if verified is None and one.verified else verified
            told = f"{one.exit_code}" + ("" if good else f", not {one.expected.exit_code}")
            commands.append((role.name, f"`{one.command}`", told, goal(one.seconds, None)))
        roles.append((role.name, goal(first, role.first), goal(verified, role.verified), goal(clock, role.total)))
    made = markdown.table(("role", "first useful answer", "VERIFIED", "all commands"), roles)
    return f"{made}\n\n{markdown.table(('role', 'command', 'exit code', 'time'), commands)}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measure."""
    add = parser.add_argument
    add("roles", nargs="*", metavar="ROLE", help=f"of {', '.join(repr(role.name) for role in ROLES)} (default: all)")
    add("--model", type=Path, metavar="FILE", help="the publisher's model (default: the fixture)")
    add("--source", type=Path, metavar="FILE", help="its source, for cost (default: both of the fixtures)")
    add("--record", type=Path, metavar="FILE", help="write what the terminal showed into this file")
    add("--write", action="store_true", help="write the tables into docs/benchmarks.md; of all roles")


def run(args: argparse.Namespace) -> int:
    """Play the roles; returns 0 if each command ended with the expected exit code, else 1. Raises UsageError."""
    known = {role.name: role for role in ROLES}
    if wrong := [name for name in args.roles if name not in known]:
        raise UsageError(f"unknown role {wrong[0]!r}; known roles: {', '.join(known)}")
    if args.write and args.roles:
        raise UsageError("--write writes the table of all roles: name none")
    model = str(args.model.absolute()) if args.model else FIXTURE
    small, source = (model, str(args.source.absolute())) if args.source else (FIXTURE, "fixtures/tiny-F16.gguf")
    found: dict[Role, list[Played]] = {}
    load, recorded = os.getloadavg()[0], ""
    for name in args.roles or known:
        played = found[known[name]] = []
        for one in play(known[name], {REAL: model, SMALL: small, SOURCE: source} if name == "publisher" else {}):
            played.append(one)
            print(f"{name}: {one.command}: exit code {one.exit_code}, {one.seconds:.1f} s", flush=True)
            recorded += f"# {name}\n$ {one.command}\n{one.shown}[exit code {one.exit_code}, {one.seconds:.1f} s]\n\n"
    loads = f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    about = f"{cores()} cores of {cpu_name()}, {datetime.date.today()}, {loads}"
    if args.model:
        about += f"; the publisher's model has {args.model.stat().st_size / 1e6:.0f} MB"
    made = f"{about}:\n\n{tables(found)}"
    print(made)
    if args.record:
        for file, name in ((args.model, REAL), (args.source, SOURCE)):
            recorded = recorded if file is None else recorded.replace(str(file.absolute()), name)
        args.record.write_text(recorded)
    if args.write:
        markdown.fill(markdown.BENCHMARKS, {"roles": made}, "bench")
    return int(any(one.exit_code != one.expected.exit_code for played in found.values() for one in played))


MEASURE = Measure("roles", "the first minutes of five roles", str(__doc__), add_arguments, run)
