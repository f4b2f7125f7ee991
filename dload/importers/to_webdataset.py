"""Samples as WebDataset shards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dload.importers.tar import END, member_bytes, padded
from dload.importers.target import Exported, Request, Target, unfit

SHARD_SIZE = 256 << 20
_OTHERWISE = "export it with --format parquet, or as --format files"


def write(request: Request, folder: Path, *, replace: bool = False) -> Exported:
    """Write shards NAME-000000.tar, ... whose members are KEY.FIELD; the same samples give the same bytes.

    SampleError, naming the sample, for one that the webdataset library would not read back as it is: a dot in the last
    part of the key, a field with capitals or a slash, a key that is no path, or one that begins with a name like
    `__this__`.
    """
    limit = request.shard_size or SHARD_SIZE
    waiting = iter(request.samples)
    sample = next(waiting, None)
    with Target(folder, rf"{re.escape(request.name)}-\d{{6}}\.tar", replace=replace) as target:
        number = 0
        while sample is not None:
            with target.file(f"{request.name}-{number:06d}.tar") as stream:
                size = 0
                while sample is not None and (size == 0 or size < limit):
                    for name, value in _members(*sample):
                        header = member_bytes(name, len(value))
                        size += stream.write(header) + stream.write(padded(value))
                    target.done.samples += 1
                    sample = next(waiting, None)
                stream.write(END)
            number += 1
        return target.done


def _members(key: str, fields: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    folder_parts, own = key.split("/")[:-1], key.rpartition("/")[2]
    if "." in own:
        raise unfit(key, "WebDataset would split its key at the dot", _OTHERWISE)
    if not own or "\0" in key or any(part in ("", ".", "..") for part in folder_parts):
        raise unfit(key, "its key is no path below a folder", _OTHERWISE)
    first = key.partition("/")[0]
    if first.startswith("__") and first.endswith("__") and len(first) > 4:
        raise unfit(key, f"WebDataset passes over {first!r}", _OTHERWISE)
    if not fields:
        raise unfit(key, "it has no field, so it would be no member of an archive", _OTHERWISE)
    for field, value in fields.items():
        if field != field.lower() or "/" in field or "\0" in field:
            raise unfit(key, f"WebDataset would not read back the field {field!r}", _OTHERWISE)
        yield f"{key}.{field}", value
