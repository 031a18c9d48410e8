"""Reports: each module here that defines a `Writer` is one kind of report, and `writer.writers` finds them all.

Writers read typed results and judge nothing. This room may import `results`, `nightly`'s and `audit`'s records, `gguf`,
`formats` and `support`; not what makes the results (`rungs`, `kernels`, `llama`, `hosts`).
"""
