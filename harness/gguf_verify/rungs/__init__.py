"""The rungs of a verification, from bytes to tokens: each checks one claim about a run and returns a `RungResult`.

A rung is one module (or package) here that defines a `Rung`. Rungs may import everything below them: the audit,
diagnosis, kernels, llama.cpp, semantics, the container and the formats; not reports, nights or the command line.
"""
