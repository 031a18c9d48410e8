"""The first build of llama.cpp at which a model's graph turns wrong: candidates are tried one by one, each by
`gguf-verify backend` in a process of its own, in the order of a binary search.

This room may import `nightly`, for the Pythons of other versions, and all that `nightly` may. It imports neither
`measure` nor `report`.
"""
