"""The local cache: shards that many processes share, within one budget."""

from dload.cache.budget import Budget
from dload.cache.cache import ShardCache
from dload.cache.counters import Counts
from dload.cache.pins import Pin, most_downloads
from dload.cache.status import CacheStatus, DatasetShare
from dload.cache.turn import Seat

__all__ = ["Budget", "CacheStatus", "Counts", "DatasetShare", "Pin", "Seat", "ShardCache", "most_downloads"]
