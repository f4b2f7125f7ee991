"""Images, captions and features in data sets of their own, joined by key; captions come later, and not for every image.

    pip install dload-ml numpy pillow scikit-image
    python examples/multimodal_join.py

Each has its own owner, order and versions. A join copies nothing: it reads two versions side by side, so that nobody
needs to store the images anew because a caption was mended. Images and captions are those that come with scikit-image.
"""

from __future__ import annotations

import inspect
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import skimage.data
from PIL import Image

import dload
from dload.codecs import npy_bytes, npy_from, text_bytes, text_from
from dload.errors import UnknownKeyError

Sample = tuple[str, dict[str, bytes]]


def images() -> Iterator[Sample]:
    """Small versions of all images, by name."""
    for path in sorted(Path(skimage.data.__file__).parent.glob("*.png")):
        with Image.open(path) as image:
            small = image.convert("RGB").resize((64, 64))
        file = io.BytesIO()
        small.save(file, "png")
        yield path.stem, {"png": file.getvalue()}


def captions() -> Iterator[Sample]:
    """What their documentation says of them, in the order of length; of some it says nothing."""
    texts = {name: inspect.getdoc(getattr(skimage.data, name, None)) for name, _ in images()}
    for name in sorted((name for name, text in texts.items() if text), key=lambda name: len(texts[name] or "")):
        yield name, {"txt": text_bytes((texts[name] or "").splitlines()[0])}


def colors(sample: Sample) -> Sample:
    """The mean color (3,)."""
    key, fields = sample
    with Image.open(io.BytesIO(fields["png"])) as image:
        return key, {"npy": npy_bytes(np.asarray(image, np.float32).mean(axis=(0, 1)))}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dload-example-") as name:
        folder = Path(name)
        repo = dload.Repository.open(folder / "store", cache_dir=folder / "cache", cache_budget="100MB")
        repo.commit("images", images())
        repo.commit("captions", captions())
        pictures, texts = repo.dataset("images"), repo.dataset("captions")
        print(f"{len(pictures)} images, {len(texts)} captions")

        # By default everything must have its partner; what hasn't is named.
        try:
            pictures.join(texts)
        except UnknownKeyError as error:
            print(error)
        else:
            raise AssertionError("some have no caption")
        pairs = pictures.join(texts, missing="drop")
        assert len(pairs) == len(texts)
        captioned = {key: text_from(fields["txt"]) for key, fields in pairs}
        assert captioned == {key: text_from(fields["txt"]) for key, fields in texts}
        print(f"the images that have one: coffee is {captioned['coffee']!r}")
        assert list(captioned) == [key for key, _ in pictures if key in captioned]  # the left one's order

        # Features of all images, derived once; a sample of the three has the fields of each.
        features = repo.derive("colors", pictures.samples().map(colors))
        triples = pictures.join(texts, features, missing="drop")
        for key, fields in triples.take(3):
            red, green, blue = npy_from(fields["npy"])
            print(f"{key}: {text_from(fields['txt'])} Red {red:.0f}, green {green:.0f}, blue {blue:.0f}.")
        assert all(fields.keys() == {"png", "txt", "npy"} for _, fields in triples)

        # It has places, so it is shuffled, dealt to ranks and resumed as any data set; and its parts are joined alike.
        shuffled = triples.shuffle(seed=0)
        assert [key for key, _ in shuffled] != list(captioned)
        parts = pictures.split({"train": 0.7, "test": 0.3}, seed=0)
        sides = [{key for key, _ in part.join(texts, missing="drop")} for part in parts.values()]
        assert sides[0] | sides[1] == captioned.keys() and not sides[0] & sides[1]
        print(f"{len(sides[0])} pairs to train on, {len(sides[1])} to test")

        # More captions come, as a version of their own. The images aren't touched.
        without = next(key for key, _ in pictures if key not in captioned)
        repo.append("captions", [(without, {"txt": text_bytes("It has one now.")})])
        more = pictures.join(repo.dataset("captions"), missing="drop")
        assert len(more) == len(pairs) + 1 and len(repo.log("images")) == 1


if __name__ == "__main__":
    main()
