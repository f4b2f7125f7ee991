"""The bytes of one shard: no paths of a store, no network. A shard is written once, in one pass, and never changes."""

from dload.pack.boundaries import BOUNDARIES, Cutter, cuts
from dload.pack.compression import CODECS
from dload.pack.layout import MAX_LAYOUTS, ShardIndex
from dload.pack.reader import ShardReader
from dload.pack.samples import Fields, Sample, sample_size, validate_key, validate_sample
from dload.pack.wire import TRAILER_SIZE, Trailer, read_trailer
from dload.pack.writer import PackedShard, ShardWriter

__all__ = [
    "BOUNDARIES", "CODECS", "MAX_LAYOUTS", "TRAILER_SIZE", "Cutter", "Fields", "PackedShard", "Sample", "ShardIndex",
    "ShardReader", "ShardWriter", "Trailer", "cuts", "read_trailer", "sample_size", "validate_key", "validate_sample",
]  # fmt: skip
