"""Verification of a model's graph: every operation on a device of llama.cpp, judged node by node.

This package may import what a verification may: llama, operations, gguf and everything below.
"""

from .run import check_pattern, known_devices, verify_graph

__all__ = ["check_pattern", "known_devices", "verify_graph"]
