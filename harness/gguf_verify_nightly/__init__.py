"""The nightly: a matrix of verification runs, each in its own process, with a history and comparisons between nights.

Its modules import `results`, `support` and, to plan and prepare a night, `rungs`, `kernels`, `llama`, `hosts`, `gguf`
and `formats`. They import neither `report`, which renders their records, nor `measure`.
"""
