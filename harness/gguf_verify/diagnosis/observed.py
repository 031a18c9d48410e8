"""Faults that the diagnosis observes rather than predicts.

They are observed in a checked build, in further calls, in the bytes of the activation quantizer, or in the outputs
themselves. The catalogue in `faults` holds the faults whose outputs are predicted. Together they are all the names that
a report may contain.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..results.diagnoses import FaultMatch
from ..support.errors import KernelFinding

#: The fraction of the error that such a fault explains: not known, since it was observed, not computed.
SEEN = float("nan")


@dataclass(frozen=True)
class ObservedFault:
    """A fault that is observed.

    Args:
        id: stable.
        words: the fault, for any kernel.
        fix: one line.
        how: the evidence for it.
    """

    id: str
    words: str
    fix: str
    how: str


_CHECKED = "Detected by a launch with guards and checks, under different orders of threads."
_CALLS = "Detected by further calls on the same operands, with different numbers of tokens, rows or columns."
_SERIES = "Detected by a series of calls with different operands or sizes."
_OUTPUTS = "Reported if no fault of the catalogue explains the outputs, and they have this in common."
_FITTED = "Detected by fitting the outputs as a sum of the product's parts with different factors."
_BYTES = "Detected by comparing the bytes of the kernel's quantizer with those of such a quantizer."
_TRACED = "Detected by tracing the comparisons of wrong and of correct calls on the CPU host."
_LARGE = "Detected by large products, of which single thread blocks run if the whole is too large."

OBSERVED = {
    fault.id: fault
    for fault in (
        ObservedFault(
            "data-race",
            "threads access the same memory, one of them writes, and nothing orders the accesses",
            "put a barrier, or the wait for a copy, between the two accesses; between thread blocks, a fence and a "
            "flag that one waits for, or a separate launch; before a bulk copy that overwrites memory that threads "
            "have read, also a proxy fence",
            _CHECKED,
        ),
        ObservedFault(
            "outside-buffers",
            "a thread reads or writes outside the kernel's buffers",
            "check the bounds of what the last row, block or tile accesses",
            _CHECKED,
        ),
        ObservedFault(
            "uninitialized-memory",
            "uninitialised memory is read",
            "write shared memory, or wait for the copy, before it is read, also where a tile is not full",
            _CHECKED,
        ),
        ObservedFault(
            "misaligned-access",
            "an address is not a multiple of the size of what is loaded or stored there",
            "load in units to which the address is aligned",
            _CHECKED,
        ),
        ObservedFault(
            "signed-overflow",
            "the result of signed arithmetic does not fit its type",
            "compute in a wider type",
            _CHECKED,
        ),
        ObservedFault(
            "undefined-shift",
            "a value is shifted by a negative number of bits, or by at least its width",
            "mask the number of bits, or shift a wider type",
            _CHECKED,
        ),
        ObservedFault(
            "division-by-zero",
            "an integer is divided by zero",
            "handle a divisor of zero before the division",
            _CHECKED,
        ),
        ObservedFault(
            "warp-mask",
            "not all lanes that a warp instruction needs execute it: those of its mask, and a shuffle's source",
            "make every lane that the mask names execute the instruction, or compute the mask with __ballot_sync "
            "before the branch; read only lanes of the mask that execute the shuffle",
            _CHECKED,
        ),
        ObservedFault(
            "illegal-operand",
            "an instruction is given a number or an address that it does not accept",
            "copy 4, 8 or 16 bytes by cp.async.ca, 16 by cp.async.cg, and multiples of 16 by a bulk copy; a named "
            "barrier is one of 0 to 15, of whole warps; an instruction that names a space (ld.shared, ld.global, "
            "__ldg) takes addresses in it, and an atomic one none in local memory",
            _CHECKED,
        ),
        ObservedFault(
            "false-assumption",
            "what the kernel promises the compiler (__builtin_assume, __builtin_assume_aligned, "
            "__builtin_unreachable) is not so",
            "promise what holds in every launch, or nothing",
            _CHECKED,
        ),
        ObservedFault(
            "impossible-launch",
            "no GPU runs the launch: it exceeds a limit of CUDA or of the kernel",
            "launch fewer threads or less shared memory, change the kernel's __launch_bounds__, or launch whole "
            "clusters of at most 8 thread blocks",
            _CHECKED,
        ),
        ObservedFault(
            "divergent-barrier",
            "some threads of a block never reach a barrier at which others wait",
            "make all threads of a block reach the same barriers",
            _CHECKED,
        ),
        ObservedFault(
            "input-written",
            "the kernel writes into its inputs",
            "write only to the output and shared memory",
            _CHECKED,
        ),
        ObservedFault(
            "unwritten",
            "outputs were never written",
            "every output needs a thread: check the grid and the bounds of the last tile",
            _CHECKED,
        ),
        ObservedFault(
            "not-deterministic",
            "the same call gives different outputs when it is repeated",
            "look for races, and for uninitialised memory",
            _CHECKED,
        ),
        ObservedFault(
            "address-dependent",
            "the outputs depend on where in memory the operands begin",
            "assume only that an operand begins at an address that its type allows, or at a multiple of its declared "
            "alignment",
            _CHECKED,
        ),
        ObservedFault(
            "call-count",
            "the outputs depend on how often the kernel was called",
            "let no call leave anything that a later one reads: a counter, a static variable, a buffer",
            _CHECKED,
        ),
        ObservedFault(
            "unaligned-operand",
            "the outputs change if an operand begins at an address that its type allows and that is no multiple "
            "of 16 bytes",
            "handle such an address, or declare the operand's alignment",
            _CALLS,
        ),
        ObservedFault(
            "window-of-m",
            "only calls of some numbers of tokens M are wrong",
            "check what depends on M: the choice of the kernel, its tile, its grid, its shared memory",
            _CALLS,
        ),
        ObservedFault(
            "window-of-n",
            "only calls of some numbers of rows N are wrong",
            "check what depends on N: the choice of the kernel, its tile, its grid, its shared memory",
            _CALLS,
        ),
        ObservedFault(
            "window-of-k",
            "only calls of large K are wrong",
            "check what depends on K: the choice of the kernel, its stages, its grid, its shared memory",
            _CALLS,
        ),
        ObservedFault(
            "window-of-routings",
            "only some routings of tokens to experts are wrong",
            "check how ids become rows of activations, experts of weights and rows of the output",
            _CALLS,
        ),
        ObservedFault(
            "first-taken-branch",
            "wrong behind a branch of the code that no correct call takes",
            "check the code behind the condition, and the condition",
            _TRACED,
        ),
        ObservedFault(
            "partial-tile",
            "rows or tokens past the last whole tile are wrong",
            "round the number of tiles up, and check the bounds within the last",
            _CALLS,
        ),
        ObservedFault(
            "cached-by-shape",
            "data that one call sets up is wrongly reused by later calls of the same shape",
            "key the cache by contents, or clear it when the operands change",
            _SERIES,
        ),
        ObservedFault(
            "stale-workspace",
            "a call uses data that the previous call left in a workspace",
            "fill the workspace before it is read, on the same stream",
            _SERIES,
        ),
        ObservedFault(
            "constant-output",
            "every output has the same value",
            "compute the outputs, and write them: check that the kernel runs its loop over K, that it writes to the "
            "output, and for NaN what it reads before it is set",
            _OUTPUTS,
        ),
        ObservedFault(
            "epilogue",
            "a fused operation is omitted, applied twice or applied in a different order",
            "compare the kernel's fused operations with the declared epilogue",
            _OUTPUTS,
        ),
        ObservedFault(
            "constant-factor",
            "all outputs are wrong by the same factor",
            "look for a factor that is applied to every scale or output, or omitted",
            _OUTPUTS,
        ),
        ObservedFault(
            "term-factor",
            "a term of the product has a wrong factor: the codes' term, the offset or the minimum",
            "compare the factor of each term with the definition: in other kernels a single thread adds only its "
            "share of a term",
            _FITTED,
        ),
        ObservedFault(
            "code-bits",
            "bits of the codes count more or less than they should",
            "check the masks and shifts that put a code together, and its offset",
            _FITTED,
        ),
        ObservedFault(
            "code-values",
            "codes decode to wrong values",
            "compare the table of values, or the masks and shifts that turn a code into a value",
            _FITTED,
        ),
        ObservedFault(
            "position-factor",
            "some values of each block are skipped, or count several times",
            "check the loop over the values of a block, and the masks of packed words",
            _FITTED,
        ),
        ObservedFault(
            "block-factor",
            "some groups or blocks are skipped, or count several times",
            "check the loop over blocks, its first and last step, and the index of their scales",
            _FITTED,
        ),
        ObservedFault(
            "scale-bits",
            "bits of the groups' integer scales or minima count more or less than they should",
            "check the masks and shifts that put the scales and minima of groups together",
            _FITTED,
        ),
        ObservedFault(
            "rows-exchanged",
            "outputs are those of other rows",
            "check the index of rows, and their order in memory",
            _OUTPUTS,
        ),
        ObservedFault(
            "tokens-exchanged",
            "outputs are those of other tokens",
            "check the index of tokens, and their order in memory",
            _OUTPUTS,
        ),
        ObservedFault(
            "scale-reciprocal",
            "the scale of activations is computed with a reciprocal instead of a division",
            "d = max/127, by division",
            _BYTES,
        ),
        ObservedFault(
            "sum-order",
            "the values of s are added in a different order",
            "add lanes at distance 16, 8, 4, 2 and 1, in float32",
            _BYTES,
        ),
        ObservedFault("sum-missing", "s is not stored: it is zero", "store s = Σ x of the raw values", _BYTES),
        ObservedFault("sum-of-magnitudes", "s is Σ |x|", "store s = Σ x of the raw values", _BYTES),
        ObservedFault(
            "index-past-2^31",
            "an index or a count overflows 32 bits in large products",
            "count and index values and bytes in 64 bits: long long or int64_t, before the multiplication",
            _LARGE,
        ),
        ObservedFault(
            "narrow-index",
            "an index, a count or an offset is kept in a type that does not hold it (a short, a half, a float), or a "
            "buffer has a fixed size",
            "use int, or long long where values or bytes may pass 2^31; or declare a domain",
            _LARGE,
        ),
        ObservedFault(
            "launch-past-limit",
            "CUDA refuses the launch of a large product",
            "count tokens or rows in the grid's x, of which there are 2^31 - 1 (65,535 in y and z), or in tiles; a "
            "block has up to 1,024 threads and 227 KiB of shared memory",
            _LARGE,
        ),
    )
}

#: Ids of faults that are factors of parts of the product.
FITTED = frozenset(fault.id for fault in OBSERVED.values() if fault.how is _FITTED)

#: Ids of faults that only say which sizes are wrong.
WINDOWS = frozenset({"window-of-m", "window-of-n", "window-of-k", "partial-tile"})


def observed(
    id: str, words: str, fix: str = "", explained: float = SEEN, utilisation: float = 0.0, everywhere: bool = True
) -> FaultMatch:
    """Return an observed fault, in the words of one kernel; an empty `fix` means the fault's own."""
    return FaultMatch(id, words, fix or OBSERVED[id].fix, explained, utilisation, everywhere)


#: Kind of `KernelFinding` → id of the fault.
_KINDS = {
    "race": "data-race", "outside": "outside-buffers", "unset": "uninitialized-memory",
    "misaligned": "misaligned-access", "overflow": "signed-overflow", "divergent": "divergent-barrier",
    "shift": "undefined-shift", "division": "division-by-zero", "mask": "warp-mask", "limit": "impossible-launch",
    "operand": "illegal-operand", "assumption": "false-assumption",
    "input": "input-written", "unwritten": "unwritten", "changing": "not-deterministic",
    "address": "address-dependent", "count": "call-count", "unaligned": "unaligned-operand",
}  # fmt: skip


def name_of(finding: KernelFinding) -> FaultMatch | None:
    """Return the fault that a finding shows; None for an unknown kind (a foreign process may send anything)."""
    id = _KINDS.get(finding.kind)
    return None if id is None else observed(id, finding.words)
