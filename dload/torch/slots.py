"""Values that a worker process leaves for the main one, in memory that both have.

Each worker has an anonymous file with a few slots. It pickles a value straight into a free one, large buffers as they
are, and sends only where that is; whoever unpickles it copies it out and frees the slot. Against the pipe that torch's
workers have otherwise this spares a copy into the kernel and one out of it, in pieces of 64 KiB with a change of
processes for each. Files without a name leave nothing behind, however a process ends.
"""

from __future__ import annotations

import copyreg
import mmap
import pickle
import secrets
from collections import ChainMap
from typing import Any
from weakref import WeakValueDictionary

import torch

from dload.files.shared import SharedBytes

_PAGE = mmap.PAGESIZE
_ALIGNED = 64
_FREE, _TAKEN = b"\0", b"\1"

Span = tuple[int, int]  # the first byte, and the last + 1


class Slots:
    """One worker's. The main process makes it; the worker puts, whoever unpickles what `put` returns takes."""

    def __init__(self, count: int) -> None:
        self.name = secrets.token_hex(8)
        self._file = SharedBytes(count)  # first a byte a slot: whether it is taken
        self._slots = [(0, 0)] * count  # where they are; the worker's alone
        self._bytes: mmap.mmap | None = None
        _known[self.name] = self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bytes": None}

    def _mapped(self, size: int) -> mmap.mmap:
        """The file's bytes, at least so many."""
        if self._bytes is None or len(self._bytes) < size:
            self._bytes = self._file.mapped(size)
        return self._bytes

    # ---- the worker's side
    def put(self, value: Any) -> Parcel | None:
        """Leave a value in a free slot; None where all are taken. Raises what pickling it raises."""
        count = len(self._slots)
        slot = self._mapped(count).find(_FREE, 0, count)
        if slot < 0:
            return None
        writer = _Writer(self, slot)
        buffers = pickled(value, writer)
        spans = [writer.span()]
        for buffer in buffers:
            with buffer.raw() as raw:
                writer.write(raw)
            spans.append(writer.span())
        self._mapped(count)[slot : slot + 1] = _TAKEN
        start = self._slots[slot][0]
        return Parcel(self.name, slot, [(start + first, start + last) for first, last in spans])

    def write(self, slot: int, at: int, data: Any) -> None:
        """Write into a slot, which is made larger where that is needed."""
        start, stop = self._slots[slot]
        end = start + at + len(data)
        if end > stop:
            size = -(-2 * (at + len(data)) // _PAGE) * _PAGE
            new = max(_PAGE, *(last for _, last in self._slots))
            room = self._mapped(new + size)
            room[new : new + at] = room[start : start + at]
            self._slots[slot] = start, stop = new, new + size
            end = start + at + len(data)
        self._mapped(end)[start + at : end] = data

    # ---- the other side
    def take(self, slot: int, spans: list[Span]) -> Any:
        """The value in a slot, which is free then."""
        room = self._mapped(max(last for _, last in spans))
        try:
            with memoryview(room) as whole:
                head, *others = (whole[first:last] for first, last in spans)
                with head:
                    return pickle.loads(head, buffers=[_copied(other) for other in others])
        finally:
            room[slot : slot + 1] = _FREE


def pickled(value: Any, file: Any) -> list[pickle.PickleBuffer]:
    """Pickle a value into a file that is open for writing. Returns its large buffers, which aren't in there."""
    buffers: list[pickle.PickleBuffer] = []
    pickler = pickle.Pickler(file, 5, buffer_callback=buffers.append)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(value)
    return buffers


def _copied(view: memoryview) -> bytearray:
    with view:
        return bytearray(view)


_known: WeakValueDictionary[str, Slots] = WeakValueDictionary()


class Parcel:
    """Where a value was left. Unpickled, it is the value."""

    def __init__(self, name: str, slot: int, spans: list[Span]) -> None:
        self._where = name, slot, spans

    def __reduce__(self) -> tuple[Any, ...]:
        return _taken, self._where


def _taken(name: str, slot: int, spans: list[Span]) -> Any:
    return _known[name].take(slot, spans)


class _Writer:
    """A slot as a file to write to, in spans that begin where the processor likes it."""

    def __init__(self, slots: Slots, slot: int) -> None:
        self._slots, self._slot = slots, slot
        self._begin = self._at = 0

    def write(self, data: Any) -> None:
        self._slots.write(self._slot, self._at, data)
        self._at += len(data)

    def span(self) -> Span:
        """What was written since the last span."""
        span = self._begin, self._at
        self._begin = self._at = -(-self._at // _ALIGNED) * _ALIGNED
        return span


def _reduced(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A tensor as its bytes, where it is nothing more than numbers in memory; else as torch pickles it."""
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
    if not plain or tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or not tensor.numel():
        reduced: tuple[Any, ...] = tensor.__reduce_ex__(2)  # type: ignore[no-untyped-call]
        return reduced
    data: Any = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(data), tensor.dtype, tuple(tensor.shape))


def _tensor(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(data, dtype=dtype).view(shape)


_REDUCERS: ChainMap[Any, Any] = ChainMap({torch.Tensor: _reduced}, copyreg.dispatch_table)
