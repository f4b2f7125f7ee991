"""dload beside what a user would pick instead, and beside the least that must be done.

    python -m benchmarks.side_by_side environments          # each system into an environment of its own, once
    python -m benchmarks.side_by_side run [--quick]
    python -m benchmarks.side_by_side plots                 # the figures of the last run as SVG
    python -m benchmarks.side_by_side table                 # and as Markdown

Each system runs in a process of its own, in its own environment, over the same samples; all in turns, round after
round. Before a row counts, what a system gives is compared with what was written: number, keys, bytes. A system that
can't do something says so. `peers/` has a file for each.
"""
