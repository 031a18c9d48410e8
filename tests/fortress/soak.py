"""Hostile kernels in a row: what do they leave in the verifier, on the disk and among the processes?

    python -m tests.fortress.soak --count 200 --seconds 600

runs so many in one process through the Python API, then so many through the command line, each kind for at most so
long, and prints what is left, and the memory and open descriptors of the verifier's process at the start, in the middle
and at the end. The exit code is 1 where anything is left or grows, or where the time does not suffice.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.hostile import KERNEL as TEXT
from tests.support.hostile import SANDBOX, Arena, Attack, shared, single
from tests.support.hostile_ground import Ground
from tests.support.hostile_kernels import attacks

#: Runs before the first look: by then everything that is loaded and compiled once is there.
SETTLED = 8
#: Bytes by which memory may grow between the middle and the end: the allocator keeps some.
_MOST_GROWTH = 24 << 20
_PROCESS = Path(__file__).with_name("soak_process.py")

#: Attacks that take minutes or gigabytes by themselves.
_LEFT_OUT = frozenset({"fills_memory", "fills_shared_memory", "fills_the_disk", "bombs", "kills_everybody"})
#: Of each kind one, for a short soak.
SHORT = (
    "leaves_silently", "leaves_orphans", "respawns", "holds_the_link_open", "sends_garbage_5", "sends_garbage_2",
    "writes_everywhere", "forges_by_last_words", "sends_descriptors", "closes_everything", "litters",
    "kills_the_others",
)  # fmt: skip


@dataclass(frozen=True)
class Look:
    """The verifier's process at one time: bytes of resident memory, open descriptors, child processes, and entries of
    its folder of temporary files."""

    run: int
    memory: int
    descriptors: int
    children: int
    temporary: int

    def __str__(self) -> str:
        return (
            f"after {self.run} kernels: {self.memory / 2**20:.0f} MiB, {self.descriptors} descriptors, "
            f"{self.children} children, {self.temporary} temporary files"
        )


@dataclass(frozen=True)
class Soaked:
    """The result of many kernels in one process. `breaches` is empty if nothing is left and nothing grows."""

    made: int
    exits: dict[str, int]
    looks: list[Look]
    breaches: list[str]


def corpus() -> list[Attack]:
    """The attacks of a soak, in the order in which they are made again and again."""
    return [a for a in dict.fromkeys([*single(), *shared()]) if a.name not in _LEFT_OUT]


def one_process(arena: Arena, made: list[Attack], count: int, seconds: float) -> Soaked:
    """Verify `count` kernels that attack, one after the other, in one process through the Python API."""
    for attack in dict.fromkeys(made):
        folder = arena.work / attack.name
        shutil.copytree(arena.work / "hostile_kernels", folder / "hostile_kernels")
        (folder / "kernel.py").write_text(TEXT)
        moment = attack.moments[0]
        (folder / "targets.json").write_text(json.dumps(arena.targets([attack.name], moment)))
    asked, said = arena.said("soak"), arena.said("soaked")
    kernels = [[a.name, a.limit] for a in itertools.islice(itertools.cycle(made), count)]
    asked.write_text(json.dumps({
        "kernels": kernels, "work": str(arena.work), "model": str(arena.model), "settled": min(SETTLED, count // 3),
        "temporary": str(arena.tmp), "report": str(arena.report), "seconds": seconds, "sandbox": list(SANDBOX),
    }))  # fmt: skip
    run = [sys.executable, "-P", str(_PROCESS), str(asked), str(said)]
    outcome = arena.watch(run, made, "never", exits=[1], seconds=seconds + 60.0)
    # files about the kernels' moments are in folders of their own
    breaches = list(outcome.breaches)
    if not said.exists():
        return Soaked(0, {}, [], [*breaches, f"it did not come to its end: {outcome.described()}"])
    told = json.loads(said.read_text())
    looks = [Look(**look) for look in told["looks"]]
    breaches += told["breaches"]
    if set(told["exits"]) <= {"UsageError"}:
        breaches.append("no kernel came as far as to be called")
    if told["made"] < count:
        breaches.append(f"{told['made']} of {count} kernels in {seconds:g} s")
    return Soaked(told["made"], told["exits"], looks, breaches + grown(looks))


def grown(looks: list[Look]) -> list[str]:
    """Growth between the looks, in words."""
    found = []
    if len(looks) < 3:
        return ["too few looks"]
    start, middle, end = looks[0], looks[len(looks) // 2], looks[-1]
    if end.memory - middle.memory > _MOST_GROWTH:
        found.append(f"memory grows from {middle.memory:,} to {end.memory:,} bytes")
    if end.descriptors > start.descriptors:
        found.append(f"descriptors grow from {start.descriptors} to {end.descriptors}")
    found += [f"{look.children} children after {look.run} kernels" for look in looks if look.children]
    if end.temporary > start.temporary:
        found.append(f"temporary files grow from {start.temporary} to {end.temporary}")
    return found


def command_lines(ground: Ground, folder: Path, count: int, seconds: float) -> list[str]:
    """Verify `count` kernels, each by a command of its own; returns the breaches."""
    found: list[str] = []
    end = time.monotonic() + seconds
    made = 0
    for number, attack in zip(range(count), itertools.cycle(corpus()), strict=False):
        if time.monotonic() > end:
            break
        with Arena(ground, folder / f"run{number}") as arena:
            outcome = arena.run([attack], attack.moments[0])
        found += [f"{attack.name}: {breach}" for breach in outcome.breaches]
        made += 1
    if made < count:
        found.append(f"{made} of {count} commands in {seconds:g} s")
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fortress.soak", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="kernels of each kind of run (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each kind, at most (default: %(default)g)")
    parser.add_argument("--only", choices=("api", "commands"), help="one kind of run alone")
    args = parser.parse_args(argv)
    attacks()
    bad: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        ground = Ground(Path(temporary) / "ground")
        if args.only != "commands":
            start = time.monotonic()
            with Arena(ground, Path(temporary) / "api") as arena:
                soaked = one_process(arena, corpus(), args.count, args.seconds)
            print(f"one process: {soaked.made} kernels in {time.monotonic() - start:.0f} s, exit codes {soaked.exits}")
            for look in soaked.looks:
                print(f"  {look}")
            bad += soaked.breaches
        if args.only != "api":
            start = time.monotonic()
            bad += (found := command_lines(ground, Path(temporary), args.count, args.seconds))
            print(f"commands: {time.monotonic() - start:.0f} s, {len(found)} breaches")
    for line in bad:
        print(f"  {line}")
    print("something is left, grows or was forged" if bad else "0 processes, 0 files, flat memory, no pass")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
