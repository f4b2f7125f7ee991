"""Foreign data -> samples, and samples -> foreign data.

`open_source("shards/{000..009}.tar")` is an iterable of samples for `Repository.commit`; DESIGN.md says what becomes
key and fields in each kind.
"""

from dload.importers.kinds import KINDS, Importer, detect, open_source

__all__ = ["KINDS", "Importer", "detect", "open_source"]
