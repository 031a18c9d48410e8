"""Fuzzing: what reads foreign bytes, run on bytes that nobody would write.

A module of `targets` is a target: a record that says what it takes, makes inputs to begin with, and holds what must be
true of every input. `corpus` keeps, for each target, few inputs that together reach most of its code, and every input
that was once found to break something. `make test` runs the kept inputs and as many mutations of them, always the same;
`make fuzz` looks for new ones, guided by the branches that an input reaches where atheris is installed.

    python -m tools.measure fuzz                       every target
    python -m tools.measure fuzz gguf --seconds 60     one of them
    python -m tools.measure fuzz gguf --input FILE     one input of one of them
"""
