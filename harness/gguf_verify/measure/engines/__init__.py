"""Engines: the kernels of inference engines, verified through their adapters, and the page docs/engines.md.

    gguf-verify measure engines --device cpu          # what a machine without a GPU can run
    gguf-verify measure engines --device cuda         # on a card
    gguf-verify measure engines --from other.json     # take over what another machine measured

examples/engines/engines.toml lists them, and findings.toml what was found; examples/engines/build.py fetches nothing,
but compiles and lays out what was fetched. The exit code is 1 where a row is neither verified nor explained by a
finding.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from ...hosts import make_host
from ...support.command_line import cores
from ...support.errors import EnvironmentFault
from ...support.version import project_version
from ..measure import Measure
from . import page
from .catalogue import Catalogue, Device, read
from .runs import NOT_RUN, Measured, Row, repeat, run_kernel, today

_PACKAGES = ("torch", "triton", "tinygrad", "gguf", "numpy", "cupy-cuda13x", "cupy-cuda12x")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measure."""
    add = parser.add_argument
    add("--device", choices=tuple(page.NAMES), help="measure the kernels that run there (default: none)")
    add("--only", default="", metavar="TEXT", help="only kernels whose engine, name or adapter contains this text")
    add("--jobs", type=int, default=max(1, cores() // 2), metavar="N", help="kernels at a time (default: %(default)s)")
    add("--options", default="", metavar="WORDS", help="further options of `gguf-verify kernel`, such as '--probes brief'")
    add("--results", type=Path, default=page.RESULTS, metavar="FILE", help="the results (default: docs/engines.json)")
    add("--from", dest="other", type=Path, metavar="FILE", help="take over the devices of another file of results")
    add("--no-page", action="store_true", help="write the results alone")


def run(options: argparse.Namespace) -> int:
    """Measure, and write results and page. Raises HarnessError."""
    catalogue = read()
    results = page.load(options.results)
    if options.other is not None:
        results |= page.load(options.other)
    if options.device:
        measured = measure(catalogue, options.device, options.only, options.jobs, options.options.split())
        results[options.device] = _merged(results.get(options.device), measured)
    page.save(results, options.results)
    if not options.no_page:
        page.PAGE.write_text(page.render(results, catalogue))
    left = page.unexplained(results, catalogue)
    for row in left:
        print(f"{row.engine}, {row.adapter}, {row.type}: {row.verdict}, and no finding explains it: {row.says}")
    return 1 if left else 0


def measure(catalogue: Catalogue, device: Device, only: str, jobs: int, more: list[str]) -> Measured:
    """Run the kernels and the repetitions of one device."""
    def wanted(*names: str) -> bool:
        return any(only.lower() in name.lower() for name in names)

    pairs = [(e, k) for e in catalogue.engines for k in e.kernels if device in k.hosts and wanted(e.name, k.name, k.adapter)]
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run_kernel, engine, kernel, device, more) for engine, kernel in pairs]
        said = {f.id: pool.submit(repeat, f, 120) for f in catalogue.findings
                if f.repetition and device in f.hosts and wanted(f.engine, f.id)}  # fmt: skip
        rows = []
        for future in futures:
            rows += future.result()
            for row in rows[-len(future.result()) :]:
                print(f"{row.engine}, {row.adapter}, {row.type}: {row.verdict} {row.says[:150]}", file=sys.stderr, flush=True)
        repetitions = {name: future.result() for name, future in said.items()}
    return Measured(
        device=_device(device), date=today(), versions=_versions(), rows=tuple(rows), repetitions=repetitions,
    )  # fmt: skip


def _merged(before: Measured | None, now: Measured) -> Measured:
    """What was measured now, with the rows and repetitions that were not tried now, or could not be."""
    if before is None:
        return now
    rows: dict[tuple[str, str], Row] = {(row.adapter, row.type): row for row in before.rows}
    for row in now.rows:
        if row.verdict != NOT_RUN or (row.adapter, row.type) not in rows:
            rows[row.adapter, row.type] = row
    repetitions = {**before.repetitions, **now.repetitions}
    return Measured(
        device=now.device, date=now.date, versions=now.versions, rows=tuple(rows.values()), repetitions=repetitions,
    )  # fmt: skip


def _device(device: Device) -> str:
    try:
        info = make_host("gpu" if device == "cuda" else "cpu").info()
    except EnvironmentFault as error:
        return f"unknown ({error})"
    return info.words


def _versions() -> Mapping[str, str]:
    found = {"gguf-verify": project_version(), "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


MEASURE = Measure("engines", "the kernels of inference engines, and docs/engines.md", __doc__ or "", add_arguments, run)
