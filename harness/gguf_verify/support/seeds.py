"""Seeds of runs: random by default, so that no kernel can predict its tests.

Everything random in a run follows from its seed, so `--seed` repeats it. Tests, and everything else that needs the same
numbers each time, fix the seed by an environment variable.
"""

from __future__ import annotations

import os
import secrets

from .errors import UsageError

#: Environment variable with the seed of every run without --seed.
VARIABLE = "GGUF_VERIFY_SEED"
#: Largest seed that a run accepts, and the number of bits of a random one.
MOST_SEED, _BITS = 2**63 - 1, 31


def fresh_seed() -> int:
    """Return the seed of a run without --seed: random bits of the operating system, or the value of `VARIABLE`.

    Raises UsageError.
    """
    fixed = os.environ.get(VARIABLE)
    if not fixed:
        return secrets.randbits(_BITS)
    if not (fixed.isascii() and fixed.isdigit() and len(fixed) < 20 and int(fixed) <= MOST_SEED):
        raise UsageError(f"{VARIABLE}: {fixed[:40]!a} is not a whole number from 0 to {MOST_SEED}")
    return int(fixed)
