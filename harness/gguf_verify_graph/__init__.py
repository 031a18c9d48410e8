"""Verify every node of llama.cpp's graphs on any device, and find the first build of llama.cpp that computes otherwise.

The package extends gguf-verify by the commands `backend`, `devices` and `bisect`. From Python:
`from gguf_verify_graph.verification import verify_graph`, with options and results in `gguf_verify.backend_results`.
"""
