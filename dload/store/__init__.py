"""Object storage: one protocol, over a folder, S3 or memory."""

from dload.store.base import Body, ObjectInfo, Store
from dload.store.local import FolderStore
from dload.store.memory import MemoryStore
from dload.store.open import open_store

__all__ = ["Body", "FolderStore", "MemoryStore", "ObjectInfo", "Store", "open_store"]
