"""The processes that a run starts: how they start, what they may do, how they ended, and that none of them is left.

`child` is a process and the socket to it, `commands` runs a command with a time limit, and `keeper` is the program
between them and this process that ends whatever they started. This room imports `support` alone, and is imported before
NumPy is, so that a child can start early.
"""
