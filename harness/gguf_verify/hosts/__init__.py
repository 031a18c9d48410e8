"""Where kernels run: one file for each host.

The room may import formats, results and support.
"""
