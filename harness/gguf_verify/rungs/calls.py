"""The call of the kernel that a finding is about, so that it can be made again alone (`--only-call`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..checks import ALONE
from ..results.calls import Call
from ..results.rungs import RungResult
from ..support.errors import KernelFault
from .run import Run

#: The call that is being made; None outside of `calling`.
CURRENT: ContextVar[Call | None] = ContextVar("current_call", default=None)


@contextmanager
def calling(call: Call) -> Iterator[None]:
    """A KernelFault that leaves this block says of which call it is."""
    token = CURRENT.set(call)
    try:
        yield
    except KernelFault as error:
        error.call = error.call or call
        raise
    finally:
        CURRENT.reset(token)


def begin_alone(run: Run, result: RungResult) -> Call | None:
    """The call that this run makes alone, where it makes one; the result then passes for that alone, and says so."""
    call = run.only
    if call is not None:
        result.substance = (ALONE,)
        run.kernel.try_every_address()
        result.note(f"only one call was made, {call.id} (--only-call): nothing else of this rung was verified")
    return call


def limit_addresses(run: Run, result: RungResult) -> None:
    """Record the alignments that the kernel's calls turned out to need."""
    for scope, words in run.kernel.address_limits.items():
        result.omit("alignment", words, scope)


def end_alone(result: RungResult, call: Call) -> None:
    """A call that no product of the run was is not a pass."""
    if not result.checked.get(ALONE) and not result.n_failures and not result.unverified:
        result.leave(f"the call {call.id}", "this run has no such call: its model, prompt, seed or probes are others")
