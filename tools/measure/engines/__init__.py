"""Kernels of inference engines, verified through adapters, and the page docs/engines.md.

    python -m tools.measure engines --device cpu          # the kernels that run without a GPU
    python -m tools.measure engines --device cuda         # the kernels that run on a GPU
    python -m tools.measure engines --from other.json     # import the results of another machine

examples/engines/engines.toml lists the engines, and findings.toml the findings. examples/engines/build.py compiles the
fetched sources; it fetches nothing itself. The exit code is 1 if a row is neither verified nor explained by a finding.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import metadata

from msgspec import structs

from gguf_verify.hosts.choice import make_host
from gguf_verify.support.command_line import cores
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.output import write_lines
from gguf_verify.support.version import project_version

from ..measure import Measure, add_results
from . import page
from .catalogue import Catalogue, Device, Engine, Finding, Kernel, read
from .runs import NOT_RUN, Measured, Output, Row, repeat, run_kernel, today

#: Number of weight types that one process verifies.
TOGETHER = 5
_AND = " and "
_PACKAGES = ("torch", "triton", "tinygrad", "gguf", "numpy", "cupy-cuda13x", "cupy-cuda12x")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measure."""
    add = parser.add_argument
    add("--device", choices=tuple(page.NAMES), help="measure the kernels that run on this device (default: none)")
    add(
        "--only",
        default="",
        metavar="TEXT",
        help="only measure kernels whose engine, name or adapter contains this text",
    )
    add(
        "--jobs",
        type=int,
        default=max(1, cores() // 2),
        metavar="N",
        help="number of kernels at a time (default: %(default)s)",
    )
    add("--seconds", type=int, default=1 << 20, metavar="N", help="start no more kernels after N seconds")
    add(
        "--options",
        default="",
        metavar="WORDS",
        help="further options of `gguf-verify kernel`, such as '--effort quick'",
    )
    add_results(parser, page.RESULTS, "import the devices of another file of results")


def run(options: argparse.Namespace) -> int:
    """Measure, and write the results and the page. Raises HarnessError."""
    catalogue = read()
    results = page.load(options.results)
    if options.other is not None:
        results |= page.load(options.other)
    if options.device:
        before = results.get(options.device)

        def keep(measured: Measured) -> None:
            results[options.device] = merged(before, measured, catalogue)
            page.save(results, options.results)

        more = options.options.split()
        measure(catalogue, options.device, options.only, options.jobs, options.seconds, more, keep)
    page.save(results, options.results)
    if not options.no_page:
        page.PAGE.write_text(page.render(results, catalogue))
    left = page.unexplained(results, catalogue)
    for row in left:
        write_lines(f"{row.engine}, {row.adapter}, {row.type}: {row.verdict}, and no finding explains it: {row.says}")
    return 1 if left else 0


def measure(
    catalogue: Catalogue, device: Device, only: str, jobs: int, seconds: int, more: list[str],
    keep: Callable[[Measured], None],
) -> None:  # fmt: skip
    """Run the kernels and the repetitions of one device, the shortest first.

    Args:
        only: part of the name of a kernel, its adapter, its engine or a finding.
        seconds: start nothing after this time.
        more: further options of `gguf-verify kernel`.
        keep: called after each process with the results so far.
    """

    def wanted(*names: str) -> bool:
        return any(only.lower() in name.lower() for name in names)

    end, rows, repetitions = time.monotonic() + seconds, list[Row](), dict[str, Output]()

    def work(task: tuple[Engine, Kernel] | Finding) -> list[Row] | tuple[str, Output] | None:
        if time.monotonic() > end:
            return None
        return (task.id, repeat(task)) if isinstance(task, Finding) else run_kernel(*task, device, more)

    tasks: list[tuple[Engine, Kernel] | Finding] = [
        f for f in catalogue.findings if f.repetition and device in f.hosts and wanted(f.engine, f.id)
    ]
    tasks += [
        (engine, structs.replace(kernel, types=kernel.types[at : at + TOGETHER]))
        for engine in catalogue.engines for kernel in engine.kernels
        if device in kernel.hosts and wanted(engine.name, kernel.name, kernel.adapter)
        for at in range(0, len(kernel.types), TOGETHER)
    ]  # fmt: skip
    tasks.sort(key=lambda task: 0 if isinstance(task, Finding) else task[1].seconds)
    where, versions = _device(device), _versions()
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(work, task) for task in tasks]):
            made = future.result()
            if isinstance(made, tuple):
                repetitions[made[0]] = made[1]
                print(f"{made[0]}: {made[1].text}", file=sys.stderr, flush=True)
            for row in made if isinstance(made, list) else ():
                rows.append(row)
                print(f"{row.adapter} {row.type}: {row.verdict} {row.says[:150]}", file=sys.stderr, flush=True)
            keep(Measured(
                device=where, date=today(), versions=versions, rows=tuple(rows), repetitions=dict(repetitions),
            ))  # fmt: skip


def merged(before: Measured | None, now: Measured, catalogue: Catalogue) -> Measured:
    """Add earlier rows and repetitions that were not or could not be repeated now, in the catalogue's order."""
    rows: dict[tuple[str, str], Row] = {(row.adapter, row.type): row for row in before.rows} if before else {}
    for row in now.rows:
        if row.verdict != NOT_RUN or (row.adapter, row.type) not in rows:
            rows[row.adapter, row.type] = row
    order = [
        (kernel.adapter, kind) for engine in catalogue.engines for kernel in engine.kernels for kind in kernel.types
    ]
    repetitions = {**(before.repetitions if before else {}), **now.repetitions}
    device, versions = now.device, now.versions
    if before:  # earlier rows may be from another device or other packages
        known = before.device.split(_AND)
        device, versions = _AND.join([*known, *({device} - {*known})]), before.versions | versions
    return structs.replace(
        now, device=device, versions=versions, rows=tuple(rows[key] for key in order if key in rows),
        repetitions=dict(sorted(repetitions.items())),
    )  # fmt: skip


def _device(device: Device) -> str:
    try:
        info = make_host("gpu" if device == "cuda" else "cpu").info()
    except EnvironmentFault as error:
        return f"unknown ({error})"
    return info.words


def _versions() -> dict[str, str]:
    found = {"gguf-verify": project_version(), "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


MEASURE = Measure("engines", "the kernels of inference engines, and docs/engines.md", __doc__ or "", add_arguments, run)
