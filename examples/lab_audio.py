"""A lab's recordings, committed with the recipe that made them; and made again, byte for byte, from that recipe.

    pip install dload-ml numpy pretty_midi
    python examples/lab_audio.py

The raw takes are single notes of a piano and a bassoon, of the sound font that comes with pretty_midi. The recipe is
the script that cuts them. Its text is stored with each version, so that years later the store alone says how the data
came about.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
import wave
from importlib.util import find_spec
from pathlib import Path

import dload
from dload.codecs import json_from

KINDS = {"piano": b"Piano", "bassoon": b"Bassoon"}  # and what the names of their recordings have in them

RECIPE = '''\
"""python cut.py RAW CLIPS: each take from where it begins to where it has died away, and what is known of it."""

import json
import sys
import wave
from pathlib import Path

import numpy as np

QUIET = 0.05  # of the loudest sample

raw, clips = map(Path, sys.argv[1:])
for path in sorted(raw.rglob("*.wav")):
    with wave.open(str(path)) as take:
        rate, sound = take.getframerate(), np.frombuffer(take.readframes(-1), "<i2")
    loud = np.flatnonzero(np.abs(sound.astype(int)) > QUIET * np.abs(sound.astype(int)).max())
    sound = sound[loud[0] : loud[-1] + 1]
    clip = clips / path.relative_to(raw)
    clip.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(clip), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(sound.tobytes())
    facts = {"kind": path.parent.name, "rate": rate, "seconds": round(len(sound) / rate, 3)}
    clip.with_suffix(".json").write_text(json.dumps(facts))
'''


def record(folder: Path) -> None:
    """The raw takes: folder/piano/047.wav and so on, of a General MIDI sound font in the SoundFont 2 format."""
    package = find_spec("pretty_midi")
    assert package is not None and package.origin is not None, "pip install pretty_midi"
    font = Path(package.origin).with_name("TimGM6mb.sf2").read_bytes()
    sounds, headers = font.index(b"sdtasmpl") + 12, font.rindex(b"shdr") + 8
    size = int.from_bytes(font[headers - 4 : headers], "little")
    entries = struct.iter_unpack("<20s5I6x", font[headers : headers + size])
    for number, (name, first, last, _, _, rate) in enumerate(entries):
        kind = next((kind for kind, word in KINDS.items() if word in name), None)
        if kind is not None:
            path = folder / kind / f"{number:03d}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            with wave.open(str(path), "wb") as file:
                file.setparams((1, 2, rate, 0, "NONE", ""))
                file.writeframes(font[sounds + 2 * first : sounds + 2 * last])


def cut(recipe: str, raw: Path, clips: Path) -> Path:
    """Run a recipe."""
    script = clips.with_suffix(".py")
    script.write_text(recipe)
    subprocess.run([sys.executable, str(script), str(raw), str(clips)], check=True)
    return clips


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dload-example-") as name:
        folder = Path(name)
        raw = folder / "raw"
        record(raw)
        repo = dload.Repository.open(folder / "store", cache_dir=folder / "cache", cache_budget="100MB")

        clips = dload.importers.open_source(cut(RECIPE, raw, folder / "clips"))
        first = repo.commit("takes", clips, recipe=RECIPE, meta={"room": "B 12"}, message="as cut on the first day")
        print(f"takes@{first.version[:12]}: {first.num_samples} clips, fields {', '.join(sorted(first.fields))}")

        # A clip and its facts are one sample: piano/047.wav and piano/047.json.
        key, fields = repo.dataset("takes")[-1]
        facts = json_from(fields["json"])
        print(f"{key}: {len(fields['wav'])} bytes of sound, {facts}")
        assert facts["kind"] == "piano" and facts["seconds"] > 0

        # The recipe cuts a little later now. That is another version; each has its own recipe.
        later = RECIPE.replace("QUIET = 0.05", "QUIET = 0.2")
        clips = dload.importers.open_source(cut(later, raw, folder / "later"))
        second = repo.commit("takes", clips, recipe=later, meta={"room": "B 12"}, message="cut when it is quieter")
        changed = repo.diff("takes", first.version, second.version).changed
        print(f"takes@{second.version[:12]}: {len(changed)} clips are cut otherwise")
        assert changed

        # Years later: take the recipe out of the store and run it. The same bytes are the same version.
        kept = repo.manifest("takes", first.version)
        again = dload.importers.open_source(cut(kept.recipe or "", raw, folder / "again"))
        made = repo.commit("takes", again, recipe=kept.recipe, meta=kept.meta, message="as on the first day")
        assert made.version == first.version
        print("the recipe out of the store, run anew, gives the same version")


if __name__ == "__main__":
    main()
