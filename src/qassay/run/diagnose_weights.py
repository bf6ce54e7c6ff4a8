"""The weights of one Linear, wherever they are: a checkpoint, an npz of tpu-mlir, a `.mlir`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.comparison.attribution.setup import Setup, setup_of, setup_of_floats
from qassay.comparison.canonical_blocks import canonical_rows
from qassay.containers.opening import display_name
from qassay.core.container import StoredTensor
from qassay.core.errors import InputError, UsageError
from qassay.core.text import safe
from qassay.encodings.base import BlockEncoding
from qassay.encodings.layers import Layer
from qassay.encodings.registry import assembled, for_stored_type, open_with_encodings
from qassay.run.diagnose_arrays import as_floats, read_arrays
from qassay.run.near import near
from qassay.runtimes.linear import Matrix
from qassay.runtimes.sophgo.chips import Branch, behaviour
from qassay.runtimes.sophgo.layout import Reordered, restore
from qassay.runtimes.sophgo.mlir import MatMulRecord, MlirModule, read_mlir
from qassay.runtimes.sophgo.packing import unpack
from qassay.runtimes.sophgo.quantizer import canonical
from qassay.runtimes.sophgo.weight_file import WeightFile, weights_of

Array = npt.NDArray[Any]

MOST_WEIGHTS = 1 << 28
"""Weights of a layer that are taken; the search holds several float32 copies."""
_OTHERS = 24
_OTHER_WEIGHTS = 1 << 26
_KEYS = ("qweight", "scales", "qzeros")


@dataclass(slots=True, eq=False)
class Weights:
    """One Linear.

    Attributes:
        setup: Codes, scales, zero points, bias.
        name: Of the layer.
        path: As reports name it.
        format: `npz`, `mlir`, `safetensors`, ...
        label: The encoding, or how the operation is called.
        nbytes: Of the file.
        group: Weights of a row that share a scale; 0 where nothing is quantized.
        others: Other layers of the same shape, whose weights may have been used by mistake.
        chip: The chip that a `.mlir` names.
        notes: What had to be assumed.
        matrix: The stored blocks, of a tensor that has such.
    """

    setup: Setup
    name: str
    path: str
    format: str
    label: str
    nbytes: int
    group: int = 0
    others: dict[str, Setup] = field(default_factory=dict)
    chip: str = ""
    notes: list[str] = field(default_factory=list)
    matrix: Matrix | None = None


def open_weights(
    path: Path,
    layer: str | None = None,
    group_size: int | None = None,
    *,
    columns: int | None = None,
    weight_bits: int | None = None,
) -> Weights:
    """Return the weights of a layer.

    Args:
        path: An npz, a `.mlir`, a model file or a folder.
        layer: Its name; may be left out where there is one only.
        group_size: What g is; where the file tells too, both have to agree.
        columns: K, where the inputs tell it: an npz does not say what its bytes hold.
        weight_bits: Width of codes in an npz, where K is not known.

    Raises:
        InputError: The file cannot be read.
        UsageError: There is no such layer, or it is not clear which.
    """
    suffix = path.suffix.lower()
    if suffix == ".npz":
        found = _npz(path, columns, weight_bits)
    elif suffix == ".mlir":
        found = _mlir(path, layer)
    else:
        found = _model(path, layer)
    if layer is not None and found.format == "npz":
        found.notes.append(f"{found.path} holds one Linear: {safe(layer, 80)} was not looked for")
    n, k = found.setup.n, found.setup.k
    if n * k > MOST_WEIGHTS or not n * k:
        raise UsageError("no weight that can be diagnosed", path=found.path,
                         expected=f"1 to {MOST_WEIGHTS:,} weights", found=f"{n} x {k}")  # fmt: skip
    found.group = k // max(1, found.setup.g) if found.setup.quantized else 0
    if group_size and found.group and group_size != found.group:
        raise UsageError(
            "--group-size is not that of the scales",
            path=found.path,
            expected=f"{found.group}: K = {k}, {found.setup.g} scales a row",
            found=str(group_size),
            hint="leave it out",
        )
    return found


def _npz(path: Path, columns: int | None, weight_bits: int | None) -> Weights:
    """Read `qweight` [N, K/2 or K] with `scales`, `qzeros` and `bias`, or a float `weight`."""
    arrays = read_arrays(path)
    shown, nbytes = display_name(path), path.stat().st_size
    bias = arrays.get("bias")
    added = None if bias is None else as_floats(bias, "bias").reshape(-1)
    if all(key in arrays for key in _KEYS):
        scales = as_floats(arrays["scales"], "scales")
        zeros, packed = arrays["qzeros"], arrays["qweight"]
        if zeros.size != scales.size:
            raise InputError("qzeros and scales differ in size", path=shown,
                             expected=str(scales.size), found=str(zeros.size))  # fmt: skip
        if scales.ndim != 2 or packed.ndim != 2 or packed.dtype.itemsize != 1:
            raise InputError(
                "these are no weights of one Linear",
                path=shown,
                expected="qweight uint8 [N, K/2] or [N, K], scales [N, K/g], qzeros [N, K/g]",
                found=f"{packed.dtype} {list(packed.shape)}, {list(scales.shape)}",
                hint="weight files of tpu-mlir are flat: name the .mlir beside this one",
            )
        _check_zeros(zeros, shown)
        bits = weight_bits or (8 if columns == packed.shape[1] else 4)
        what = canonical(unpack(packed, bits), scales, zeros.reshape(scales.shape))
        setup = setup_of(what, added, bits)
        return Weights(setup, path.stem, shown, "npz", f"sophgo.w{bits}bf16", nbytes)
    weight = arrays.get("weight")
    if weight is None or weight.ndim != 2:
        raise UsageError(
            "this npz holds no Linear",
            path=shown,
            expected="qweight, scales, qzeros (and bias); or weight [N, K]",
            found=", ".join(safe(name, 40) for name in list(arrays)[:8]),
        )
    floats = as_floats(weight, "weight")
    # tpu-mlir's MatMul takes [K, N]; everybody else keeps [N, K].
    rows = None if added is None else added.size
    if floats.shape[0] != floats.shape[1] and (
        columns == floats.shape[0] or (columns is None and rows == floats.shape[1])
    ):
        floats = np.ascontiguousarray(floats.T)
    return Weights(setup_of_floats(floats, added), path.stem, shown, "npz", "float", nbytes)


def _check_zeros(zeros: Array, shown: str) -> None:
    """Refuse zero points that are no small integers: as integers they would be other ones."""
    values = zeros.astype(np.float64) if zeros.dtype.kind in "fiu" else None
    if values is None or not (np.isfinite(values) & (np.rint(values) == values)).all():
        raise InputError("qzeros are no integers", path=shown, expected="0 to 15, or to 255",
                         found=str(zeros.dtype))  # fmt: skip
    if values.size and np.abs(values).max() > 255:
        raise InputError("qzeros are no zero points", path=shown, expected="0 to 15, or to 255",
                         found=f"{values.min():.6g} to {values.max():.6g}")  # fmt: skip


def _mlir(path: Path, layer: str | None) -> Weights:
    module = read_mlir(path)
    shown = display_name(path)
    chosen = [one for one in module.linears if layer is None or one.name == layer]
    if len(chosen) != 1:
        names = near(layer, [one.name for one in module.linears])
        raise UsageError(
            "which layer?" if chosen or layer is None else "there is no such Linear",
            path=shown,
            expected=f"one of {names}" if names else "an A16MatMul or a MatMul",
            found=safe(layer or f"{len(chosen)} Linears", 80),
            hint="name one of them (diagnose: --layer)",
        )
    record = chosen[0]
    with weights_of(module, path.parent) as file:
        setup = _of_record(record, module, file)
        nbytes = Path(file.path).stat().st_size
    kind = record.op.rpartition(".")[2]
    label = f"{kind}, {record.weight_bits} bits" if record.quantized else kind
    return Weights(setup, record.name, shown, "mlir", label, nbytes, chip=module.chip)


def _of_record(record: MatMulRecord, module: MlirModule, file: WeightFile) -> Setup:
    bias = None
    if record.bias is not None and record.bias.is_weight:
        bias = as_floats(file.read(record.bias.name), "bias").reshape(-1)
    weight = file.read(record.weight.name)
    if not record.quantized:
        floats = as_floats(weight, "weight")
        floats = floats.reshape(floats.shape[-2:])
        return setup_of_floats(floats if record.w_transpose else floats.T, bias)
    bits = record.weight_bits or 4
    codes = unpack(weight.reshape(weight.shape[-2:]).view(np.uint8), bits)
    if not record.w_transpose:
        codes = np.ascontiguousarray(codes.T)
    assert record.scale is not None  # noqa: S101 - an A16MatMul that was parsed has one
    scales = file.read(record.scale.name)
    zeros = None
    if record.zero_point is not None and record.zero_point.is_weight:
        zeros = file.read(record.zero_point.name)
    if scales.ndim == 3 and scales.shape[0] > 1:
        branch = Branch.PLAIN
        if zeros is None:
            branch = behaviour(module.chip, q_group_size=record.q_group_size or 0).branch
        dealt = None if zeros is None else zeros.astype(np.uint8).reshape(scales.shape)
        scales, zeros = restore(Reordered(scales, dealt, branch))
    if zeros is None:
        raise UsageError("the zero points of this Linear are not in its weight file")
    n = codes.shape[0]
    return setup_of(
        canonical(codes, as_floats(scales.reshape(n, -1), "scale"), zeros.reshape(n, -1)),
        bias,
        bits,
    )


def _model(path: Path, layer: str | None) -> Weights:
    container = open_with_encodings(path)
    try:
        assembly = assembled(container)
        layers = {} if assembly is None else {one.module: one for one in assembly.layers}
        loose = {
            one.name.removesuffix(".weight"): one
            for one in (container.tensors if assembly is None else assembly.loose)
            if len(one.shape) == 2 and one.readable and not one.part_of
        }
        wanted = None if layer is None else layer.removesuffix(".weight").removesuffix(".qweight")
        names = [*layers, *loose]
        if wanted is None and len(names) == 1:
            wanted = names[0]
        if wanted not in layers and wanted not in loose:
            raise UsageError(
                "which layer?" if wanted is None else f"there is no layer {safe(wanted, 80)}",
                path=container.path,
                expected=near(wanted, names) or "a Linear",
                hint="name one of them (diagnose: --layer); `qassay inspect` lists all",
            )
        biases = {one.name: one for one in container.tensors if one.name.endswith(".bias")}
        if wanted in layers:
            chosen = layers[wanted]
            setup, label = _of_layer(chosen, biases), chosen.label
            alike = [one for one in layers.values() if one.shape == chosen.shape]
            others, matrix = _others(alike, wanted, biases), None
        else:
            setup, label = _of_tensor(loose[wanted], biases.get(f"{wanted}.bias"))
            others, matrix = {}, _blocks_of(loose[wanted])
        return Weights(setup, wanted, container.path, container.format, label, container.nbytes,
                       others=others, matrix=matrix)  # fmt: skip
    finally:
        container.close()


def _others(
    alike: list[Layer], wanted: str, biases: Mapping[str, StoredTensor]
) -> dict[str, Setup]:
    """Return the nearest layers of that shape, as many as memory allows."""
    at = next(place for place, one in enumerate(alike) if one.module == wanted)
    near = sorted((place for place in range(len(alike)) if place != at), key=lambda p: abs(p - at))
    found: dict[str, Setup] = {}
    for place in near[:_OTHERS]:
        one = alike[place]
        if (len(found) + 1) * one.weights > _OTHER_WEIGHTS:
            break
        try:
            found[one.module] = _of_layer(one, biases)
        except UsageError:
            continue
    return found


def _of_layer(layer: Layer, biases: Mapping[str, StoredTensor]) -> Setup:
    if layer.experts is not None or layer.weights > MOST_WEIGHTS:
        raise UsageError(
            "a layer of experts is not diagnosed as a whole" if layer.experts else "too large",
            expected="one matrix",
            found=str(list(layer.shape)),
        )
    unpacked = layer.encoding.unpack(layer)
    return setup_of(unpacked, _bias(biases.get(f"{layer.module}.bias")), layer.bits)


def _of_tensor(stored: StoredTensor, bias: StoredTensor | None) -> tuple[Setup, str]:
    known = for_stored_type(stored.type)
    if known is None or stored.size > MOST_WEIGHTS:
        raise UsageError(f"{safe(stored.name, 80)} is of a type that is not read", path=stored.path)
    added = _bias(bias)
    if issubclass(known, BlockEncoding):
        rows = canonical_rows(known, np.ascontiguousarray(stored.raw()), stored.shape[-1])
        return setup_of(rows, added, known.code_bits().width, exact=True), known.id
    floats = known.dequantize(stored.raw()).reshape(stored.shape)
    return setup_of_floats(floats, added), known.id


def _blocks_of(stored: StoredTensor) -> Matrix | None:
    known = for_stored_type(stored.type)
    if known is None or not issubclass(known, BlockEncoding):
        return None
    n, k = stored.shape
    return Matrix(np.ascontiguousarray(stored.raw()).reshape(-1).copy(), known, (n, k))


def _bias(stored: StoredTensor | None) -> npt.NDArray[np.float32] | None:
    if stored is None:
        return None
    known = for_stored_type(stored.type)
    if known is None:
        raise UsageError(f"{safe(stored.name, 80)} is of a type that is not read", path=stored.path)
    return known.dequantize(stored.raw()).reshape(-1)
