"""A system of two kinds of atoms for DeePMD-kit: its frames, and the input of a small model that learns them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

WIDTH = 6.0
"""Of the periodic box, in Å."""
FRAMES = {"train": 64, "valid": 16}
STEPS = 200
EQUAL_STEPS = {"scale_by_worker": "none"}
"""Two ranks with half of the batch each take steps as long as those of one rank with all of it."""


def write(folder: Path) -> None:
    """Writes both sets of frames."""
    for seed, (name, count) in enumerate(FRAMES.items()):
        _write_system(folder / name, count, np.random.default_rng(seed))


def write_input(folder: Path, *, batch_size: int, steps: int = STEPS) -> str:
    """Writes the input of a training into the folder of the frames, and returns its name."""
    systems = {name: {"systems": [name], "batch_size": batch_size} for name in FRAMES}
    systems["valid"]["batch_size"] = FRAMES["valid"]
    descriptor = {"type": "se_e2_a", "rcut": 4.0, "rcut_smth": 1.0, "sel": [16, 16], "neuron": [4, 8], "axis_neuron": 4}
    training = {"numb_steps": steps, "seed": 1, "disp_freq": 50, "save_freq": steps}
    content = {
        "model": {
            "type_map": ["A", "B"],
            "descriptor": {**descriptor, "seed": 1},
            "fitting_net": {"neuron": [8, 8], "seed": 1},
        },
        "learning_rate": {"type": "exp", "start_lr": 1e-2, "stop_lr": 1e-4, "decay_steps": 50, **EQUAL_STEPS},
        "loss": {"start_pref_e": 1, "limit_pref_e": 1, "start_pref_f": 100, "limit_pref_f": 1},
        "training": {"training_data": systems["train"], "validation_data": systems["valid"], **training},
    }
    (folder / "input.json").write_text(json.dumps(content))
    return "input.json"


def _write_system(folder: Path, frames: int, random: np.random.Generator) -> None:
    places = np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(-1, 3) * WIDTH / 2
    coordinates = [places + random.normal(0, 0.3, places.shape) for _ in range(frames)]
    energies, forces = zip(*map(_energy_and_forces, coordinates), strict=True)
    boxes = [np.diag([WIDTH] * 3)] * frames
    (folder / "set.000").mkdir(parents=True)
    (folder / "type.raw").write_text("0\n1\n" * (len(places) // 2))
    (folder / "type_map.raw").write_text("A\nB\n")
    for name, rows in {"coord": coordinates, "energy": energies, "force": forces, "box": boxes}.items():
        np.save(folder / f"set.000/{name}.npy", np.reshape(rows, (frames, -1)))


def _energy_and_forces(places: np.ndarray) -> tuple[float, np.ndarray]:
    """Each pair of atoms repels with the energy ``exp(-r²/2)``."""
    apart = places[:, None] - places
    apart -= WIDTH * np.round(apart / WIDTH)
    pairs = np.exp(-(apart**2).sum(-1) / 2)
    np.fill_diagonal(pairs, 0)
    return pairs.sum() / 2, (pairs[..., None] * apart).sum(1)
