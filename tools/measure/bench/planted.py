"""The share of single wrong codes in a large model that are found, by samples of its matrices and by `--thorough`.

    python -m tools.measure bench planted --shape 8B --layers 2 --count 40

Weights are selected at random, each multiplied weight of the model with the same probability. For each, a kernel that
misreads the lowest bit of this one code (off by one; it recognizes the block by its bytes) is verified on the matrix by
the layers rung, once with samples and once thoroughly. The fault counts as found if the rung fails at the weight's row.
The kernel without the fault is verified too.

The promise is that of concepts.md, "Samples of large matrices": an error of one output of a token is never missed if it
is more than the share of the outputs' size that the report gives. It is taken from the run without the fault, and the
error from the outputs of all calls on the whole matrix, with the fault and without. Below that size, nothing is
promised. The exit code is 1 if a larger fault was not found, or if the correct kernel was not verified.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
from tqdm import tqdm

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import WeightFormat
from gguf_verify.gguf.model import Model, open_model
from gguf_verify.hosts.base import Host
from gguf_verify.hosts.choice import make_host
from gguf_verify.kernels.by_name import find_kernel, on_host
from gguf_verify.kernels.family import FamilyOnHost
from gguf_verify.kernels.interface import Candidate, Kernel
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.rungs import explain
from gguf_verify.rungs.layers import gemm
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.support.output import write_lines
from gguf_verify.verification import verify

from ..inputs import Floats
from ..measure import add_results
from ..one_block import OneBlock, Plan, flipped, low_bits
from . import growth, records
from .models import RandomModel, model_file
from .options import add_shape, add_verification, models_of, prompt_of, results_of, shape_fields
from .verify import device_of

#: Number of random weights that are tried before giving up on one whose code can be wrong alone.
_TRIES = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `planted`."""
    add = parser.add_argument
    add_shape(parser)
    add("--tokens", type=int, default=8, help="tokens of the prompt (%(default)s)")
    add("--count", type=int, default=20, metavar="N", help="number of faults (%(default)s)")
    add("-s", "--seed", type=int, default=0, help="random seed (%(default)s)")
    add_verification(parser)
    add_results(parser, records.PLANTED)


# ---- the fault -------------------------------------------------------------------------------------------------------


def random_fault(model: Model, rng: np.random.Generator) -> Plan:
    """Return a random weight of the model with its code off by one. Raises UsageError if no code can be wrong alone."""
    there = [t for t in model.tensors.values() if len(t.shape) == 2 and t.name != "token_embd.weight"]
    weights = np.array([t.n_rows * t.k for t in there], np.float64)
    for _ in range(_TRIES):
        tensor = there[int(rng.choice(len(there), p=weights / weights.sum()))]
        fmt = tensor.type.weights
        row, at = int(rng.integers(tensor.n_rows)), int(rng.integers(tensor.k))
        if not isinstance(fmt, BlockFormat):
            continue
        block, number = divmod(at, fmt.block_size)
        blocks = np.asarray(tensor.raw).reshape(-1, fmt.block_bytes)
        original = blocks[row * (tensor.k // fmt.block_size) + block].copy()
        if (blocks == original).all(axis=1).sum() > 1:  # the kernel recognizes it by its bytes
            continue
        before = fmt.decode(original[None])[0]
        for bit in low_bits(fmt):
            altered = flipped(original, bit // 8, 1 << bit % 8)
            if np.flatnonzero(fmt.decode(altered[None])[0] != before).tolist() == [number]:
                return Plan("one code off by one", tensor.name, row, block, original, altered, look=True)
    raise UsageError(f"no code of {', '.join(sorted({t.type.name for t in there}))} can be wrong alone")


@dataclass
class _Sizes:
    """The largest error of an output, as a share of the root mean square of its token's outputs."""

    n: int
    largest: float = 0.0

    def take(self, y: Floats, right: Floats) -> None:
        if y.shape[1] == self.n:  # a call with the whole matrix
            exact = right.astype(np.float64)
            size = np.sqrt((exact**2).mean(axis=1))
            share = np.abs(y - exact).max(axis=1, initial=0.0) / np.where(size > 0, size, np.inf)
            self.largest = max(self.largest, float(share.max(initial=0.0)))


class _Measured(OneBlock):
    """Like OneBlock; records the size of the errors."""

    def __init__(self, inner: Kernel, plan: Plan, sizes: _Sizes) -> None:
        super().__init__(inner, plan)
        self._sizes = sizes

    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> Kernel:
        return _Measured(self.inner.of(fmt, m, n, k), self.plan, self._sizes)

    def looked(self, y: Floats, right: Floats) -> None:
        self._sizes.take(y, right)


class _Family(FamilyOnHost):
    """A family all of whose kernels have the fault."""

    def __init__(self, right: FamilyOnHost, plan: Plan, sizes: _Sizes) -> None:
        super().__init__(right.family, right.host, right.root)
        self._faulty: Callable[[Kernel], Kernel] = lambda kernel: _Measured(kernel, plan, sizes)

    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> Kernel:  # type: ignore[override]
        return self._faulty(super().of(fmt, m, n, k))


def faulty(right: ShippedKernel | FamilyOnHost, plan: Plan, sizes: _Sizes) -> Candidate:
    """Return the kernel with the fault."""
    return _Measured(right, plan, sizes) if isinstance(right, ShippedKernel) else _Family(right, plan, sizes)


# ---- trials ----------------------------------------------------------------------------------------------------------


@dataclass
class _Trials:
    """Results of the faults of one model.

    Args:
        promises: matrix → the size of an error that is never missed; 0 if the matrix was judged whole.
    """

    path: Path
    kernel: ShippedKernel | FamilyOnHost
    prompt: str
    reference: str
    right: bool = True
    promises: dict[str, float] = field(default_factory=dict)
    seen: int = 0
    promised: int = 0
    promised_found: int = 0
    found: int = 0
    thorough: int = 0

    def _report(self, kernel: Candidate, tensor: str, thorough: bool) -> Report:
        options = Options(
            # no sandbox: no foreign code runs, and a sandbox would hide the model, which is in this run's folder
            prompt=self.prompt, n_predict=1, tensor=f"^{tensor}$", probes="brief", progress=False, seed=0,
            thorough=thorough, exit_first=True, reference=self.reference, sandbox="none",
        )  # fmt: skip
        # diagnoses take longest, do not affect the place, and multiply other activations
        undiagnosed = mock.patch.object(explain, "MOST_DIAGNOSES", 0)
        with undiagnosed, mock.patch.object(gemm, "blame", return_value=None):
            report = verify(self.path, kernel, self.kernel.host, ("layers",), options)
        if broken := [rung.fault for rung in report.rungs if rung.fault and not rung.failures]:
            raise EnvironmentFault(f"{tensor} was not verified: {broken[0]}")
        return report

    def promise(self, tensor: str) -> float:
        """Return the size of an error of this matrix that is never missed."""
        if tensor not in self.promises:
            report = self._report(self.kernel, tensor, thorough=False)
            self.right &= report.exit_code == 0
            sampled = [rung.sampled for rung in report.rungs if rung.sampled is not None]
            self.promises[tensor] = max((part.smallest or 0.0 for part in sampled), default=0.0)
        return self.promises[tensor]

    def plant(self, plan: Plan, n: int) -> None:
        """Try one fault in a matrix of n rows."""
        sizes, found = _Sizes(n), dict[bool, bool]()
        for thorough in (False, True):
            report = self._report(faulty(self.kernel, plan, sizes), plan.tensor, thorough)
            places = {(f.tensor, f.row) for rung in report.rungs for f in rung.failures}
            found[thorough] = places == {(plan.tensor, plan.row)}
        promised = sizes.largest > self.promise(plan.tensor)
        self.seen += sizes.largest > 0
        self.promised += promised
        self.promised_found += promised and found[False]
        self.found += found[False]
        self.thorough += found[True]


def measure(args: argparse.Namespace, model: RandomModel, path: Path, host: Host) -> tuple[str, records.Planted]:
    """Return the device and the record."""
    prompt = prompt_of(args.tokens)
    trials = _Trials(path, on_host(find_kernel(args.kernel), host), prompt, args.reference)
    rng = np.random.default_rng((args.seed, args.count))
    with open_model(path) as opened:
        faults = [random_fault(opened, rng) for _ in range(args.count)]
        plans = [(plan, opened.tensors[plan.tensor].n_rows) for plan in faults]
    for plan, n in tqdm(plans, desc="planting faults", unit="fault", disable=None):
        trials.plant(plan, n)
    info = host.info()
    return device_of(None if info.sm is None else info.device), records.Planted(
        **shape_fields(model, path.stat().st_size), tokens=args.tokens, kernel=args.kernel, host=info.name,
        seed=args.seed, planted=args.count, seen=trials.seen, promised=trials.promised,
        promised_found=trials.promised_found, found=trials.found, thorough=trials.thorough,
        smallest=float(f"{max(trials.promises.values(), default=0.0):.3g}"), right=trials.right,
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Measure, save and print. Returns the exit code."""
    if args.count < 1:
        raise UsageError("--count must be at least 1")
    results, wrong = results_of(args, records.Planted), False
    if args.other is None:
        with closing(make_host(args.host)) as host:
            for model in models_of(args):
                with model_file(args.keep, model) as path:
                    device, done = measure(args, model, path, host)
                results = records.merged(results, {device: (done,)})
                records.save(results, args.results)
                write_lines(
                    f"{model.file_name}: of {done.planted} faults {done.seen} changed an output, {done.found} were "
                    f"found and {done.thorough} by --thorough; {done.promised_found} of {done.promised} above the size "
                    f"that is promised ({done.smallest:.2g} at most); without a fault "
                    f"{'verified' if done.right else 'NOT verified'}",
                )  # fmt: skip
                wrong |= not done.right or done.promised_found < done.promised
    records.save(results, args.results)
    if not args.no_page:
        growth.write_page(records.load(records.Run, records.RUNS), results)
    return int(wrong)
