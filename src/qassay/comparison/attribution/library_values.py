"""Single faults of what is stored: codes, zero points, minimums, scales read as something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from qassay.comparison.attribution.edits import Edit
from qassay.comparison.attribution.setup import Floats, Setup


def codes(true: Setup) -> Iterator[Edit]:
    """Yield codes that are read as other numbers, or in the other order of axes."""
    if true.values is not None or not 1 < true.bits <= 8:
        return
    count = 1 << true.bits
    half, top = count // 2, count - 1
    c = np.arange(256, dtype=np.float32)
    plain = np.arange(256)
    tables = {
        "signed": ("codes are read as two's complement", np.where(plain < half, c, c - count)),
        "offset": ("the highest bit of every code is flipped",
                   (plain ^ half).astype(np.float32)),
        "complement": ("codes are inverted bit by bit", top - c),
        "plus": ("every code is one too high", c + 1),
        "minus": ("every code is one too low", c - 1),
        "plus-clip": ("every code is one too high, the highest kept", np.minimum(c + 1, top)),
        "minus-clip": ("every code is one too low, the lowest kept", np.maximum(c - 1, 0)),
        "plus-wrap": ("every code is one too high, modulo the number of codes",
                      ((plain + 1) & top).astype(np.float32)),
        "minus-wrap": ("every code is one too low, modulo the number of codes",
                       ((plain - 1) & top).astype(np.float32)),
    }  # fmt: skip
    for word, (text, table) in tables.items():
        yield Edit(
            f"codes-{word}:q",
            text,
            "Q605",
            lambda setup, t=table: setup.map_values(np.asarray(t, np.float32)),  # type: ignore[misc]
            common=word in ("signed", "offset", "complement", "plus", "minus"),
        )
    if true.n % 2 == 0 or true.k % 2 == 0:
        yield Edit("flat-transposed:q", "codes are stored [K, N] and read as [N, K]", "Q603",
                   lambda setup: _flat_codes(setup, forward=True))  # fmt: skip
        yield Edit("flat-untransposed:q", "codes are transposed once too often", "Q603",
                   lambda setup: _flat_codes(setup, forward=False))  # fmt: skip


def _flat_codes(setup: Setup, *, forward: bool) -> Setup | None:
    if setup.rows is not None or setup.columns is not None:
        return None
    n, k = setup.codes.shape
    moved = (
        np.ascontiguousarray(setup.codes.T).reshape(n, k)
        if forward
        else np.ascontiguousarray(setup.codes.reshape(k, n).T)
    )
    return setup.with_("q", codes=moved)


def zeros(true: Setup) -> Iterator[Edit]:
    """Yield the faults of zero points, where there are any."""
    if true.values is not None or true.minimums is not None:
        return
    top = (1 << true.bits) - 1
    middle = (1 << true.bits) // 2

    def of(change: Callable[[Floats], Floats]) -> Callable[[Setup], Setup]:
        return lambda setup: setup.with_("z", zeros=np.asarray(change(setup.zeros), np.float32))

    for word, text, change in (
        ("plus", "every zero point is one too high", lambda z: z + 1),
        ("minus", "every zero point is one too low", lambda z: z - 1),
        ("plus-clip", f"every zero point is one too high, at most {top}",
         lambda z: np.minimum(z + 1, top)),
        ("minus-clip", "every zero point is one too low, at least 0",
         lambda z: np.maximum(z - 1, 0)),
        ("plus-wrap", "every zero point is one too high, modulo the number of codes",
         lambda z: np.mod(z + 1, top + 1)),
        ("minus-wrap", "every zero point is one too low, modulo the number of codes",
         lambda z: np.mod(z - 1, top + 1)),
        ("wrap", f"zero points above {top} are cut to {true.bits} bits",
         lambda z: np.mod(z, top + 1)),
        ("clip", f"zero points above {top} are lowered to it", lambda z: np.minimum(z, top)),
        ("none", "zero points are not subtracted", lambda z: z * 0),
        ("middle", f"zero points are taken to be {middle} everywhere", lambda z: z * 0 + middle),
        ("complement", "zero points are inverted bit by bit", lambda z: top - z),
        ("negated", "zero points are added, not subtracted", lambda z: -z),
        ("plus2", "every zero point is 2 too high", lambda z: z + 2),
        ("minus2", "every zero point is 2 too low", lambda z: z - 2),
    ):  # fmt: skip
        common = word in (
            "plus",
            "minus",
            "none",
            "middle",
            "plus2",
            "minus2",
            "plus-clip",
            "minus-clip",
        )
        yield Edit(f"zeros-{word}:z", text, "Q605", of(change), common=common)


def minimums(true: Setup) -> Iterator[Edit]:
    """Yield the faults of what is added to each group, `W = code * scale + minimum`."""
    if true.minimums is None:
        return

    def of(change: Callable[[Floats], Floats]) -> Callable[[Setup], Setup]:
        return lambda setup: setup.of_groups("m", change)

    def swapped(setup: Setup, sign: float) -> Setup | None:
        if setup.minimums is None:
            return None
        factor = np.float32(sign)
        return setup.with_("sm", scales=setup.minimums * factor, minimums=setup.scales * factor)

    for word, text, code, change in (
        ("none", "minimums are not added", "Q605", lambda m: m * 0),
        ("negated", "minimums have the wrong sign", "Q605", lambda m: -m),
        ("first", "the minimum of a row's first group is used for all its groups", "Q604",
         lambda m: np.repeat(m[:, :1], m.shape[1], axis=1)),
    ):  # fmt: skip
        yield Edit(f"minimums-{word}:m", text, code, of(change), common=word != "first")
    # ggml's K types store what is subtracted, Q4_1 and Q5_1 what is added.
    for word, sign, what in (("added", 1.0, ""), ("subtracted", -1.0, ", which are subtracted,")):
        yield Edit(f"minimums-swapped-{word}:sm", f"scales and minimums{what} are swapped", "Q604",
                   lambda setup, f=sign: swapped(setup, f), common=True)  # type: ignore[misc]  # fmt: skip


def scales(true: Setup) -> Iterator[Edit]:
    """Yield scales that are stored otherwise."""

    def of(change: Callable[[Floats], Floats], *, exact: bool = False) -> Callable[[Setup], Setup]:
        return lambda setup: setup.with_(
            "s", scales=np.asarray(change(setup.scales), np.float32), exact_scales=exact
        )

    def decimals(places: int) -> Callable[[Floats], Floats]:
        step = np.float32(10**places)
        return lambda s: np.rint(s * step) / step

    def truncated(s: Floats) -> Floats:
        bits = np.ascontiguousarray(s, np.float32).view(np.uint32) & 0xFFFF0000
        return bits.view(np.float32)

    def power(s: Floats, rounded: Callable[[Floats], Floats]) -> Floats:
        with np.errstate(all="ignore"):
            exponent = rounded(np.log2(np.abs(s)))
        return np.where(s == 0, s, np.copysign(np.exp2(exponent), s))

    def f16(s: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return s.astype(np.float16).astype(np.float32)

    for word, text, change, exact in (
        ("truncated", "scales are cut to bf16, not rounded", truncated, True),
        ("2-decimals", "scales are stored with two decimals", decimals(2), False),
        ("2-decimals-exact", "scales are stored with two decimals, as float32", decimals(2), True),
        ("3-decimals", "scales are stored with three decimals", decimals(3), False),
        ("3-decimals-exact", "scales are stored with three decimals, as float32",
         decimals(3), True),
        ("4-decimals", "scales are stored with four decimals", decimals(4), False),
        ("f16", "scales are kept as f16, not rounded to bf16", f16, True),
        ("bf16", "scales are rounded to bf16", lambda s: s, False)
        if true.exact_scales
        else ("exact", "scales are kept as float32, not rounded to bf16", lambda s: s, True),
        ("f16-bf16", "scales are rounded to f16, then to bf16", f16, False),
        ("power-floor", "scales are lowered to a power of two",
         lambda s: power(s, np.floor), False),
        ("power-nearest", "scales are rounded to a power of two",
         lambda s: power(s, np.rint), False),
    ):  # fmt: skip
        common = word in ("truncated", "2-decimals", "power-floor", "exact", "bf16")
        yield Edit(f"scales-{word}:s", text, "Q614", of(change, exact=exact), common=common)
    yield Edit("scales-first:s", "the scale of a row's first group is used for all its groups",
               "Q604", of(lambda s: np.repeat(s[:, :1], s.shape[1], axis=1)))  # fmt: skip
    yield Edit("scales-one:s", "scales are not applied", "Q604", of(lambda s: s * 0 + 1))
