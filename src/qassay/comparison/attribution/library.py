"""The single faults that are tried, some 200 of them: each an edit of one component of a setup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from qassay.comparison.attribution import orders
from qassay.comparison.attribution.edits import Edit
from qassay.comparison.attribution.library_values import codes, minimums, scales, zeros
from qassay.comparison.attribution.setup import Floats, Index, Setup, quick_bf16

LANES = (8, 16, 32, 64, 128)
"""Numbers of lanes that are tried where the chip is not known."""

_WORDS = {
    "y": "output channels", "q": "codes", "s": "scales", "z": "zero points", "b": "bias values",
    "sz": "scales and zero points", "qz": "codes and zero points", "qs": "codes and scales",
    "m": "minimums", "sm": "scales and minimums", "qm": "codes and minimums",
}  # fmt: skip
WHOLE = frozenset("qszmb")
"""All that moves with an output channel."""


def _targets(true: Setup) -> Iterator[str]:
    """Yield what may be moved, one letter for each component."""
    o = true.offset
    yield from ("y", f"s{o}", "q", "s", o, f"q{o}", "qs") if true.quantized else ("y", "q")
    if true.bias is not None:
        yield "b"


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
        edits += [*codes(true), *zeros(true), *minimums(true), *scales(true), *_groups(true)]
    edits += _others(true, others or {})
    return edits


def _rows(true: Setup, lanes: tuple[int, ...]) -> Iterator[Edit]:
    chip = lanes[0] if len(lanes) == 1 else 0
    for order in orders.of_rows(true.n, tuple(sorted({*lanes, *LANES})), chip):
        for target in _targets(true):
            parts = WHOLE if target == "y" else frozenset(target)
            groups = target != "b" and parts <= frozenset("szm")
            code = order.code or ("Q604" if groups else "Q603")
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


def _groups(true: Setup) -> Iterator[Edit]:
    if true.g < 2:
        return
    order_of = list(orders.of_groups(true.g))
    for target in ("s", true.offset, f"s{true.offset}"):
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
    return setup.of_groups(target, lambda values: values[:, order])


def _flat(setup: Setup, target: str, *, forward: bool) -> Setup:
    def moved(values: Floats) -> Floats:
        n, g = values.shape
        if forward:
            return np.ascontiguousarray(values.T).reshape(n, g)
        return np.ascontiguousarray(values.reshape(g, n).T)

    return setup.of_groups(target, moved)


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
                f"group-size-{wrong}-{way}:s{true.offset}",
                f"the group size is taken to be {wrong}, {text}",
                "Q604",
                lambda setup, c=column, w=way, e=-(-k // wrong): _regrouped(setup, c, w, e),  # type: ignore[misc]
                common=way != "clip" and factor in (0.5, 2.0),
            )
    order = np.arange(k) % g
    target = f"s{true.offset}"
    yield Edit(f"groups-interleaved:{target}", "column k takes group k modulo K/g, not k / g",
               "Q604", lambda setup: setup.with_(target, groups=order))  # fmt: skip


def _regrouped(setup: Setup, column: Index, way: str, each: int) -> Setup | None:
    """Return a setup whose groups have another size.

    `stride`: row n still begins at n * G. `flat`: row n begins at n * `each`, and what lies behind
    the last scale starts again from the first. `clip`: columns beyond the row take its last scale.
    """
    n, g = setup.scales.shape
    target = f"s{setup.offset}"
    if way in ("stride", "clip"):
        return setup.with_(target, groups=np.minimum(column, g - 1))
    flat = (np.arange(n)[:, None] * each + np.arange(each)[None, :]) % (n * g)
    moved = setup.of_groups("szm", lambda values: values.reshape(-1)[flat], groups=column)
    return replace(moved, edited=setup.edited | set(target))


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
                    edited=WHOLE if b else WHOLE - {"b"}),
                common=True,
                data={"layer": name},
            )  # fmt: skip


def rounded_scales(setup: Setup) -> Floats:
    """Return the scales as the device has them."""
    return setup.scales if setup.exact_scales else quick_bf16(setup.scales)
