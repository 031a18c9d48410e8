"""Every operation of a model's graph on a device of llama.cpp, judged node by node: one run from end to end.

It may import what a verification may: llama, operations, gguf and everything below.
"""

from .devices import known_devices
from .run import check_pattern, verify_graph

__all__ = ["check_pattern", "known_devices", "verify_graph"]
