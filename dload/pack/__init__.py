"""The bytes of one shard: no store, no network. A shard is written once, in one pass, and never changes."""

from dload.pack.boundaries import BOUNDARIES, Cutter, cuts
from dload.pack.compression import CODECS, check_codecs
from dload.pack.layout import MAX_LAYOUTS, ShardIndex
from dload.pack.reader import ShardReader
from dload.pack.samples import Fields, Sample, sample_size, validate_key, validate_sample
from dload.pack.wire import TRAILER_SIZE
from dload.pack.writer import PackedShard, ShardWriter

__all__ = [
    "BOUNDARIES", "CODECS", "MAX_LAYOUTS", "TRAILER_SIZE", "Cutter", "Fields", "PackedShard", "Sample",
    "ShardIndex", "ShardReader", "ShardWriter", "check_codecs", "cuts", "sample_size", "validate_key",
    "validate_sample",
]  # fmt: skip
