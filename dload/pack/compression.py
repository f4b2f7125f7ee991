"""Codecs of fields: how a value's bytes are stored in a shard.

A codec is chosen for a field when a data set is committed and recorded in each shard's index. `zstd` is the
only one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from dload.errors import ConfigError
from dload.pack.samples import MAX_VALUE_SIZE

CODECS: tuple[str, ...] = ("zstd",)

# A zstd block is at most 128 KiB of content and at least 4 bytes long: no honest frame expands further than this.
_LARGEST_EXPANSION = 1 << 15
_BLOCK = 1 << 17

_contexts = threading.local()


def check_codecs(codecs: Mapping[str, str]) -> None:
    """Raise ConfigError for a codec (the values; the names are fields) that is unknown or whose extra is
    missing."""
    for codec in codecs.values():
        encoder(codec)


def encoder(codec: str) -> Callable[[bytes], bytes]:
    """How to encode values by a codec. Raises ConfigError for one that is unknown or whose extra is
    missing."""
    _check(codec)
    return _compress


def decoder(codec: str) -> Callable[[bytes], bytes]:
    """How to decode values of a codec; what it returns raises ValueError for bytes that aren't of that codec.

    Raises ConfigError for a codec that is unknown or whose extra is missing.
    """
    _check(codec)
    return _decompress


def _check(codec: str) -> None:
    if codec not in CODECS:
        raise ConfigError(f"unknown codec {codec!r}", remedy=f"the codecs are: {', '.join(CODECS)}")
    _zstd()


def _zstd() -> Any:
    """This thread's module, compressor and decompressor: zstandard's contexts can't be shared between
    threads."""
    if not hasattr(_contexts, "zstd"):
        try:
            import zstandard
        except ImportError as error:
            raise ConfigError(
                "the codec 'zstd' needs the package zstandard", remedy="pip install 'dload-ml[zstd]'"
            ) from error
        _contexts.zstd = (zstandard, zstandard.ZstdCompressor(), zstandard.ZstdDecompressor())
    return _contexts.zstd


def _compress(value: bytes) -> bytes:
    encoded: bytes = _zstd()[1].compress(value)
    return encoded


def _decompress(stored: bytes) -> bytes:
    zstandard, _, decompressor = _zstd()
    try:
        size = zstandard.frame_content_size(stored)
        # The frame's claim is what will be allocated: believe it only as far as its length can bear it out.
        if not 0 <= size <= min(MAX_VALUE_SIZE, len(stored) * _LARGEST_EXPANSION + _BLOCK):
            raise ValueError(f"{len(stored)} bytes of zstd claim a content of {size}")
        value: bytes = decompressor.decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if len(value) != size:
        raise ValueError(f"zstd announced {size} bytes and gave {len(value)}")
    return value
