"""The members of a tar archive, read forward from a stream that nobody trusts; and members written.

Reads ustar, GNU (long names, sizes in base 256) and pax archives, as POSIX.1-2017 ("pax", ustar Interchange Format) and
the GNU tar manual describe them. Nothing is ever extracted. Refused by name: links, devices, sparse files, absolute
paths, `..`, damaged headers, an archive without its end, and what lies behind that end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from dload.errors import SampleError
from dload.pack.samples import MAX_VALUE_SIZE

_BLOCK = 512
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # how gzip and zstd begin
_MAX_EXTENDED = 1 << 20  # bytes of a long name or of pax records
_KINDS = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a named pipe",
          b"S": "a sparse file"}  # fmt: skip


class Member(NamedTuple):
    """A file of the archive."""

    name: str
    data: bytes


def read_members(stream: BinaryIO, shown: str) -> Iterator[Member]:
    """The files of an archive, in its order. `shown` names it in errors. Raises SampleError."""
    reader = _Reader(stream, shown)
    while (member := reader.next()) is not None:
        yield member


class _Reader:
    def __init__(self, stream: BinaryIO, shown: str) -> None:
        self._stream = stream
        self._shown = shown
        self._at = 0
        self._everywhere: dict[str, str] = {}  # pax records for all members that follow

    def next(self) -> Member | None:
        """The next regular file, or None behind the last."""
        special: dict[str, str] = {}
        while True:
            header = self._read(_BLOCK, "a header")
            if not header.strip(b"\0"):
                self._end()
                return None
            self._check(header)
            kind, size = header[156:157], self._number(header[124:136])
            if kind in (b"x", b"g", b"L", b"K"):
                self._extend(kind, self._body(size, "an extended header", _MAX_EXTENDED), special)
                continue
            records = self._everywhere | special
            special = {}
            name = records.get("path") or _name(header)
            size = self._size(records, size)
            if kind == b"5" or (kind in (b"0", b"\0") and name.endswith("/")):
                self._body(size, repr(name), _MAX_EXTENDED)
                continue
            self._refuse(name, kind, records)
            return Member(_safe(name, self._shown), self._body(size, repr(name), MAX_VALUE_SIZE))

    def _size(self, records: dict[str, str], size: int) -> int:
        text = records.get("size")
        if text is None:
            return size
        if not text.isdecimal():
            raise self._damaged(f"a size of {text[:40]!r}")
        return int(text)

    def _refuse(self, name: str, kind: bytes, records: dict[str, str]) -> None:
        what = _KINDS.get(kind)
        if what is None and any(record.startswith("GNU.sparse.") for record in records):
            what = "a sparse file"
        if what is None and kind not in (b"0", b"\0", b"7"):
            what = f"of the unknown type {kind!r}"
        if what is not None:
            raise SampleError(
                f"{self._shown}: {name[:200]!r} is {what}; only regular files can be imported",
                remedy="leave it out when you make the archive (links: tar --dereference)", member=name,
            )  # fmt: skip

    def _extend(self, kind: bytes, data: bytes, special: dict[str, str]) -> None:
        if kind == b"L":
            special["path"] = _text(data.rstrip(b"\0"))
        elif kind in (b"x", b"g"):
            (special if kind == b"x" else self._everywhere).update(self._records(data))

    def _records(self, data: bytes) -> Iterator[tuple[str, str]]:
        """The records of a pax header: "LENGTH NAME=VALUE\\n" each, LENGTH counting itself."""
        while data.strip(b"\0"):
            digits, _, _ = data.partition(b" ")
            length = int(digits) if len(digits) < 8 and digits.isdigit() else 0
            record = data[len(digits) + 1 : length]
            name, mark, value = record.partition(b"=")
            if not mark or length > len(data) or not value.endswith(b"\n"):
                raise self._damaged("a pax header that makes no sense")
            yield _text(name), _text(value[:-1])
            data = data[length:]

    def _body(self, size: int, what: str, most: int) -> bytes:
        if size > most:
            raise SampleError(
                f"{self._shown}: {what} has {size:,} bytes; {most:,} are possible", remedy="split it before you import"
            )
        data = self._read(size, what)
        if size % _BLOCK:
            self._read(_BLOCK - size % _BLOCK, what)
        return data

    def _read(self, size: int, what: str) -> bytes:
        data = self._stream.read(size)
        while len(data) < size and (more := self._stream.read(size - len(data))):
            data += more
        if len(data) < size:
            if not self._at and not data:
                raise SampleError(f"{self._shown} is empty, not even an archive of nothing", remedy="fetch it anew")
            raise SampleError(
                f"{self._shown} is cut off at byte {self._at + len(data):,}, in {what}",
                remedy="fetch or make the archive anew",
            )
        self._at += size
        return data

    def _end(self) -> None:
        """Behind the first block of zeros there are only zeros."""
        while rest := self._stream.read(1 << 20):
            if rest.strip(b"\0"):
                raise SampleError(
                    f"{self._shown} goes on behind its end: archives put together by cat?",
                    remedy="import them one by one, or put them together with tar --concatenate",
                )

    def _check(self, header: bytes) -> None:
        if header.startswith(_COMPRESSED):
            raise SampleError(
                f"{self._shown} is compressed, though its name doesn't say so",
                remedy="let its name end in .tar.gz or .tar.zst",
            )
        stated = self._number(header[148:156])
        if stated not in (_checksum(header, signed=False), _checksum(header, signed=True)):
            raise self._damaged("a header whose checksum is wrong")

    def _number(self, field: bytes) -> int:
        if field[0] & 0x80:  # GNU: base 256
            return int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
        digits = field.strip(b"\0 ")
        try:
            return int(digits, 8) if digits else 0
        except ValueError:
            raise self._damaged(f"a number {digits!r}") from None

    def _damaged(self, what: str) -> SampleError:
        return SampleError(
            f"{self._shown} is damaged or no tar archive: {what} before byte {self._at:,}",
            remedy="fetch or make it anew",
        )


def _checksum(header: bytes, *, signed: bool) -> int:
    blanked = header[:148] + b" " * 8 + header[156:]
    return sum(memoryview(blanked).cast("b")) if signed else sum(blanked)


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _safe(name: str, shown: str) -> str:
    """The name without a leading `./`; SampleError for what would lie outside the folder it is unpacked in."""
    while name.startswith("./"):
        name = name[2:]
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SampleError(f"{shown}: the name {name!r} is not UTF-8", remedy="rename it", member=name) from None
    if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise SampleError(
            f"{shown}: the path {name[:200]!r} leads out of the archive or is none",
            remedy="nobody makes such an archive by accident: ask where it comes from", member=name,
        )  # fmt: skip
    return name


# ---- writing
END = bytes(2 * _BLOCK)


def member_bytes(name: str, size: int) -> bytes:
    """The header of a regular file: the same for the same name and size, whoever writes it when."""
    encoded = name.encode()
    if len(encoded) <= 100 and name.isascii() and size < 8**11:
        return _header(encoded, size, b"0")
    records = _record("path", name) + (_record("size", str(size)) if size >= 8**11 else b"")
    ascii_name = encoded.decode("ascii", "replace").replace("\ufffd", "_").encode()[:100]
    return _header(b"PaxHeader", len(records), b"x") + padded(records) + _header(ascii_name, size % 8**11, b"0")


def padded(data: bytes) -> bytes:
    """The data up to a whole number of blocks."""
    return data + bytes(-len(data) % _BLOCK)


def _record(name: str, value: str) -> bytes:
    body = f" {name}={value}\n".encode()
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length = len(str(length)) + len(body)
    return str(length).encode() + body


def _header(name: bytes, size: int, kind: bytes) -> bytes:
    fields = (
        name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + f"{size:011o}\0".encode() + b"00000000000\0"
        + b" " * 8 + kind + bytes(100) + b"ustar\x0000" + bytes(32 + 32) + b"0000000\0" * 2 + bytes(155 + 12)
    )  # fmt: skip
    return fields[:148] + f"{sum(fields):06o}\0 ".encode() + fields[156:]
