"""Writing the inputs of `qassay probe`, and the page that says what to do with them."""

from __future__ import annotations

import contextlib
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from qassay.comparison.attribution.probes import Probes, probes
from qassay.comparison.attribution.setup import Floats
from qassay.containers.new_file import refusal
from qassay.core.errors import UsageError
from qassay.core.text import safe
from qassay.run.diagnose_weights import Weights, open_weights
from qassay.runtimes.sophgo.named import Aimed

_EPOCH = (1980, 1, 1, 0, 0, 0)
_LARGEST = 1 << 28


@dataclass(slots=True)
class ProbeResult:
    """What was written.

    Attributes:
        weights: The layer.
        probes: The inputs.
        path: The npz.
        page: The page beside it.
        arrays: Shapes by name.
    """

    weights: Weights
    probes: Probes
    path: Path
    page: Path
    arrays: dict[str, tuple[int, ...]]


def write_probes(
    model: Path,
    layer: str | None,
    output: Path,
    *,
    seed: int = 0,
    rows: int = 8,
    weight_bits: int | None = None,
    on: Aimed | None = None,
) -> ProbeResult:
    """Write inputs for one layer to a new npz, and a page of the same name beside it.

    Arrays: `prefill` float32 `[1, M, K]`, `decode` float32 `[R, 1, K]`, some of the same rows.
    The same weights and seed give the same bytes.

    Raises:
        InputError: The model cannot be read.
        UsageError: There is no such layer, or a file is there already.
    """
    if output.suffix.lower() != ".npz":
        raise UsageError("probes are written as npz", expected="a name that ends in .npz",
                         found=safe(output.name, 80))  # fmt: skip
    page = output.with_suffix(".md")
    for each in (output, page):
        if each.exists():
            raise UsageError("the file is there already", path=safe(str(each)),
                             hint="name another, or remove it")  # fmt: skip
    weights = open_weights(model, layer, weight_bits=weight_bits)
    made = probes(weights.setup, seed=seed, random=rows)
    if made.x.nbytes > _LARGEST:
        raise UsageError("too many inputs", expected=f"at most {_LARGEST} bytes of them",
                         found=str(made.x.nbytes))  # fmt: skip
    arrays = {"prefill": made.x[None], "decode": made.x[list(made.decode)][:, None]}
    shapes = {name: array.shape for name, array in arrays.items()}
    done = ProbeResult(weights, made, output, page, shapes)
    words = page_of(done, on, model)
    begun: list[Path] = []
    try:
        with output.open("xb") as stream:
            begun.append(output)
            _write_arrays(stream, arrays)
        with page.open("x", encoding="utf-8", newline="\n") as text:
            begun.append(page)
            text.write(words)
    except BaseException as error:
        for each in begun:  # half of them would be taken for all
            with contextlib.suppress(OSError):
                each.unlink()
        if isinstance(error, OSError):
            raise refusal(error, output) from error
        raise
    return done


def _write_arrays(stream: IO[bytes], arrays: Mapping[str, Floats]) -> None:
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy", _EPOCH)  # no times: the same bytes again
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array))


def kinds_of(made: Probes) -> list[tuple[str, int, str]]:
    """Return kind, number of rows, and what they show."""
    counted = Counter(kind.partition(" ")[0] for kind in made.kinds)
    shows = {
        "zeros": "the bias, and nothing else",
        "one-hot": "codes and scales of single columns; nothing is added up",
        "random": "all columns at once",
        "loud": "an accumulator that overflows",
        "nan": "whether NaN is hidden",
    }
    return [(kind, rows, shows[kind]) for kind, rows in counted.items()]


def page_of(done: ProbeResult, on: Aimed | None, model: Path) -> str:
    """Return the page that goes with the inputs."""
    n, k = done.weights.setup.n, done.weights.setup.k
    name, layer = safe(done.path.name), safe(done.weights.name, 200)
    m, r = done.arrays["prefill"][1], done.arrays["decode"][0]
    table = "\n".join(
        f"| {kind} | {rows} | {shows} |" for kind, rows, shows in kinds_of(done.probes)
    )
    on_option = f" --on {on}" if on else " --on sophgo:CHIP@VERSION"
    return f"""# Inputs for {layer}

Weight [N, K] = [{n}, {k}]. `{name}` holds float32 arrays, every number exact in bf16 and in
range of f16:

- `prefill` [1, {m}, {k}]: all rows in one run.
- `decode` [{r}, 1, {k}]: {r} of the same rows, to be run one at a time.

| rows | number | they show |
| --- | --- | --- |
{table}

## What to run

1. Run this one Linear on the device, with the weights that the model has there, its bias included.
   Run nothing behind it: no activation function, no residual. If the model can only be run as a
   whole, put the rows in where the Linear's input is, and take its output before anything reads it.
2. Run `prefill` once. Run each row of `decode` by itself, with the kernel that decoding uses.
3. Leave the NaN and the large numbers in: they are meant.

In Python, with `run(x)` being your device:

    import numpy as np
    probes = np.load("{name}")
    np.savez(
        "device.npz",
        prefill=run(probes["prefill"]),
        decode=np.concatenate([run(x[None]) for x in probes["decode"]]),
    )

## How to bring the outputs back

One npz (or safetensors file) with the same names: `prefill` [1, {m}, {n}], `decode` [{r}, 1, {n}].
float32, float16, bfloat16 (as uint16 bit patterns) are all right; do not convert through text.
Raw dumps: a folder with one file an array and a JSON that says

    {{"prefill": {{"file": "prefill.bin", "shape": [1, {m}, {n}], "dtype": "float32"}}}}

`decode` may be left out. If the outputs have more than {n} columns, leave them: that is a finding.

## Then

    qassay diagnose --weights {safe(model.name, 80)} --layer {layer} --inputs {name} \\
        --device device.npz{on_option}
"""
