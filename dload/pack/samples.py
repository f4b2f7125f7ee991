"""What a sample is, and what of it can be stored."""

from __future__ import annotations

from collections.abc import Mapping

from dload.errors import SampleError

Fields = Mapping[str, bytes]
Sample = tuple[str, dict[str, bytes]]

MAX_KEY_SIZE = 1024
MAX_NAME_SIZE = 100
MAX_VALUE_SIZE = (1 << 32) - 1

# What a sample adds to the payload that boundaries count, besides its values and its key.
_OVERHEAD = 16


def sample_size(key: str, fields: Fields) -> int:
    """The size of a sample for boundaries, in bytes: its values and its key as they are, and 16."""
    size = len(key) if key.isascii() else len(key.encode("utf-8", "surrogatepass"))
    return size + sum(map(_nbytes, fields.values())) + _OVERHEAD


def validate_sample(key: str, fields: Fields) -> dict[str, bytes]:
    """The fields as `bytes`, if the sample can be stored; else SampleError, which names the key and says why."""
    validate_key(key)
    validate_names(key, names_of(key, fields))
    return {name: as_bytes(key, name, value) for name, value in fields.items()}


def validate_key(key: str) -> None:
    """Raise SampleError unless `key` is a non-empty text of at most 1,024 bytes of UTF-8."""
    if not isinstance(key, str):
        raise SampleError(f"the key of a sample must be a text (str), got {type(key).__name__}: {key!r:.100}")
    size = len(key) if key.isascii() else _utf8_size(key, f"the key {key!r:.200}", key)
    if not 0 < size <= MAX_KEY_SIZE:
        raise SampleError(
            f"the key of a sample must have 1 to {MAX_KEY_SIZE} bytes of UTF-8, got {size}: {key!r:.100}", key=key
        )


def names_of(key: str, fields: Fields) -> tuple[str, ...]:
    """The field names of a sample, in its order. SampleError where its fields are no mapping."""
    if not isinstance(fields, Mapping):
        raise SampleError(
            f"sample {key!r}: its fields must be a mapping of names to bytes, got {type(fields).__name__}", key=key
        )
    return tuple(fields)


def validate_names(key: str, names: tuple[str, ...]) -> None:
    """Raise SampleError unless each field name is a text of 1 to 100 bytes of UTF-8."""
    for name in names:
        if not isinstance(name, str):
            raise SampleError(
                f"sample {key!r}: a field name must be a text (str), got {type(name).__name__}: {name!r:.100}",
                key=key,
            )
        size = _utf8_size(name, f"the field name {name!r:.200} of sample {key!r}", key)
        if not 0 < size <= MAX_NAME_SIZE:
            raise SampleError(
                f"sample {key!r}: the name of a field must have 1 to {MAX_NAME_SIZE} bytes of UTF-8, "
                f"got {size}: {name!r:.100}",
                key=key,
            )


def as_bytes(key: str, name: str, value: bytes | bytearray | memoryview) -> bytes:
    """A field's value as `bytes`; SampleError for what isn't bytes-like or has 4 GiB or more."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise SampleError(
            f"sample {key!r}: field {name!r} must be bytes, got {type(value).__name__}",
            remedy="encode it first, for example by dload.codecs.text_bytes, json_bytes or npy_bytes",
            key=key, field=name,
        )  # fmt: skip
    size = _nbytes(value)
    if size > MAX_VALUE_SIZE:
        raise SampleError(
            f"sample {key!r}: field {name!r} has {size:,} bytes, more than {MAX_VALUE_SIZE:,} (4 GiB - 1)",
            remedy="split it over several fields or samples", key=key, field=name,
        )  # fmt: skip
    return value if type(value) is bytes else bytes(value)


def _nbytes(value: bytes | bytearray | memoryview) -> int:
    return value.nbytes if isinstance(value, memoryview) else len(value)


def _utf8_size(text: str, what: str, key: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise SampleError(
            f"{what} is not valid unicode: it has half of a surrogate pair at character {error.start}",
            remedy="file names that aren't UTF-8 read like this: rename the file", key=key,
        ) from None  # fmt: skip
