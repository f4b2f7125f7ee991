"""Versioned data sets over object storage: what is where, and in which order it is written, read and deleted.

Order of writes: shards, then manifest, then ref. Order of reads: the reverse. Order of deletes: ref, manifest, shards.
So nothing visible ever points at something missing.
"""
