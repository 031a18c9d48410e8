"""The cost of a verification, from start to exit, on random models of any shape.

    python -m tools.measure bench verify                                # TinyLlama-1.1B's shape
    python -m tools.measure bench verify --shape 8B --layers 4 8 16 --tokens 8 32 103 --type Q4_0 Q4_K_M
    python -m tools.measure bench verify --shape 8B --ray local --gpus 1 2 4
    python -m tools.measure bench verify --results here.json --no-page  # on a machine without matplotlib
    python -m tools.measure bench verify --from here.json               # import the results of another machine

Each combination is a run. The model is made (its random codes and scales need no quantizer) and verified in another
process. Then llama.cpp evaluates the same prompt of the same file with the same backend and threads, once uncounted and
then several times for a median. As in the verification, weights are not repacked, and on a GPU operations are not fused
and no CUDA graphs are used. These evaluations use this project's process for llama.cpp, but request no node of the
graph. The file was just written, so it is in the page cache if memory suffices. A run's memory is the largest sum of
the proportional set sizes of its processes, which includes the mapped file, minus the file's size. The busy shares of
cores, GPUs and the disk are defined in tools/measure/bench/processes.py. Times are in seconds.

The results are kept in docs/benchmarks.json, by device, and shown in docs/benchmarks.md. docs/growth.svg shows time and
memory over layers, width, tokens and GPUs, for runs that differ in nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf_verify.hosts.compiler import cpu_name
from gguf_verify.llama.backends import SHORT
from gguf_verify.llama.library import Llama
from gguf_verify.support import scratch
from gguf_verify.support.command_line import cores
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.support.output import write_lines
from gguf_verify.support.paths import CHECKOUT

from ..measure import add_results
from . import growth, records
from .models import RandomModel, model_file
from .options import add_shape, add_verification, models_of, prompt_of, results_of, shape_fields
from .processes import Measured, measured, visible_gpus

_EVALUATIONS, _MOST_SECONDS = 5, 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `verify`."""
    add = parser.add_argument
    add_shape(parser)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--tokens",
        type=int,
        nargs="+",
        default=[8],
        metavar="N",
        help="tokens of the prompt (8); one run for each value",
    )
    prompt.add_argument("-p", dest="prompt", help="the prompt; every character is a token, a space is three")
    add("-n", type=int, default=16, help="tokens to predict (%(default)s)")
    add_verification(parser)
    add("--thorough", action="store_true", help="judge every element of large matrices")
    add("--ray", metavar="ADDRESS", help="judge in Ray processes: local, or a cluster's address")
    add("--gpus", type=int, nargs="+", metavar="N", help="with --ray: one run with the first N GPUs, for each N")
    add("--options", default="", metavar="WORDS", help="further options of `gguf-verify`, such as '--effort quick'")
    add_results(parser, records.RUNS)


def verify(model: Path, arguments: Sequence[str], **watched: Any) -> tuple[dict[str, Any], Measured]:
    """Return the JSON report of a run, and its cost. Further arguments are those of `measured`. Raises EnvironmentFault
    if there is no report."""
    with scratch.temporary("measure") as folder:
        out = folder / "report.json"
        script = CHECKOUT / "scripts" / "verify_model.py"
        command: list[str | Path] = [sys.executable, script, model, "-o", out, "--seed", "0", *arguments]
        done = measured(command, quiet=True, file=model, **watched)
        if not out.exists():
            raise EnvironmentFault(f"the verification ended with exit code {done.code} and no report")
        return json.loads(out.read_text()), done


def evaluated(model: Path, prompt: str, backend: str, threads: int) -> tuple[int, records.Evaluation]:
    """Return the number of tokens of the prompt, and llama.cpp's own evaluation of it."""
    with Llama() as llama:
        llama.model.open(model, threads, backend=backend)
        tokens = llama.model.tokenize(prompt)
        llama.model.make_context(len(tokens))
        llama.model.generate(tokens, 1)
        begin, times = time.perf_counter(), list[float]()
        while not times or (len(times) < _EVALUATIONS and time.perf_counter() - begin < _MOST_SECONDS):
            start = time.perf_counter()
            llama.model.generate(tokens, 1)
            times.append(time.perf_counter() - start)
    where, seconds = f"{SHORT[backend]}, {threads} threads", float(f"{statistics.median(times):.4g}")
    return len(tokens), records.Evaluation(backend=where, threads=threads, seconds=seconds)


def device_of(gpu: str | None) -> str:
    """Describe a machine, with its GPU if that was used."""
    return f"{cores()} cores of {cpu_name()}{f' and {gpu}' if gpu else ''}"


@dataclass(frozen=True)
class _Work:
    """A run to measure."""

    args: argparse.Namespace
    model: RandomModel
    prompt: str
    gpus: int

    def measure(self, path: Path) -> tuple[str, records.Run]:
        """Return the device and the record."""
        args = self.args
        seen = visible_gpus()
        if self.gpus > len(seen):
            raise EnvironmentFault(f"--gpus {self.gpus}: {len(seen)} GPUs are there")
        used = seen[: self.gpus] if self.gpus else seen if args.ray else seen[:1]
        options = ["-n", str(args.n), "-p", self.prompt, "--host", args.host, "--kernel", args.kernel]
        effort = ["--effort", "thorough"] if args.thorough else []
        options += ["--reference", args.reference, *effort, *shlex.split(args.options)]
        options += ["--ray", args.ray] if args.ray else []
        variables = {"CUDA_VISIBLE_DEVICES": ",".join(used)} if self.gpus else None
        report, done = verify(path, options, gpus=used, variables=variables)
        tokens, llama = evaluated(path, self.prompt, args.reference, cores())
        size = path.stat().st_size
        host = report["environment"]["host"]
        return device_of(None if host["sm"] is None else host["device"]), records.Run(
            **shape_fields(self.model, size), tokens=tokens, predicted=args.n, kernel=args.kernel, host=host["name"],
            verdict=report["verdict"], seconds=round(done.seconds, 2),
            rungs={rung["name"]: round(rung["seconds"], 2) for rung in report["rungs"]},
            above=done.peak - size if done.peak else None,
            thorough=args.thorough, options=args.options, gpus=self.gpus, ray=bool(args.ray),
            processor=_rounded(done.processor), disk=_rounded(done.disk), fetched=done.fetched,
            gpu=_rounded(done.gpu), gpu_memory=done.gpu_memory, llama=llama,
        )  # fmt: skip


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 3)


def run(args: argparse.Namespace) -> int:
    """Measure, save and print. Returns the exit code: 1 if a model was not verified."""
    if args.gpus and not args.ray:
        raise UsageError("--gpus needs --ray: a run without it uses one GPU")
    results, wrong = results_of(args, records.Run), False
    if args.other is None:
        prompts = [args.prompt] if args.prompt is not None else [prompt_of(tokens) for tokens in args.tokens]
        for model in models_of(args):
            with model_file(args.keep, model) as path:
                for prompt, gpus in itertools.product(prompts, args.gpus or [0]):
                    device, done = _Work(args, model, prompt, gpus).measure(path)
                    results = records.merged(results, {device: (done,)})
                    records.save(results, args.results)
                    write_lines(growth.line(done))
                    wrong |= done.verdict != "verified"
    records.save(results, args.results)
    if not args.no_page:
        growth.write_page(results, records.load(records.Planted, records.PLANTED))
    return int(wrong)
