"""Tasks in other processes: of this machine (`--jobs`), or of Ray, on this machine or on several (`--ray`).

It may import the rungs, the audit and the layers below them. Ray itself is imported only if it is requested.
"""
