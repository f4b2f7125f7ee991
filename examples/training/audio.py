"""Audio: a network tells families of instruments apart by spectra that are derived once and stored.

    python examples/training/audio.py

Data: the recordings of single notes in TimGM6mb.sf2, the sound font that pretty_midi brings: over 300 of them have a
name that says which of nine families they belong to. Each is committed as a .wav file with its family. `derive` makes a
log-mel spectrogram of each and stores it as a data set of its own; asking for it again finds it. A quarter of the
recordings is held out by key; of the others each epoch hears another stretch, a little higher or lower.

Expected: the family of some 60 % of the held-out recordings, where always saying the commonest is right for 20 %.
"""

from __future__ import annotations

import importlib.util
import io
import random
import struct
import tempfile
import wave
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

import dload
from dload.codecs import npy_bytes, npy_from

EPOCHS, BATCH = 70, 32
RATE, FRAME, HOP, BANDS, FRAMES = 22050, 1024, 256, 48, 8

FAMILIES = {  # what the names of recordings have in them; the first that fits counts
    "wood": ["Flute", "Oboe", "Clar", "Bassoon", "English Horn", "Piccolo", "Recorder", "Ocarina", "Shakuhachi"],
    "bass": ["Bass"],
    "saxophone": ["Alto", "Tenor", "Bari", "Sop"],
    "brass": ["Trump", "Tuba", "Trombone", "Horn", "HORN", "Harmon Mute"],
    "guitar": ["Gtr", "Guitar", "Strat"],
    "strings": ["Violin", "Cello", "ensstrings", "Str1"],
    "voice": ["Aahs", "Doo", "Choir", "Vox"],
    "keys": ["Piano", "EP", "CP70", "Clavinet", "Harpsichord", "Org", "Accordion", "Harmonica", "B3Lo"],
    "drums": [
        "Snare", "Hat", "Cymb", "Tom", "Timbale", "Bongo", "Tumba", "Quinto", "Ride", "Claves", "Guiro", "Maracas",
        "Cabasa", "Castanets", "Rim Shot", "Taiko", "Wood Block", "Stick", "Slap", "Kick", "Drum", "Claps",
    ],
}  # fmt: skip
NAMES = list(FAMILIES)

Sample = tuple[str, dict[str, bytes]]
Row = tuple[np.ndarray, int]


# ---------------------------------------------------------------- data
def chunks(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """The parts of a RIFF file: name, first byte, end."""
    while start + 8 <= end:
        name, size = struct.unpack_from("<4sI", data, start)
        yield name, start + 8, start + 8 + size
        start += 8 + size + size % 2


def recordings() -> Iterator[Sample]:
    """Those of the sound font whose name says their family, as .wav files."""
    spec = importlib.util.find_spec("pretty_midi")
    assert spec is not None, "pip install pretty_midi"
    data = Path(spec.submodule_search_locations[0], "TimGM6mb.sf2").read_bytes()
    parts = {
        name: (first, last)
        for kind, begin, end in chunks(data, 12, len(data)) if kind == b"LIST"
        for name, first, last in chunks(data, begin + 4, end)
    }  # fmt: skip
    sound = parts[b"smpl"][0]
    for number, (name, first, last, _, _, rate, *_) in enumerate(
        struct.iter_unpack("<20sIIIIIBbHH", data[slice(*parts[b"shdr"])])
    ):
        title = name.split(b"\0")[0].decode("latin1")
        family = next((each for each, words in FAMILIES.items() if any(word in title for word in words)), None)
        if family is None or last - first < FRAME:
            continue
        file = io.BytesIO()
        with wave.open(file, "wb") as out:
            out.setparams((1, 2, rate, 0, "NONE", ""))
            out.writeframes(data[sound + 2 * first : sound + 2 * last])
        yield f"{number:03d} {title}", {"wav": file.getvalue(), "family": family.encode()}


# ---------------------------------------------------------------- pipeline
def mel_filters() -> np.ndarray:
    """Triangles of equal width in mel, (bins of the FFT, BANDS)."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(FRAME, 1 / RATE)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling))


FILTERS = mel_filters()


def spectrogram(sample: Sample) -> Sample:
    """(frames, BANDS) of the loudness of each band, in place of the sound."""
    key, fields = sample
    with wave.open(io.BytesIO(fields["wav"])) as file:
        sound = np.frombuffer(file.readframes(-1), "<i2").astype(np.float64)
        times = np.arange(0, len(sound), file.getframerate() / RATE)
    sound = np.interp(times, np.arange(len(sound)), sound)  # all at one rate
    sound = np.pad(sound, (0, max(0, FRAME + (FRAMES - 1) * HOP - len(sound))), mode="wrap")
    frames = np.lib.stride_tricks.sliding_window_view(sound, FRAME)[::HOP] * np.hanning(FRAME)
    bands = np.log1p(np.abs(np.fft.rfft(frames)) @ FILTERS)
    return key, {"spectrum": npy_bytes(bands.astype(np.float32)), "family": fields["family"]}


def decode(sample: Sample) -> Row:
    _key, fields = sample
    spectrum = npy_from(fields["spectrum"])
    return (spectrum - spectrum.mean()) / (spectrum.std() + 1e-6), NAMES.index(fields["family"].decode())


def cut(row: Row, rng: random.Random) -> Row:
    """A random stretch of a recording, its bands shifted by up to three."""
    spectrum, family = row
    start = rng.randrange(len(spectrum) - FRAMES + 1)
    return np.roll(spectrum[start : start + FRAMES], rng.randint(-3, 3), axis=1), family


def tensors(rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(np.stack([row[0] for row in rows])), torch.tensor([row[1] for row in rows])


# ---------------------------------------------------------------- training
@torch.no_grad()
def family_of(model: nn.Module, spectrum: np.ndarray) -> int:
    """What five stretches of a recording say together."""
    starts = np.linspace(0, len(spectrum) - FRAMES, 5).astype(int)
    stretches = torch.from_numpy(np.stack([spectrum[start : start + FRAMES] for start in starts]))
    return int(model(stretches).softmax(1).mean(0).argmax())


def main(seed: int = 0) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dload-example-") as folder:
        repo = dload.Repository.open(f"{folder}/store", cache_dir=f"{folder}/cache")
        repo.commit("notes", recordings())
        notes = repo.dataset("notes")
        spectra = repo.derive("spectra", notes.samples().map(spectrogram))
        assert repo.derive("spectra", notes.samples().map(spectrogram)).version == spectra.version  # found, not made
        parts = spectra.split({"train": 0.75, "test": 0.25}, seed=seed)
        train = parts["train"].samples().shuffle(seed=seed).map(decode).map(cut, rng=True)

        model = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.3), nn.Linear(FRAMES * BANDS, 128), nn.ReLU(), nn.Linear(128, len(NAMES))
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        with dload.Loader(train, BATCH, collate=tensors) as loader:
            for _ in range(EPOCHS):
                for sounds, families in loader:
                    loss = nn.functional.cross_entropy(model(sounds), families)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

        test = list(parts["test"].samples().map(decode))
        accuracy = np.mean([family_of(model.eval(), spectrum) == family for spectrum, family in test])
        majority = Counter(family for _, family in test).most_common(1)[0][1] / len(test)
        print(f"{len(test)} recordings held out: {accuracy:.2f} right; the commonest family: {majority:.2f}")
        assert accuracy > 0.42 > 1.5 * majority


if __name__ == "__main__":
    main()
