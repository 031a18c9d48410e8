"""Child processes of a run: how they start, how they are confined, how they ended, and that none is left behind.

`child` is a process and the socket to it, `commands` runs a command with a time limit, and `keeper` is the program
between them and this process that ends everything they started. This package imports only `support`, and is imported
before NumPy, so that a child can start early.
"""
