"""Everything with threads: shards on their way from the store through the cache to whoever reads them."""

from dload.run.fetch import ShardFetched, fetch_shards
from dload.run.key_index import KeyIndex, key_index
from dload.run.lookup import Lookup
from dload.run.open_shard import OpenShard, open_shard

__all__ = [
    "KeyIndex",
    "Lookup",
    "OpenShard",
    "ShardFetched",
    "fetch_shards",
    "key_index",
    "open_shard",
]
