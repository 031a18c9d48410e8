"""Bisection: the first build of llama.cpp that computes a model's graph incorrectly. Each candidate is tried by
`gguf-verify backend` in its own process, in the order of a binary search.

This package may import `nightly`, for the Pythons of other versions, and all that `nightly` may. It imports neither
`measure` nor `report`.
"""
