"""The nightly: a matrix of runs with a memory. `records` is what everything else speaks of."""
