"""Hosts, which run kernels: one file for each host.

This package may import formats, results and support.
"""
