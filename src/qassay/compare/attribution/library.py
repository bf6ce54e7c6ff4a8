"""The single faults that are tried, some 200 of them: each an edit of one component of a setup."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from qassay.compare.attribution import orders
from qassay.compare.attribution.setup import Floats, Index, Setup, quick_bf16

LANES = (8, 16, 32, 64, 128)
"""Numbers of lanes that are tried where the chip is not known."""

_WORDS = {
    "y": "output channels", "q": "codes", "s": "scales", "z": "zero points", "b": "bias values",
    "sz": "scales and zero points", "qz": "codes and zero points", "qs": "codes and scales",
}  # fmt: skip
_TARGETS: Mapping[str, frozenset[str]] = {
    "y": frozenset("qszb"), "sz": frozenset("sz"), "q": frozenset("q"), "s": frozenset("s"),
    "z": frozenset("z"), "qz": frozenset("qz"), "qs": frozenset("qs"), "b": frozenset("b"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """One fault.

    Attributes:
        id: `rows:deal64:sz`.
        text: What is wrong, as a sentence says it.
        code: The rule that reports it.
        apply: From a setup to the faulty one; None where it means nothing there.
        common: Whether it is tried in pairs.
        order: The permutation it is, where it is one.
        free: Numbers that were fitted to the outputs, in bits; 0 for what was in the list.
        data: What else there is to tell.
        family: Name shared by variants of one fault; "" for its own id.
    """

    id: str
    text: str
    code: str
    apply: Callable[[Setup], Setup | None]
    common: bool = False
    order: Index | None = None
    free: float = 0.0
    data: Mapping[str, object] | None = None
    family: str = ""

    @property
    def kind(self) -> str:
        """What variants of one fault have in common: how ties are broken is no other fault."""
        return self.family or self.id

    @property
    def component(self) -> str:
        """What is edited."""
        return self.id.rpartition(":")[2]

    @property
    def way(self) -> str:
        """What is done to what: `rows:q`. Two faults that are alike in it are not combined."""
        return f"{self.id.partition('-')[0]}:{self.component}"


def library(
    true: Setup, lanes: tuple[int, ...] = LANES, others: Mapping[str, Setup] | None = None
) -> list[Edit]:
    """Return the single faults that make sense for a Linear, each once.

    Args:
        true: The Linear as it should be.
        lanes: Numbers of lanes to try; one where the chip is known.
        others: Other layers by name; those of the same shape may have been used by mistake.
    """
    edits = [*_rows(true, lanes), *_columns(true), *_bias(true), *_activations(true)]
    if true.quantized:
        edits += [*_codes(true), *_zeros(true), *_scales(), *_groups(true)]
    edits += _others(true, others or {})
    return edits


def _rows(true: Setup, lanes: tuple[int, ...]) -> Iterator[Edit]:
    chip = lanes[0] if len(lanes) == 1 else 0
    for order in orders.of_rows(true.n, tuple(sorted({*lanes, *LANES})), chip):
        for target, parts in _TARGETS.items():
            if target == "b" and true.bias is None:
                continue
            if not true.quantized and target not in ("y", "b", "q"):
                continue
            code = order.code or ("Q604" if target in ("s", "z", "sz") else "Q603")
            word = "weights" if target == "q" and not true.quantized else _WORDS[target]
            yield Edit(
                f"rows-{order.id}:{target}",
                f"{word} are {order.text}"
                if not order.text.startswith(("in ", "with "))
                else f"{word} stand {order.text}",
                code,
                lambda setup, o=order.order, p=parts: setup.take_rows(o, p),  # type: ignore[misc]
                common=order.common,
                order=order.order,
            )


def _columns(true: Setup) -> Iterator[Edit]:
    noun = "codes" if true.quantized else "weights"
    for order in orders.of_columns(true.k):
        if true.bits == 4 or order.code == "Q603":
            yield Edit(
                f"columns-{order.id}:q",
                f"{noun} are read {order.text}",
                order.code,
                lambda setup, o=order.order: setup.take_columns(o),  # type: ignore[misc]
                common=order.common,
                order=order.order,
            )
        text = order.text.replace("the two nibbles of every byte", "features 2i and 2i + 1")
        yield Edit(
            f"columns-{order.id}:x",
            f"input features are taken {text}",
            "Q603",
            lambda setup, o=order.order: _features(setup, o),  # type: ignore[misc]
            common=order.id in ("pairs", "reverse", "roll+1"),
            order=order.order,
        )
    for p in LANES:
        if true.k % p == 0 and p < true.k:
            dealt = orders.deal(true.k, p)
            for word, order_ in (("dealt to", dealt), ("dealt back from", orders.inverse(dealt))):
                yield Edit(
                    f"columns-{word.replace(' ', '-')}-{p}:q",
                    f"{noun} are {word} {p} lanes along a row",
                    "Q603",
                    lambda setup, o=order_: setup.take_columns(o),  # type: ignore[misc]
                    order=order_,
                )


def _features(setup: Setup, order: Index) -> Setup:
    columns = order if setup.x_columns is None else setup.x_columns[order]
    return setup.with_("x", x_columns=columns)


def _bias(true: Setup) -> Iterator[Edit]:
    if true.bias is None:
        return
    for mode, text in (
        ("none", "the bias is not added"),
        ("twice", "the bias is added twice"),
        ("doubled", "the bias is doubled"),
    ):
        yield Edit(
            f"bias-{mode}:b",
            text,
            "Q609",
            lambda setup, m=mode: setup.with_("b", bias_mode=m),  # type: ignore[misc]
            common=mode != "doubled",
        )
    yield Edit(
        "bias-minus:b",
        "the bias is subtracted",
        "Q609",
        lambda setup: None if setup.bias is None else setup.with_("b", bias=-setup.bias),
    )


def _activations(true: Setup) -> Iterator[Edit]:
    for kind in ("row", "tensor", "group"):
        for ties in ("even", "away"):
            for wide in ("", "+f32"):
                scales = {"row": "a row", "tensor": "for all rows", "group": "a group"}[kind]
                mode = f"int8-{kind}-{ties}{wide}"
                if kind == "group" and true.g == 1:
                    continue
                yield Edit(
                    f"{mode}:x",
                    f"activations are quantized to int8, one scale {scales}, ties {ties}"
                    f"{', and rounded to bf16 again' if not wide else ''}",
                    "Q615",
                    lambda setup, m=mode: setup.with_("x", x_mode=m),  # type: ignore[misc]
                    common=kind == "row" and ties == "even",
                    family="int8:x",
                )


def _codes(true: Setup) -> Iterator[Edit]:
    if true.values is not None or true.bits not in (4, 8):
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


def _zeros(true: Setup) -> Iterator[Edit]:
    if true.values is not None:
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


def _scales() -> Iterator[Edit]:
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
        ("exact", "scales are kept as float32, not rounded to bf16", lambda s: s, True),
        ("f16", "scales are kept as f16, not rounded to bf16", f16, True),
        ("f16-bf16", "scales are rounded to f16, then to bf16", f16, False),
        ("power-floor", "scales are lowered to a power of two",
         lambda s: power(s, np.floor), False),
        ("power-nearest", "scales are rounded to a power of two",
         lambda s: power(s, np.rint), False),
    ):  # fmt: skip
        yield Edit(f"scales-{word}:s", text, "Q614", of(change, exact=exact),
                   common=word in ("truncated", "2-decimals", "power-floor", "exact"))  # fmt: skip
    yield Edit("scales-first:s", "the scale of a row's first group is used for all its groups",
               "Q604", of(lambda s: np.repeat(s[:, :1], s.shape[1], axis=1)))  # fmt: skip
    yield Edit("scales-one:s", "scales are not applied", "Q604", of(lambda s: s * 0 + 1))


def _groups(true: Setup) -> Iterator[Edit]:
    if true.g < 2:
        return
    order_of = list(orders.of_groups(true.g))
    for target in ("s", "z", "sz"):
        for id_, text, order in order_of:
            yield Edit(
                f"groups-{id_}:{target}",
                f"{_WORDS[target]} are {text}",
                "Q604",
                lambda setup, t=target, o=order: _take_groups(setup, t, o),  # type: ignore[misc]
                common=True,
            )
        for id_, text in (
            ("transposed", "stored [K/g, N] and read as [N, K/g]"),
            ("untransposed", "transposed once too often"),
        ):
            yield Edit(
                f"groups-{id_}:{target}",
                f"{_WORDS[target]} are {text}",
                "Q604",
                lambda setup, t=target, f=id_ == "transposed": _flat(setup, t, forward=f),  # type: ignore[misc]
                common=True,
            )
    yield from _group_sizes(true)


def _take_groups(setup: Setup, target: str, order: Index) -> Setup | None:
    if setup.g != len(order):
        return None  # another fault has changed the groups
    new: dict[str, Floats] = {}
    if "s" in target:
        new["scales"] = setup.scales[:, order]
    if "z" in target:
        new["zeros"] = setup.zeros[:, order]
    return replace(setup, **new, edited=setup.edited | set(target))  # type: ignore[arg-type]


def _flat(setup: Setup, target: str, *, forward: bool) -> Setup:
    def moved(values: Floats) -> Floats:
        n, g = values.shape
        if forward:
            return np.ascontiguousarray(values.T).reshape(n, g)
        return np.ascontiguousarray(values.reshape(g, n).T)

    new: dict[str, Floats] = {}
    if "s" in target:
        new["scales"] = moved(setup.scales)
    if "z" in target:
        new["zeros"] = moved(setup.zeros)
    return replace(setup, **new, edited=setup.edited | set(target))  # type: ignore[arg-type]


def _group_sizes(true: Setup) -> Iterator[Edit]:
    """Yield group sizes that are a half, a quarter, double or four times the true one."""
    k, g = true.k, true.g
    size = k // g
    if k % g or not np.array_equal(true.groups, np.arange(k) // size):
        return
    for factor in (0.25, 0.5, 2.0, 4.0):
        wrong = int(size * factor)
        if wrong < 1 or size * factor != wrong or wrong > k:
            continue
        column = np.arange(k) // wrong
        for way, text in (
            ("stride", "with the rows of scales where they are"),
            ("flat", "with rows of scales of the wrong length"),
            ("clip", "with the last scale of a row for what is beyond"),
        ):
            if way == "stride" and factor < 1:
                continue  # there are no such columns: they lie in the next row, which is flat
            yield Edit(
                f"group-size-{wrong}-{way}:sz",
                f"the group size is taken to be {wrong}, {text}",
                "Q604",
                lambda setup, c=column, w=way, e=-(-k // wrong): _regrouped(setup, c, w, e),  # type: ignore[misc]
                common=way != "clip" and factor in (0.5, 2.0),
            )
    order = np.arange(k) % g
    yield Edit("groups-interleaved:sz", "column k takes group k modulo K/g, not k / g", "Q604",
               lambda setup: setup.with_("sz", groups=order))  # fmt: skip


def _regrouped(setup: Setup, column: Index, way: str, each: int) -> Setup | None:
    """Return a setup whose groups have another size.

    `stride`: row n still begins at n * G. `flat`: row n begins at n * `each`, and what lies behind
    the last scale starts again from the first. `clip`: columns beyond the row take its last scale.
    """
    n, g = setup.scales.shape
    if way in ("stride", "clip"):
        return setup.with_("sz", groups=np.minimum(column, g - 1))
    flat = (np.arange(n)[:, None] * each + np.arange(each)[None, :]) % (n * g)
    return setup.with_(
        "sz",
        groups=column,
        scales=setup.scales.reshape(-1)[flat],
        zeros=setup.zeros.reshape(-1)[flat],
    )


def _others(true: Setup, others: Mapping[str, Setup]) -> Iterator[Edit]:
    for name, other in others.items():
        if other.codes.shape != true.codes.shape or other.bits != true.bits:
            continue
        keeps = other.bias is None or true.bias is None
        for bias in (False, True) if not keeps else (False,):
            yield Edit(
                f"layer-{name}{'-bias' if bias else ''}:y",
                f"the weights{' and the bias' if bias else ''} are those of {name}",
                "Q610",
                lambda setup, o=other, m=name, b=bias: replace(  # type: ignore[misc]
                    o, bias=o.bias if b else setup.bias, source=m,
                    edited=frozenset("qszb" if b else "qsz")),
                common=True,
                data={"layer": name},
            )  # fmt: skip


def rounded_scales(setup: Setup) -> Floats:
    """Return the scales as the device has them."""
    return setup.scales if setup.exact_scales else quick_bf16(setup.scales)
