"""A run as a command line: what `verify` was asked for, in the words of `gguf-verify`, without what is the default.

The seed is always there, since each run has its own. It is how a run is repeated wherever it was started: at the
command line, from Python, by pytest or in a night. Files
that reports are written to are no part of it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .hosts.base import Host
from .hosts.choice import HOST_CHOICES
from .kernels.families import DEFAULT_KERNEL, FAMILIES
from .kernels.interface import Candidate
from .kernels.ladder import KERNELS
from .results.options import Options
from .rungs import rungs_for
from .rungs.drawn import DRAWN_RUNGS, Drawn
from .support.command_line import command_line
from .support.durations import in_words


def command_of(
    path: Path | str | Drawn, kernel: Candidate | str | Callable[..., Any], host: Host | str,
    rungs: Sequence[str] | None, options: Options, prompt_file: Path | None = None, *, identify: bool = False,
    source: Path | str | None = None,
    source_text: Path | str | None = None, waivers: Path | str | None = None,
) -> str:  # fmt: skip
    """The command line that asks for a run; "" where none can: the kernel has no name that another process knows.

    Args:
        rungs: None for those of what the kernel computes.
        prompt_file: where the prompt was read from.
        identify: definitions are identified instead.
        source, source_text, waivers: as `verify` takes them.
    """
    name = _name_of(kernel)
    if name is None:
        return ""
    usual, flags = Options(seed=options.seed), dict[str, str | None]()
    drawn = isinstance(path, Drawn)
    if isinstance(path, Drawn):
        sizes = {"-M": path.m, "-N": path.n, "-K": path.k}
        flags |= {"--type": ",".join(path.types)} if path.types else {}
        flags |= {flag: ",".join(map(str, of)) for flag, of in sizes.items() if of}
    elif name != DEFAULT_KERNEL:
        flags["--kernel"] = name
    if (of_host := host if isinstance(host, str) else host.info().name) in HOST_CHOICES and of_host != "auto":
        flags["--host"] = of_host
    if identify:
        flags["--identify"] = None
    elif rungs is not None and tuple(rungs) != tuple(name for name in rungs_for() if not drawn or name in DRAWN_RUNGS):
        flags["--rungs"] = ",".join(rungs)
    if prompt_file is not None:
        flags["-f"] = str(prompt_file)
    elif options.prompt != usual.prompt:
        flags["-p"] = options.prompt
    values = {
        "-n": "n_predict", "-c": "ctx_size", "-s": "seed", "-t": "threads", "--tensor": "tensor",
        "--reference": "reference", "--llama": "llama", "--probes": "probes", "--time-limit": "time_limit",
        "--kernel-time-limit": "kernel_time_limit", "--only-call": "only_call", "--sandbox": "sandbox",
        "--kernel-memory": "kernel_memory", "--exact-on": "exact_on",
    }  # fmt: skip
    for flag, field in values.items():
        value = getattr(options, field)
        if field == "seed" or value != getattr(usual, field):
            flags[flag] = f"{value:g}" if isinstance(value, float) else str(value)
    if options.budget is not None:
        flags["--budget"] = in_words(options.budget)
    if options.declare:
        flags["--declare"] = options.declare
    flags |= {
        flag: ",".join(named) for flag, named in (("--import", options.imports), ("--load", options.loads)) if named
    }
    switches = {
        "--repack": options.repack,
        "--thorough": options.thorough,
        "--sanitize": options.sanitize,
        "--exitfirst": options.exit_first,
    }
    flags |= {flag: None for flag, asked in switches.items() if asked}
    files = {"--source": source, "--source-text": source_text, "--waivers": waivers}
    flags |= {flag: str(file) for flag, file in files.items() if file is not None}
    return command_line(name, flags, "kernel") if drawn else command_line(str(path), flags)


def _name_of(kernel: Candidate | str | Callable[..., Any]) -> str | None:
    """As `--kernel` takes it."""
    if isinstance(kernel, str):
        return kernel
    if isinstance(kernel, Candidate):
        return kernel.name if kernel.name in FAMILIES or kernel.name in KERNELS else None
    name, module = getattr(kernel, "__qualname__", ""), getattr(kernel, "__module__", "")
    try:
        file = inspect.getsourcefile(kernel)
    except TypeError:
        return None
    named = getattr(sys.modules.get(module), name, None) if name.isidentifier() else None
    there = file is not None and file.endswith(".py") and Path(file).is_file()  # a notebook's files are names alone
    return f"{file}:{name}" if there and named is kernel else None
