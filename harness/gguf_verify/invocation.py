"""A run as a command line of `gguf-verify`, without the defaults.

It always has the seed, since each run has its own. It repeats a run wherever that was started: at the command line,
from Python, by pytest or in a night. It does not name the files that reports are written to.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from .hosts.choice import HOST_CHOICES
from .kernels.families import DEFAULT_KERNEL, FAMILIES
from .kernels.interface import Candidate
from .kernels.ladder import KERNELS
from .results.options import EFFORTS, Options
from .rungs.drawn import DRAWN_RUNGS, Drawn
from .rungs.opening import AnyKernel, Request
from .rungs.registry import rungs_for
from .support.command_line import command_line
from .support.durations import in_words

#: Options of a verification that `identify` does not take: of a graph, of the rungs, and on how thoroughly they judge.
_OF_RUNGS = (
    "-p", "-n", "-c", "--repack", "--rungs", "--only-call", "--order", "--effort", "--probes", "--thorough",
    "--budget", "--sanitize", "--exitfirst",
)  # fmt: skip


def command_of(request: Request, prompt_file: Path | None = None, identify: bool = False) -> str:
    """The command line of a request; "" if there is none, since the kernel has no name that another process knows.

    Args:
        prompt_file: the file that the prompt was read from.
        identify: identify definitions instead of climbing rungs.
    """
    path, host, rungs, options = request.path, request.host, request.rungs, request.options
    name = _name_of(request.kernel)
    if name is None:
        return ""
    usual, flags = Options(seed=options.seed), dict[str, str | None]()
    drawn = isinstance(path, Drawn)
    cost = request.source is not None and tuple(rungs or ()) == ("bytes",)
    if isinstance(path, Drawn):
        sizes = {"-M": path.m, "-N": path.n, "-K": path.k}
        flags |= {"--type": ",".join(path.types)} if path.types else {}
        flags |= {flag: ",".join(map(str, of)) for flag, of in sizes.items() if of}
    elif name != DEFAULT_KERNEL and not identify:
        flags["--kernel"] = name
    if (of_host := host if isinstance(host, str) else host.info().name) in HOST_CHOICES and of_host != "auto":
        flags["--host"] = of_host
    if (
        not cost
        and rungs is not None
        and tuple(rungs) != tuple(name for name in rungs_for() if not drawn or name in DRAWN_RUNGS)
    ):
        flags["--rungs"] = ",".join(rungs)
    if prompt_file is not None:
        flags["-f"] = str(prompt_file)
    elif options.prompt != usual.prompt:
        flags["-p"] = options.prompt
    values = {
        "-n": "n_predict", "-c": "ctx_size", "-s": "seed", "-t": "threads", "--tensor": "tensor",
        "--reference": "reference", "--llama": "llama", "--order": "order",
        "--time-limit": "time_limit",
        "--kernel-time-limit": "kernel_time_limit", "--only-call": "only_call", "--sandbox": "sandbox",
        "--kernel-memory": "kernel_memory", "--exact-on": "exact_on",
    }  # fmt: skip
    for flag, field in values.items():
        value = getattr(options, field)
        if field == "seed" or value != getattr(usual, field):
            flags[flag] = f"{value:g}" if isinstance(value, float) else str(value)
    effort = {"probes": options.probes, "thorough": options.thorough}
    named = next((name for name, sets in EFFORTS.items() if sets == effort), None)
    if named is None:  # only in Python
        flags |= {"--probes": options.probes} | ({"--thorough": None} if options.thorough else {})
    elif named != "full":
        flags["--effort"] = named
    if options.budget is not None:
        flags["--budget"] = in_words(options.budget)
    if options.declare:
        flags["--declare"] = options.declare
    flags |= {
        flag: ",".join(named) for flag, named in (("--import", options.imports), ("--load", options.loads)) if named
    }
    switches = {
        "--repack": options.repack,
        "--sanitize": options.sanitize,
        "--exitfirst": options.exit_first,
    }
    flags |= {flag: None for flag, asked in switches.items() if asked}
    text = "--text" if cost else "--source-text"
    files = {"--source": request.source, text: request.source_text, "--waivers": request.waivers}
    flags |= {flag: str(file) for flag, file in files.items() if file is not None}
    if identify:
        flags = {flag: value for flag, value in flags.items() if flag not in _OF_RUNGS}
        return command_line(name, flags, "identify", "" if drawn else str(path))
    return command_line(name, flags, "kernel") if drawn else command_line(str(path), flags, "cost" if cost else "")


def _name_of(kernel: AnyKernel) -> str | None:
    """The value of `--kernel`."""
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
