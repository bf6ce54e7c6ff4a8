"""What the HTML report says of each tensor: numbers, what the map is coloured by, plots.

A *subject* is what can be clicked: a tensor of `check`, a pair of `compare`, a Linear of `fit`, an
output of `diagnose`. It is read from the document, so that the page says what the JSON report says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from qassay.core.text import safe
from qassay.report.html_charts import Chart, codes, histogram, profile, steps
from qassay.report.words import bits, number, shape

_DEEPEST = 4
_NUMBERS = 80
"""Numbers shown of one subject."""
_TEXT = 300


@dataclass(frozen=True, slots=True)
class Metric:
    """Something that the map can be coloured by.

    Attributes:
        title: As the page calls it.
        form: How to write it, a d3 format.
        reverse: Whether a low value is the bad one.
        most: Where the scale of colours ends at least: it begins at 0, so that a difference of no
            account looks like one.
    """

    title: str
    most: float = 1.0
    form: str = ".3~g"
    reverse: bool = False


@dataclass(slots=True)
class Subject:
    """One thing that can be clicked.

    Attributes:
        name: Escaped.
        names: What findings may call it, unescaped.
        path: The file that findings about it name; "" for any.
        layer: Number of its layer, `all` where one stands for every layer, "" outside of layers.
        module: The name without the number.
        encoding: How it is kept.
        shape: `[N, K]`.
        values: One for each metric, None where there is none.
        numbers: Label and value.
        charts: Its plots.
        severity: Of the worst finding about it: 0 for none, 1 info, 2 warning, 3 error.
        findings: Places of them in the report.
    """

    name: str
    names: tuple[str, ...]
    path: str = ""
    layer: str = ""
    module: str = ""
    encoding: str = ""
    shape: str = ""
    values: tuple[float | None, ...] = ()
    numbers: list[tuple[str, str]] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    severity: int = 0
    findings: list[int] = field(default_factory=list)


def subjects_of(document: Mapping[str, Any]) -> tuple[tuple[Metric, ...], list[Subject]]:
    """Return the metrics and the subjects of a document, in its order; findings not yet among them.

    A command that is not known has the tensors of the document, if it lists any.
    """
    kinds: dict[str, Callable[[Mapping[str, Any]], Iterator[Subject]]] = {
        "compare": _of_compare,
        "diagnose": _of_diagnose,
        "fit": _of_fit,
    }
    command = document["command"]
    found = list(kinds.get(command, _of_tensors)(document))
    return _METRICS.get(command, _METRICS["check"]), found


_METRICS = {
    "check": (Metric("bits per weight", 8), Metric("dead rows")),
    "compare": (
        Metric("times expected", 2),
        Metric("relative error", 0.2),
        Metric("SNR dB", 40, reverse=True),
        Metric("max steps"),
        Metric("share of weights that differ"),
    ),
    "diagnose": (Metric("device error"), Metric("quantization error")),
    "fit": (),
}


def attach(found: list[Subject], findings: list[Mapping[str, Any]]) -> list[int]:
    """Tell subjects their findings; return for each finding its subject, -1 where it has none."""
    places: dict[tuple[str, str], int] = {}
    for at, subject in enumerate(found):
        for name in subject.names:
            places.setdefault((subject.path, name), at)
    of = []
    for index, finding in enumerate(findings):
        at = -1
        for name in (finding["field"], finding["tensor"]):
            if name is not None and at < 0:
                at = places.get((finding["path"], name), places.get(("", name), -1))
        of.append(at)
        if at >= 0:
            rank = ("", "info", "warning", "error").index(finding["severity"])
            found[at].severity = max(found[at].severity, rank)
            found[at].findings.append(index)
    return of


_NUMBER = re.compile(r"(?:^|[./]|(?:layer|block)s?_)(\d{1,5}|\*)(?=[./]|$)")
_EXPERT = re.compile(r"([./]experts?[./])(?:\d+|\*)(?=[./])")


def placed(name: str) -> tuple[str, str]:
    """Return the layer and the module of a tensor by its name.

    `model.layers.3.mlp.down_proj.weight` is layer 3 of `mlp.down_proj`, `blk.3.attn_q.weight` of
    `attn_q`; experts of one layer share a module.
    """
    bare = re.sub(r"\.(?:weight|qweight|weight_packed|weight_q|W_q)$", "", name)
    bare = _EXPERT.sub(r"\1*", bare)
    found = _NUMBER.search(bare)
    if found is None:
        return "", bare
    rest = bare[found.end() :].lstrip("./")
    layer = "all" if found[1] == "*" else str(int(found[1]))
    return layer, rest or bare[: found.start()] or bare


def _subject(name: str, **more: Any) -> Subject:
    layer, module = placed(name)
    more.setdefault("names", (name,))
    return Subject(name=safe(name), layer=layer, module=safe(module, 80), **more)


def _of_tensors(document: Mapping[str, Any]) -> Iterator[Subject]:
    for entry in document["tensors"]:
        if "part_of" in entry:
            continue
        layer = entry.get("layer")
        names = [entry["name"]]
        if layer:
            names += [layer["module"], *(part["name"] for part in layer["parts"].values())]
        dims = entry["shape"]
        weights = math.prod(dims)
        width = layer["bits_per_weight"] if layer else bits(entry["bytes"], weights)
        made = _subject(
            layer["module"] if layer else entry["name"],
            names=tuple(names),
            path=entry["path"],
            encoding=safe(entry["encoding"] or entry["type"]),
            shape=shape(dims),
            values=(_value(width), _value(entry.get("dead_rows"))),
        )
        made.numbers = list(_flat(entry, ("name", "codes", "shape", "encoding")))
        if "codes" in entry:
            made.charts.append(codes(entry["codes"]["counts"]))
        yield made


def _of_compare(document: Mapping[str, Any]) -> Iterator[Subject]:
    for pair in document["result"].get("layers", ()):
        cost = pair.get("cost", {})
        different = pair.get("difference", {})
        share = None
        if different.get("weights", {}).get("of"):
            share = different["weights"]["different"] / different["weights"]["of"]
        one, two = pair["encodings"]
        made = _subject(
            pair["name"],
            names=tuple(dict.fromkeys((pair["other_name"], pair["name"]))),
            encoding=safe(one if one == two else f"{one}, {two}"),
            shape=shape(pair["shape"]),
            values=(
                _value(cost.get("expected", {}).get("ratio")),
                _value(cost.get("relative_error")),
                _value(cost.get("snr_db")),
                _value(cost.get("max_steps", {}).get("value")),
                share,
            ),
        )
        made.numbers = list(_flat(pair, ("name", "profile", "histogram", "shape", "data")))
        if cost:
            made.charts.append(profile(cost["rows"]["profile"], "Relative error along the rows"))
        if "histogram" in cost:
            made.charts.append(histogram(cost["histogram"], "Errors in steps"))
        if "steps" in different.get("codes", {}):
            made.charts.append(steps(different["codes"]))
        yield made


def _of_diagnose(document: Mapping[str, Any]) -> Iterator[Subject]:
    result = document["result"]
    for one in result.get("tensors", ()):  # dumps of a whole model
        made = _subject(
            one["name"],
            names=tuple(dict.fromkeys((one["name"], one["device_name"] or one["name"]))),
            encoding=safe(one["relation"]),
            shape=shape(one["shape"]),
            values=(_value(one["relative"]), None),
        )
        made.numbers = list(_flat(one, ("name", "shape", "profile", "histogram")))
        if one["histogram"] is not None:
            made.charts.append(profile(one["profile"], "RMS along the channels"))
            made.charts.append(histogram(one["histogram"], "Errors"))
        yield made
    for one in result.get("outputs", ()):
        made = Subject(
            name=safe(one["name"]),
            names=(one["name"], result["layer"]),
            module=safe(one["name"], 80),
            encoding=safe(result["encoding"]),
            shape=f"[{one['rows']}, {result['shape'][0]}]",
            values=tuple(
                _value(one[part]["relative"]) if one[part] else None
                for part in ("device", "quantization")
            ),
        )
        made.numbers = list(_flat(one, ("name", "profile", "histogram", "channels")))
        for part, words in (
            ("device", "device - quantized"),
            ("quantization", "quantized - float"),
            ("total", "device - float"),
        ):
            if one[part] is None:
                continue
            made.charts.append(
                profile(one[part]["profile"], f"RMS along the output channels, {words}")
            )
            if one[part]["histogram"] is not None:
                made.charts.append(histogram(one[part]["histogram"], f"Errors, {words}"))
        yield made


_GRADES = ("", "info", "warning", "error")


def _of_fit(document: Mapping[str, Any]) -> Iterator[Subject]:
    for fit in document["result"].get("fits", ()):
        for row in fit["layers"]:
            made = _subject(
                row["name"],
                encoding=safe(str(row["outcome"]["weights"])),
                shape=shape((row["n"], row["k"])),
            )
            made.severity = _GRADES.index(row["outcome"]["severity"] or "")
            made.numbers = list(_flat(row, ("name",)))
            yield made


def _value(value: Any) -> float | None:
    """Return a number to colour by; one that is not finite is none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _flat(
    entry: Mapping[str, Any], without: tuple[str, ...], before: str = "", depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Yield label and value of everything in a part of the document, at most `_NUMBERS`."""
    seen = 0
    for key, value in entry.items():
        if key in without or value is None or value in ([], {}, ""):
            continue
        label = f"{before}{safe(str(key), 60).replace('_', ' ')}"
        if isinstance(value, Mapping):
            inner = _flat(value, without, f"{label}: ", depth + 1) if depth < _DEEPEST else iter(())
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            inner = (
                pair
                for place, item in enumerate(value[:8])
                for pair in _flat(item, without, f"{label} {place + 1}: ", depth + 1)
            )
        else:
            inner = iter([(label, _said(value))])
        for pair in inner:
            seen += 1
            if seen > _NUMBERS:
                return
            yield pair


def _said(value: Any) -> str:
    if isinstance(value, list):
        return safe(", ".join(_said(each) for each in value[:16]), _TEXT)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, (int, float)) else safe(str(value), _TEXT)
