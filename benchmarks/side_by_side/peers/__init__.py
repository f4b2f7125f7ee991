"""One module for each system; each runs inside its system's environment, in a process of its own.

They use the standard library and their system, nothing of the runner. `serving` is the way in.
"""
