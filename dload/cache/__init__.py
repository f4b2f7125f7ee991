"""The local cache: shards that many processes share, within one budget."""

from dload.cache.budget import Budget
from dload.cache.cache import CacheStatus, ShardCache
from dload.cache.pins import Pin, most_downloads

__all__ = ["Budget", "CacheStatus", "Pin", "ShardCache", "most_downloads"]
