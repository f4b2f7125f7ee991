"""What GPUs ask of a loader: samples a second that common models take in training, on 1 to 8 H100.

    python benchmarks/gpu_demand.py [--results benchmarks/results/side_by_side.json]

    samples a second = GPUs x samples a second of one GPU
    bytes a second   = samples a second x bytes of a sample
    cores            = samples a second x processor seconds of a sample, as measured

What one H100 takes is from public tables, each named below with its conditions: either as it was measured, or as
MLPerf Storage states it, which times a batch on the GPU with the data in memory (batch size / computation time). What
one core gives is dload's processor time of shuffled warm rows in a side-by-side run: reading, checking and handing out
samples of about that size. Decoding isn't in it: JPEGs take a core of their own a few hundred times a second, whatever
hands them out; that is shown beside where the run has the row. Tokens are 4 bytes each, as int32; a sample is a block.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

MLPERF = "MLPerf Storage, github.com/mlcommons/storage, configs/dlio/workload/{}_h100.yaml: {} in {} s"
FOUNDRY = "LLM Foundry, github.com/mosaicml/llm-foundry, scripts/train/benchmarking: 8 H100 80GB, BF16, {}"
NEMO = "NVIDIA NeMo user guide, CLIP performance: 8 H100 80GB, 935 samples a second"
GPUS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Model:
    """What one H100 takes a second, and how large a stored sample is."""

    name: str
    samples: float
    size: int
    source: str
    jpeg: bool = False


def _mlperf(name: str, workload: str, batch: int, seconds: float, size: int, *, jpeg: bool = False) -> Model:
    return Model(name, batch / seconds, size, MLPERF.format(workload, f"a batch of {batch}", seconds), jpeg)


def _tokens(name: str, tokens: float, length: int) -> Model:
    source = FOUNDRY.format(f"{tokens:,.0f} tokens a second and GPU at {length}")
    return Model(name, tokens / length, 4 * length, source)


MODELS = (
    _mlperf("ResNet-50", "resnet50", 400, 0.224, 114_660, jpeg=True),
    _mlperf("RetinaNet", "retinanet", 16, 0.180, 153_600, jpeg=True),
    Model("CLIP g/14", 935 / 8, 100_000, NEMO + "; 100 kB a pair are assumed", jpeg=True),
    _mlperf("Flux", "flux", 8, 0.850, 307_200, jpeg=True),
    _mlperf("U-Net 3D", "unet3d", 7, 0.323, 146_600_628),
    _mlperf("CosmoFlow", "cosmoflow", 1, 0.00350, 2_828_486),
    _mlperf("DLRM, a row a sample", "dlrm", 8192, 0.005, 512),
    _tokens("MPT 1B, blocks of 2,048", 45_455, 2048),
    _tokens("MPT 7B, blocks of 2,048", 10_643, 2048),
)


@dataclass(frozen=True)
class Measured:
    """Processor seconds of a sample, at the sizes that were measured; samples a second of a core that decodes."""

    seconds: dict[int, float]
    decoded: float

    @classmethod
    def of(cls, path: Path) -> Measured:
        record = json.loads(path.read_text())
        found = {one["row"]: one["medians"].get(record["ours"]) for one in record["results"] if one["figure"] == "cpu"}
        sizes = {"shuffled-1kb": 1000, "shuffled-100kb": 100_000, "shuffled-4mb": 4_000_000}
        seconds = {size: found[row] / 1e6 for row, size in sizes.items() if found.get(row)}
        if not seconds:
            raise SystemExit(
                f"{path} has no processor times of shuffled reading; run: side_by_side run --rows shuffled"
            )
        return cls(seconds, 1e6 / found["decode"] if found.get("decode") else 0.0)

    def of_size(self, size: int) -> float:
        """Processor seconds of a sample: on the line between the sizes measured; beyond the largest, by the byte."""
        sizes = sorted(self.seconds)
        if size <= sizes[0]:
            return self.seconds[sizes[0]]
        for low, high in pairwise(sizes):
            if size <= high:
                share = (size - low) / (high - low)
                return self.seconds[low] + share * (self.seconds[high] - self.seconds[low])
        return self.seconds[sizes[-1]] * size / sizes[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).parent / "results" / "side_by_side.json"
    parser.add_argument("--results", type=Path, default=default, help="of a side-by-side run")
    measured = Measured.of(parser.parse_args().results)
    counts = " ".join(f"{f'{gpus} H100':>10}" for gpus in GPUS)
    print(f"{'samples a second':26}{counts}   MB/s on 8   a core gives   cores for 8")
    for model in MODELS:
        needs = " ".join(f"{gpus * model.samples:10,.0f}" for gpus in GPUS)
        core = 1 / measured.of_size(model.size)
        cores = 8 * model.samples / core
        line = f"{model.name:26}{needs} {8 * model.samples * model.size / 1e6:11,.0f} {core:14,.0f} {cores:13.3f}"
        if model.jpeg and measured.decoded:
            line += f"   and {8 * model.samples / measured.decoded:.0f} to decode"
        print(line)
    print()
    for model in MODELS:
        print(f"{model.name}: {model.source}")


if __name__ == "__main__":
    main()
