"""A simulated device with a planted fault, to measure what `diagnose` finds.

Written apart from the hypotheses of `comparison.attribution`: whole matrices, plain formulas,
float32 sums in a random order of chunks, so that the two check each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.encodings.layers.canonical import Canonical

Array = npt.NDArray[Any]
ARITHMETICS = ("dev", "one", "host")
UNKNOWN = ("bf16-sums", "f16-sums")
"""Arithmetics that no documented model has: partial sums of 64 in bf16, of 16 in f16."""


def bf16(values: Array) -> Array:
    """Return float32 values rounded to 8 significant bits, ties to even; NaN stays NaN."""
    values = np.ascontiguousarray(values, np.float32)
    lowest = np.uint32(1 << 16)  # of the bits that are kept; to `even` by the last of them
    bits = values.view(np.uint32)
    even = (bits // lowest) % np.uint32(2)
    up = (bits + (lowest // 2 - 1) + even) & ~(lowest - 1)
    return np.where(np.isnan(values), values, up.view(np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A quantized Linear, as matrices."""

    codes: Array
    scales: Array
    zeros: Array
    bias: Array | None
    group: int
    bits: int = 4

    def canonical(self) -> Canonical:
        """Return its canonical form."""
        groups = (np.arange(self.codes.shape[1]) // self.group).astype(np.int32)
        return Canonical(self.codes, self.scales, groups, self.zeros.astype(np.int16))


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """What the device computes with: a Linear and what it does besides."""

    linear: Linear
    weight: Array | None = None
    scale_as_is: bool = False
    int8: bool = False
    bias_count: int = 1
    features: Array | None = None
    after: Callable[[Array, Array], Array] | None = None
    f16_sum: bool = False
    hides_nan: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """A planted fault."""

    kind: str
    name: str
    plant: Callable[[Linear], Device]


def random_linear(
    seed: int, n: int, k: int, group: int, *, symmetric: bool = False, bias: bool = True,
    bits: int = 4,
) -> Linear:  # fmt: skip
    """Return random weights with the spread of real ones."""
    rng = np.random.default_rng(seed)
    top = (1 << bits) - 1
    middle = (top + 1) / 2
    codes = rng.normal(middle, top / 5, (n, k)).round().clip(0, top).astype(np.uint8)
    scales = (0.004 * np.exp(rng.normal(0, 0.4, (n, k // group)))).astype(np.float32)
    zeros = rng.integers(int(middle) - 3, int(middle) + 4, (n, k // group)).astype(np.int16)
    if symmetric:
        zeros[:] = int(middle)
    added = rng.normal(0, 0.1, n).astype(np.float32) if bias else None
    return Linear(codes, scales, zeros, added, group, bits)


def run(device: Device, x: Array, arithmetic: str, seed: int = 0) -> Array:
    """Return the output of a device, float32 `[M, N]`."""
    linear = device.linear
    x = np.asarray(x, np.float32)
    if device.hides_nan:
        x = np.where(np.isnan(x), np.float32(0), x)
    with np.errstate(all="ignore"):
        x = bf16(x)
        if device.int8:
            scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
            scale = np.where(scale > 0, scale, np.float32(1))
            x = bf16(np.rint(x / scale) * scale)
        if device.features is not None:
            x = x[:, device.features]
        weight = device.weight if device.weight is not None else weights(linear, device.scale_as_is)
        product = _sum(x, bf16(weight) if arithmetic != "host" else weight, arithmetic, seed)
        if device.f16_sum:
            product = product.astype(np.float16).astype(np.float32)
        bias = None if linear.bias is None or not device.bias_count else bf16(linear.bias)
        if bias is None:
            y = bf16(product)
        elif arithmetic in ("one", "host"):
            y = bf16(product + bias)
        else:
            y = bf16(bf16(product) + bias)
        for _ in range(device.bias_count - 1):
            y = bf16(y + bias) if bias is not None else y
    return y if device.after is None else device.after(y, x)


def weights(linear: Linear, scale_as_is: bool = False) -> Array:
    """Return (q - z) * s, float32 `[N, K]`."""
    scales = linear.scales if scale_as_is else bf16(linear.scales)
    zeros = linear.zeros.astype(np.float32)
    centred = linear.codes.astype(np.float32) - np.repeat(zeros, linear.group, axis=1)
    done: Array = centred * np.repeat(scales, linear.group, axis=1)
    return done


def _sum(x: Array, weight: Array, arithmetic: str, seed: int) -> Array:
    k = x.shape[1]
    step = {"bf16-sums": 64, "f16-sums": 16}.get(arithmetic, max(16, k // 8))
    starts = np.arange(0, k, step)
    if arithmetic in ARITHMETICS:
        starts = np.random.default_rng(seed).permutation(starts)
    total = np.zeros((x.shape[0], weight.shape[0]), np.float32)
    for start in starts:
        part = x[:, start : start + step] @ weight[:, start : start + step].T
        if arithmetic == "bf16-sums":
            total = bf16(total + bf16(part))
        elif arithmetic == "f16-sums":
            total = (total + part.astype(np.float16).astype(np.float32)).astype(np.float16)
            total = total.astype(np.float32)
        else:
            total = total + part
    return total


def _dealt(n: int, lanes: int) -> Array:
    order = np.empty(n, np.intp)
    for lane in range(lanes):
        for row in range(n // lanes):
            order[lane * (n // lanes) + row] = row * lanes + lane
    return order


def row_orders(n: int) -> dict[str, Array]:
    """Return orders of channels by name."""
    places = np.arange(n)
    orders = {
        "roll+1": np.roll(places, 1),
        "roll-1": np.roll(places, -1),
        "pairs": places ^ 1,
        "reverse": places[::-1].copy(),
    }
    for lanes in (8, 16, 32, 64):
        if n % lanes == 0 and n > lanes:
            orders[f"deal{lanes}"] = _dealt(n, lanes)
            orders[f"undeal{lanes}"] = np.argsort(_dealt(n, lanes))
    awq = np.array([8 * (place // 8) + (0, 2, 4, 6, 1, 3, 5, 7)[place % 8] for place in places])
    orders["awq"], orders["awq-inverse"] = awq, np.argsort(awq)
    return orders


def move_rows(linear: Linear, order: Array, target: str) -> Linear:
    """Return a Linear some of whose components are in another order of channels."""
    new: dict[str, Any] = {}
    parts = "qszb" if target == "y" else target
    for letter, name in (("q", "codes"), ("s", "scales"), ("z", "zeros"), ("b", "bias")):
        old = getattr(linear, name)
        if letter in parts and old is not None:
            new[name] = old[order]
    return replace(linear, **new)


def _plain(change: Callable[..., Linear], *given: Any) -> Callable[[Linear], Device]:
    return lambda linear: Device(change(linear, *given))


def faults(linear: Linear, other: Linear) -> Iterator[Fault]:
    """Yield the faults that can be planted in a Linear; `other` is another layer of its shape."""
    n, k = linear.codes.shape
    g = k // linear.group
    for name, order in row_orders(n).items():
        for target in ("y", "q", "s", "z", "sz", "qz", "qs", "b"):
            if target != "b" or linear.bias is not None:
                kind = f"rows of {target}"
                yield Fault(kind, f"{name} of {target}",
                            _plain(move_rows, order, target))  # fmt: skip
    places = np.arange(k)
    orders = {"nibbles": places ^ 1, "words": places ^ 7}
    orders |= {"roll": np.roll(places, 1), "reverse": places[::-1].copy()}
    for name, order in orders.items():
        yield Fault("columns", f"{name} of codes",
                    _plain(_columns, order))  # fmt: skip
    yield Fault("features", "pairs of features",
                lambda a: Device(a, features=places ^ 1))  # fmt: skip
    top = (1 << linear.bits) - 1
    for name, zeros in (("+1", lambda z: z + 1), ("-1", lambda z: z - 1), ("+2", lambda z: z + 2),
                        ("+1 saturating", lambda z: np.minimum(z + 1, top)),
                        ("left out", lambda z: z * 0)):  # fmt: skip
        yield Fault("zero points", f"zero points {name}",
                    _plain(_zeros, zeros))  # fmt: skip
    yield Fault("codes", "two's complement", _plain(
        lambda a: replace(a, codes=(a.codes ^ ((top + 1) // 2)), zeros=a.zeros)))  # fmt: skip
    if g > 1:
        for shift in (1, -1, 3):
            if shift == 3 and g < 5:
                continue
            for target in ("s", "z", "sz"):
                yield Fault("groups", f"groups of {target} rolled by {shift}",
                            _plain(_rolled, shift, target))  # fmt: skip
        for target in ("s", "z", "sz"):
            yield Fault("transposed", f"{target} transposed",
                        _plain(_transposed, target))  # fmt: skip
        yield Fault("group size", "half, flat", lambda a: _group_size(a, a.group // 2))
        yield Fault("group size", "double, flat", lambda a: _group_size(a, a.group * 2))
    yield Fault("scale truncated", "scale cut to bf16", _plain(_truncated))
    yield Fault("scale coarse", "scale with two decimals", _plain(
        lambda a: replace(a, scales=np.round(a.scales, 2).astype(np.float32))))  # fmt: skip
    yield Fault("scale kept", "scale not rounded", lambda a: Device(a, scale_as_is=True))
    if linear.bias is not None:
        yield Fault("bias missing", "no bias", lambda a: Device(a, bias_count=0))
        yield Fault("bias twice", "bias twice", lambda a: Device(a, bias_count=2))
    yield Fault("activation int8", "int8 activations", lambda a: Device(a, int8=True))
    yield Fault("overflow", "f16 accumulator", lambda a: Device(a, f16_sum=True))
    yield Fault("nan hidden", "NaN read as 0", lambda a: Device(a, hides_nan=True))
    yield Fault("another layer", "weights of another layer",
                lambda a: Device(replace(other, bias=a.bias)))  # fmt: skip
    width = -(-n // 64) * 64
    if width > n:
        yield Fault("tail", "tail of zeros not cropped", lambda a: Device(a, after=_tail(width, 0)))
        yield Fault("tail", "tail of zero bytes not cropped",
                    lambda a: Device(a, after=_tail(width, -8)))  # fmt: skip
    rng = np.random.default_rng(n + k)
    order = rng.permutation(n)
    yield Fault("rows permuted", "random permutation",
                _plain(lambda a: move_rows(a, order, "y")))  # fmt: skip
    two = np.arange(n)
    two[[3, n - 5]] = two[[n - 5, 3]]
    yield Fault("two rows", "two rows swapped", _plain(lambda a: move_rows(a, two, "y")))
    a, b = sorted(int(c) for c in rng.choice(k, 2, replace=False))
    yield Fault("two columns", "two columns swapped", _plain(
        lambda it: replace(it, codes=_swapped(it.codes, a, b))))  # fmt: skip
    dead = rng.choice(n, max(1, n // 8), replace=False)
    yield Fault("dead lanes", "an eighth of the channels dead", _plain(
        lambda it: replace(it, scales=_put(it.scales, dead, 0))))  # fmt: skip


def nameless(linear: Linear) -> Iterator[Fault]:
    """Yield faults for which `diagnose` has no name, and is to say so."""
    n, k = linear.codes.shape
    rng = np.random.default_rng(5 * n + k)
    flips = np.where(rng.random((n, k)) < 0.01, 1 << rng.integers(0, linear.bits, (n, k)), 0)
    yield Fault("bit flips", "1 % of codes with a flipped bit", _plain(
        lambda a: replace(a, codes=a.codes ^ flips.astype(np.uint8))))  # fmt: skip
    yield Fault("scale x 1.01", "scales 1 % too large", _plain(
        lambda a: replace(a, scales=a.scales * np.float32(1.01))))  # fmt: skip
    yield Fault("ReLU", "fused ReLU", lambda a: Device(a, after=lambda y, _: np.maximum(y, 0)))
    shuffled = rng.permutation(k)
    yield Fault("K shuffled", "columns of codes shuffled", _plain(
        lambda a: replace(a, codes=a.codes[:, shuffled])))  # fmt: skip
    three = rng.choice(n, 3, replace=False)
    yield Fault("three scales", "three wrong scales", _plain(
        lambda a: replace(a, scales=_put(a.scales, three, 0.011))))  # fmt: skip
    unknown = random_linear(991, n, k, linear.group, bias=linear.bias is not None)
    yield Fault("unknown layer", "weights from nowhere",
                lambda a: Device(replace(unknown, bias=a.bias)))  # fmt: skip
    yield Fault("noise", "outputs 2 % off", lambda a: Device(
        a, after=lambda y, _: bf16(y * (1 + 0.02 * rng.standard_normal(y.shape)))))  # fmt: skip
    yield Fault("GELU", "an activation function", lambda a: Device(
        a, after=lambda y, _: bf16(y / (1 + np.exp(-np.clip(y, -60, 60))))))  # fmt: skip


def _columns(linear: Linear, order: Array) -> Linear:
    return replace(linear, codes=linear.codes[:, order])


def _zeros(linear: Linear, change: Callable[[Array], Array]) -> Linear:
    return replace(linear, zeros=change(linear.zeros))


def _truncated(linear: Linear) -> Linear:
    bits = linear.scales.view(np.uint32) & 0xFFFF0000
    return replace(linear, scales=bits.view(np.float32))


def _rolled(linear: Linear, shift: int, target: str) -> Linear:
    new: dict[str, Any] = {}
    if "s" in target:
        new["scales"] = np.roll(linear.scales, shift, axis=1)
    if "z" in target:
        new["zeros"] = np.roll(linear.zeros, shift, axis=1)
    return replace(linear, **new)


def _transposed(linear: Linear, target: str) -> Linear:
    new: dict[str, Any] = {}
    for letter, name in (("s", "scales"), ("z", "zeros")):
        if letter in target:
            old = getattr(linear, name)
            new[name] = old.T.copy().reshape(old.shape)
    return replace(linear, **new)


def _group_size(linear: Linear, size: int) -> Device:
    """Read scales and zero points in memory order as if groups had another size."""
    n, k = linear.codes.shape
    each = k // size
    take = (np.arange(n)[:, None] * each + np.arange(each)) % linear.scales.size
    return Device(replace(linear, group=size, scales=linear.scales.reshape(-1)[take],
                          zeros=linear.zeros.reshape(-1)[take]))  # fmt: skip


def _tail(width: int, zero: int) -> Callable[[Array, Array], Array]:
    def uncropped(y: Array, x: Array) -> Array:
        m, n = y.shape
        tail = bf16(np.float32(zero) * x.sum(axis=1, keepdims=True))
        whole = np.concatenate([y, np.repeat(tail, width - n, axis=1)], axis=1)
        return np.ascontiguousarray(whole.reshape(-1)[: m * n].reshape(m, n))

    return uncropped


def _swapped(codes: Array, a: int, b: int) -> Array:
    new: Array = codes.copy()
    new[:, [a, b]] = codes[:, [b, a]]
    return new


def _put(values: Array, rows: Array, value: float) -> Array:
    new: Array = values.copy()
    new[rows] = value
    return new
