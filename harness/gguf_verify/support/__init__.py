"""Processes and the protocol between them, caches, progress, errors: what every room needs and no room of its own.

The room may import nothing of this package but itself.
"""
