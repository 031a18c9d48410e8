"""Reports: `writer.writers` finds every `Writer` that a module of this package defines.

Writers read typed results and judge nothing. This package may import `results`, `nightly`'s and `audit`'s records,
`gguf`, `formats` and `support`; not the packages that produce results (`rungs`, `kernels`, `llama`, `hosts`).
"""
