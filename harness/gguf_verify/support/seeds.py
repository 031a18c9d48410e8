"""The seed of a run: a random one for each, so that no kernel can know what it will be tried at.

What a run is made of follows from its seed, so `--seed` repeats it. Tests, and whatever else must give the same
numbers each time, fix it by the environment variable.
"""

from __future__ import annotations

import os
import secrets

from .errors import UsageError

#: The environment variable that fixes the seed of every run that is given none.
VARIABLE = "GGUF_VERIFY_SEED"
#: The largest seed that a run takes, and the bits of a random one.
MOST_SEED, _BITS = 2**63 - 1, 31


def fresh_seed() -> int:
    """The seed of a run that is given none: from the operating system's randomness, or that of `VARIABLE`. Raises
    UsageError."""
    fixed = os.environ.get(VARIABLE)
    if not fixed:
        return secrets.randbits(_BITS)
    if not (fixed.isascii() and fixed.isdigit() and len(fixed) < 20 and int(fixed) <= MOST_SEED):
        raise UsageError(f"{VARIABLE}: {fixed[:40]!a} is not a whole number from 0 to {MOST_SEED}")
    return int(fixed)
