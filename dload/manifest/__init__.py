"""A version of a data set: what it holds, as an object and as canonical bytes; how two versions differ."""

from dload.manifest.codec import MAX_MANIFEST_BYTES, decode, encode, new_manifest
from dload.manifest.diff import SampleDiff, ShardDiff, sample_diff, shard_diff
from dload.manifest.model import (
    NAME_RULE,
    FieldStats,
    Manifest,
    Packing,
    ShardInfo,
    ShardList,
    is_name,
    is_version,
)
from dload.manifest.rows import ShardRows, chosen

__all__ = [
    "MAX_MANIFEST_BYTES",
    "NAME_RULE",
    "FieldStats",
    "Manifest",
    "Packing",
    "SampleDiff",
    "ShardDiff",
    "ShardInfo",
    "ShardList",
    "ShardRows",
    "chosen",
    "decode",
    "encode",
    "is_name",
    "is_version",
    "new_manifest",
    "sample_diff",
    "shard_diff",
]
