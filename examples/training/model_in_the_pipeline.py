"""A model in the pipeline: a teacher labels what nobody has labelled, and a student learns from its labels alone.

    python examples/training/model_in_the_pipeline.py

Data: the 1,797 handwritten digits that scikit-learn brings. Of a tenth of them the labels are known; a teacher learns
these, and its weights are committed as a data set of their own. `derive` runs it over the two thirds without labels, in
batches (`map_batches`), keeps those that it is sure of, and stores them, under a fingerprint that holds the version of
the weights (`tag`): asked for again, nothing is computed, and another teacher's labels would be another version.

Expected: the student reads about 90 % of the held-out scans, as its teacher does, where the commonest digit is right
for 10 %.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import dload
from dload.codecs import npy_bytes, npy_from

EPOCHS, BATCH, SURE = 30, 32, 0.8

Sample = tuple[str, dict[str, bytes]]


def scans() -> Iterator[Sample]:
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        yield f"scan-{number:04d}", {"pixels": pixels.astype("u1").tobytes(), "label": b"%d" % label}


def images(samples: list[Sample]) -> torch.Tensor:
    """(n, 64), from 0 to 1."""
    pixels = np.frombuffer(b"".join(fields["pixels"] for _, fields in samples), np.uint8)
    return torch.from_numpy(pixels.reshape(len(samples), -1) / np.float32(16))


def labels(samples: list[Sample]) -> torch.Tensor:
    return torch.tensor([int(fields["label"]) for _, fields in samples])


def without_label(sample: Sample) -> Sample:
    key, fields = sample
    return key, {"pixels": fields["pixels"]}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))


class Teacher:
    """A model whose weights are a version of a data set."""

    def __init__(self, weights: dload.Dataset) -> None:
        self.model = network().eval()
        self.model.load_state_dict({key: torch.tensor(npy_from(fields["npy"])) for key, fields in weights})

    def label(self, samples: list[Sample]) -> list[Sample]:
        """What it takes each for, and how sure it is."""
        with torch.no_grad():
            sure, label = self.model(images(samples)).softmax(1).max(1)
        return [
            (key, {**fields, "label": b"%d" % one, "sure": b"%.3f" % chance})
            for (key, fields), one, chance in zip(samples, label.tolist(), sure.tolist(), strict=True)
        ]


def is_sure(sample: Sample) -> bool:
    return float(sample[1]["sure"]) > SURE


def train(pipe: dload.Pipeline) -> nn.Module:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with dload.Loader(pipe, BATCH) as loader:
        for _ in range(EPOCHS):
            for samples in loader:
                loss = nn.functional.cross_entropy(model(images(samples)), labels(samples))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, samples: list[Sample]) -> float:
    return (model(images(samples)).argmax(1) == labels(samples)).float().mean().item()


def main(seed: int = 0) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dload-example-") as folder:
        repo = dload.Repository.open(f"{folder}/store", cache_dir=f"{folder}/cache")
        repo.commit("digits", scans())
        shares = {"labelled": 0.1, "unlabelled": 0.65, "test": 0.25}
        parts = repo.dataset("digits").split(shares, seed=seed, stratify="label")
        test = list(parts["test"])

        model = train(parts["labelled"].samples().shuffle(seed=seed))
        repo.commit("teacher", ((name, {"npy": npy_bytes(one.numpy())}) for name, one in model.state_dict().items()))
        weights = repo.dataset("teacher")

        bare = parts["unlabelled"].samples().map(without_label)
        pipe = bare.map_batches(Teacher(weights).label, 64).filter(is_sure)
        labelled = repo.derive("labelled-by-teacher", pipe, tag=weights.version)
        assert repo.derive("labelled-by-teacher", pipe, tag=weights.version).version == labelled.version
        right = np.mean([fields["label"] == parts["unlabelled"][key]["label"] for key, fields in labelled])
        student = train(labelled.samples().shuffle(seed=seed))

        taught, teachers = accuracy(student, test), accuracy(model, test)
        majority = labels(test).bincount().max().item() / len(test)
        print(f"{len(labelled)} of {len(parts['unlabelled'])} scans labelled by the teacher, {right:.3f} of them right")
        print(f"{len(test)} held out: student {taught:.3f}, teacher {teachers:.3f}, the commonest digit {majority:.3f}")
        assert taught > 0.75 > 4 * majority
        assert taught > teachers - 0.08


if __name__ == "__main__":
    main()
