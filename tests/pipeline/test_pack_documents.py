"""What documents are made of, what is cut alike, and what is refused."""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from dload import codecs
from dload.errors import ConfigError, SampleError
from dload.pipeline.packing import Pack
from dload.pipeline.sources import Sequenced
from dload.testing.pipelines import elements, restores_everywhere
from tests.pipeline.test_packing import EOS, MODES, PAD, numbered, pack, reference


def npy(values: list[int], dtype: str) -> bytes:
    import numpy as np

    return codecs.npy_bytes(np.array(values, dtype))


def npy_of_version(values: list[int], major: int) -> bytes:
    import numpy as np

    out = io.BytesIO()
    np.lib.format.write_array(out, np.array(values, "int16"), (major, 0))
    return out.getvalue()


FORMS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "array": lambda doc: array("h", doc),
    "numpy": lambda doc: __import__("numpy").array(doc, "uint16"),
    "numpy, other byte order": lambda doc: __import__("numpy").array(doc, ">i4"),
    "npy": lambda doc: npy(doc, "int64"),
    "npy of bytes": lambda doc: npy([value % 100 for value in doc], "uint8"),
    "npy, other byte order": lambda doc: npy(doc, ">u2"),
    "npy of version 2": lambda doc: npy_of_version(doc, 2),
    "npy of version 3": lambda doc: npy_of_version(doc, 3),
    "token array": codecs.tokens_bytes,
    "memoryview": lambda doc: memoryview(codecs.tokens_bytes(doc, "uint64")),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_tokens(form: str, numpy: bool) -> None:
    docs = [[value % 100 for value in doc] for doc in numbered([5, 3, 9])]
    make = FORMS[form]
    expected = reference(docs, 6)
    assert elements(pack(Sequenced([make(doc) for doc in docs]), 6)) == expected
    samples = [(str(number), {"ids": make(doc), "other": b""}) for number, doc in enumerate(docs)]
    assert elements(pack(Sequenced(samples), 6, tokens="ids")) == expected
    assert elements(pack(Sequenced([fields for _, fields in samples]), 6, tokens="ids")) == expected


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64", "uint64"])
def test_raw_bytes_of_a_declared_type(dtype: str, numpy: bool) -> None:
    docs = numbered([5, 3, 9])
    raw = [{"tokens": array(codecs.INTEGERS[dtype], doc).tobytes()} for doc in docs]
    assert elements(pack(Sequenced(raw), 6, dtype=dtype)) == reference(docs, 6)


BAD: dict[str, tuple[Any, str]] = {
    "null": (None, "there are no tokens"),
    "text": ("abc", "got a str"),
    "number": (3, "got a int"),
    "null among them": ([1, None], "NoneType among them"),
    "float among them": ([1, 2.0], "float among them"),
    "truth among them": ([1, True], "bool among them"),
    "floats": (array("d", [1.0]), "array of type 'd'"),
    "too large": ([1 << 63], "too large|too big"),
    "bytes of nothing known": (b"abcdefgh", "don't say their type"),
    "part of a token array": (codecs.tokens_bytes([1], "int32") + b"x", "no whole number of integers of 4"),
    "npy of floats": (npy([1], "float32"), "expected a .npy file of integers in one dimension"),
    "npy of two dimensions": (codecs.npy_bytes([[1, 2]]), "expected a .npy file of integers in one dimension"),
    "unsigned, too large": (codecs.tokens_bytes([1 << 63], "uint64"), "fit into 64 bits|too large|too big"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_integers_names_the_key(what: str, numpy: bool) -> None:
    value, message = BAD[what]
    samples = [("good", {"tokens": [1]}), ("bad one", {"tokens": value})]
    with pytest.raises(SampleError, match=rf"field 'tokens' of sample 'bad one'.*({message})"):
        elements(pack(Sequenced(samples), 6))


def test_a_field_that_is_missing_and_bytes_that_say_another_type() -> None:
    with pytest.raises(SampleError, match="field 'tokens' of sample 'k': there are no tokens"):
        elements(pack(Sequenced([("k", {"ids": [1]})]), 6))
    with pytest.raises(SampleError, match="field 'tokens' of an element without a key"):
        elements(pack(Sequenced([{"ids": [1]}]), 6))
    for said in (codecs.tokens_bytes([1]), npy([1], "int32")):
        with pytest.raises(SampleError, match="say their type themselves: leave it out"):
            elements(pack(Sequenced([("k", {"tokens": said})]), 6, dtype="int16"))


def test_numpy_arrays_that_are_no_documents() -> None:
    import numpy as np

    for value, message in ((np.zeros((2, 2), int), "shape"), (np.zeros(2), "float64"), (np.zeros(2, bool), "bool")):
        with pytest.raises(SampleError, match=message):
            elements(pack(Sequenced([("k", {"tokens": value})]), 6))


# ---------------------------------------------------------------- what is cut alike
def test_aligned_fields_are_cut_alike(numpy: bool) -> None:
    docs = numbered([5, 0, 3, 9])
    items = [
        (str(number), {"tokens": doc, "roles": [7] * (len(doc) - 1) + [8] * bool(doc), "weights": bytes(len(doc))})
        for number, doc in enumerate(docs)
    ]
    for mode in MODES:
        node = pack(Sequenced(items), 6, mode=mode, aligned={"roles": None, "weights": "uint8"})
        found = elements(node)
        assert [{name: block[name] for name in block if name not in ("roles", "weights")} for block in found] == (
            reference(docs, 6, mode)
        )
        roles = reference([[7] * (len(doc) - 1) + [8, 8] if doc else [] for doc in docs], 6, mode, eos=None)
        assert [block["roles"] for block in found] == [
            [0 if value == PAD else value for value in block["input_ids"]] for block in roles
        ]
        assert all(block["weights"] == [0] * 6 for block in found)
        restores_everywhere(lambda node=node: node)


def test_aligned_fields_of_another_length() -> None:
    with pytest.raises(SampleError, match="field 'roles' of sample 'k' has 2 numbers, and its tokens are 3"):
        elements(pack(Sequenced([("k", {"tokens": [1, 2, 3], "roles": [1, 2]})]), 6, aligned=["roles"]))


# ---------------------------------------------------------------- what makes no sense
@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"eos_id": ...}, "needs eos_id.*eos_id=None where the documents bring their own"),
        ({"pad_id": ...}, "needs pad_id"),
        ({"pad_id": None}, "pad_id must be a whole number"),
        ({"eos_id": 1.5}, "eos_id must be a whole number"),
        ({"size": 0}, "length of a block must be a whole number of at least 1"),
        ({"size": -3}, "of at least 1, got -3"),
        ({"mode": "last_fit"}, "'last_fit', and must be one of concat, first_fit, best_fit"),
        ({"max_documents": 3}, "goes with mode='first_fit'"),
        ({"mode": "best_fit", "max_documents": 0}, "max_documents must be"),
        ({"blocks": 0}, "blocks_per_epoch"),
        ({"blocks": "many"}, "blocks_per_epoch"),
        ({"dtype": "float32"}, "dtype of 'tokens'.*no type of tokens"),
        ({"aligned": "roles"}, r"pass \['roles'\]"),
        ({"aligned": ["doc_ids"]}, "'doc_ids' can't be"),
        ({"aligned": {"roles": "text"}}, "dtype of 'roles'"),
        ({"seed": "x"}, "a seed must be"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    given = {"size": 4, "eos_id": EOS, "pad_id": PAD, **arguments}
    with pytest.raises(ConfigError, match=message):
        Pack(Sequenced([[1]]), **{name: value for name, value in given.items() if value is not ...})
