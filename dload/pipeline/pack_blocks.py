"""Blocks of one length from pieces of documents."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from dload import randomness
from dload.pipeline.pack_documents import Document

Piece = tuple[Document, int, int]
"""Tokens [start, stop) of a document; where there is an eos token, it is the one behind the document's last."""

NAMES = ("input_ids", "doc_ids", "positions", "loss_mask", "valid")
"""What every block has; see `Pack`."""


class BlockMaker:
    """Makes blocks of `length` tokens. `aligned`: the names of a document's columns beside its tokens."""

    def __init__(self, length: int, eos_id: int | None, pad_id: int, aligned: Sequence[str]) -> None:
        self._length, self._eos, self._pad, self._aligned = length, eos_id, pad_id, aligned
        self._numpy: Any = None
        if randomness.HAVE_NUMPY:
            import numpy

            self._numpy = numpy
            self._counting = numpy.arange(length)

    def size(self, document: Document) -> int:
        """How many tokens a document is in blocks: its own, and one for the eos. An empty one is left out."""
        tokens = len(document[0])
        return tokens + 1 if tokens and self._eos is not None else tokens

    def block(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """The pieces one after the other, at most `length` tokens, and padding behind them."""
        return self._plain_block(pieces) if self._numpy is None else self._numpy_block(pieces)

    def _numpy_block(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        np, length = self._numpy, self._length
        ids, documents, positions = np.empty(length, np.int64), np.empty(length, np.int64), np.empty(length, np.int64)
        columns = [np.empty(length, np.int64) for _ in self._aligned]
        at = 0
        for number, (document, start, stop) in enumerate(pieces):
            end, tokens = at + stop - start, document[0]
            if stop > len(tokens):
                ids[at : end - 1] = tokens[start:]
                ids[end - 1] = self._eos
            else:
                ids[at:end] = tokens[start:stop]
            documents[at:end] = number
            positions[at:end] = self._counting[: end - at]
            for column, values in zip(columns, document[1:], strict=True):
                part = values[start:stop]
                column[at : at + len(part)] = part
                column[at + len(part) : end] = values[-1]
            at = end
        mask = np.zeros(length, bool)
        mask[:at] = True
        if at < length:
            ids[at:], documents[at:], positions[at:] = self._pad, max(0, len(pieces) - 1), 0
            for column in columns:
                column[at:] = 0
        return self._named(ids, documents, positions, mask, at, columns)

    def _plain_block(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        ids, documents, positions = array("q"), array("q"), array("q")
        columns = [array("q") for _ in self._aligned]
        for number, (document, start, stop) in enumerate(pieces):
            size = stop - start
            ids.extend(array("q", document[0][start:stop]))
            if stop > len(document[0]):
                assert self._eos is not None
                ids.append(self._eos)
            documents.extend(repeat(number, size))
            positions.extend(range(size))
            for column, values in zip(columns, document[1:], strict=True):
                part = array("q", values[start:stop])
                column.extend(part)
                column.extend(repeat(values[-1], size - len(part)))
        valid = len(ids)
        rest = self._length - valid
        ids.extend(repeat(self._pad, rest))
        documents.extend(repeat(max(0, len(pieces) - 1), rest))
        for column in (positions, *columns):
            column.extend(repeat(0, rest))
        return self._named(ids, documents, positions, array("b", [1] * valid + [0] * rest), valid, columns)

    def _named(
        self, ids: Any, documents: Any, positions: Any, mask: Any, valid: int, columns: list[Any]
    ) -> dict[str, Any]:
        return {
            "input_ids": ids, "doc_ids": documents, "positions": positions, "loss_mask": mask, "valid": valid,
            **dict(zip(self._aligned, columns, strict=True)),
        }  # fmt: skip
