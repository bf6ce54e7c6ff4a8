"""The subjects of the HTML report, read from the document, so that both say the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qassay.core.text import safe
from qassay.report.html_charts import codes, histogram, profile, steps
from qassay.report.html_subjects import GRADES, Metric, Subject, part_stems, subject
from qassay.report.html_words import label
from qassay.report.words import bits, number, shape

_DEEPEST = 4
_NUMBERS = 80
"""Numbers shown of one subject."""
_TEXT = 300
_LAYERS = 256
_QUANTILES = ", least, 5 %, median, 95 %, most"

_RELATIVE = "RMS of the error over the RMS of what it is compared with"
_SNR = "signal-to-noise ratio: 20 dB is an error of 10 %, 40 dB of 1 %"
_COSINE = "of the angle between both as vectors: 1 is the same direction"

_METRICS = {
    "check": (
        Metric("bits per weight", 8, words="bits that are stored, scales included, over weights"),
        Metric("rows of zeros", words="output channels all of whose weights are zero"),
    ),
    "compare": (
        Metric("times expected", 2, text=".2f",
               words="RMSE over what such a grid should cost: 1 is honest"),
        Metric("due to codes", 2, mapped=False, text=".2f",
               words="RMSE over that of the nearest codes"),
        Metric("due to scales", 2, mapped=False, text=".2f",
               words="RMSE of the nearest codes over what such a grid should cost"),
        Metric("relative error", 0.2, percent=True, words=_RELATIVE),
        Metric("SNR, dB", 40, reverse=True, text=".1f", words=_SNR),
        Metric("largest error, steps", text=".4g",
               words="a step is the distance of two neighbouring codes"),
        Metric("cosine", mapped=False, text=".6f", words=_COSINE),
        Metric("weights that differ", percent=True),
        Metric("NaN or infinite", words="values, on either side"),
    ),
    "diagnose": (
        Metric("device error", percent=True, words="device - quantized reference, relative"),
        Metric("quantization error", percent=True, words="quantized - float reference, relative"),
        Metric("total error", percent=True, words="device - float reference, relative"),
    ),
    "dumps": (
        Metric("relative error", percent=True, words=_RELATIVE),
        Metric("SNR, dB", 40, reverse=True, text=".1f", words=_SNR),
        Metric("cosine", mapped=False, text=".6f", words=_COSINE),
        Metric("RMS error", mapped=False),
        Metric("largest error", mapped=False),
        Metric("NaN or infinite on the device", words="values, masks included"),
    ),
    "fit": (Metric("count", mapped=False, words="Linears of this name and shape"),),
}  # fmt: skip
_TITLES = {
    "compare": ("Tensors", "encodings"),
    "diagnose": ("Outputs", "verdict"),
    "dumps": ("Tensors", "verdict"),
    "fit": ("Linears", "becomes"),
}
Subjects = tuple[tuple[Metric, ...], tuple[str, str], list[Subject]]


def kind_of(document: Mapping[str, Any]) -> str:
    """Return the command, or `dumps` for `diagnose` of two dumps of many tensors."""
    command: str = document["command"]
    return "dumps" if command == "diagnose" and "tensors" in document["result"] else command


def subjects_of(document: Mapping[str, Any]) -> Subjects:
    """Return metrics, what the page calls subjects and `kept`, and subjects without findings.

    Subjects are in the order of the document. A command that is not known has the tensors of the
    document, if it lists any.
    """
    kinds: dict[str, Callable[[Mapping[str, Any]], Iterator[Subject]]] = {
        "compare": _of_compare,
        "diagnose": _of_outputs,
        "dumps": _of_dumps,
        "fit": _of_fit,
    }
    kind = kind_of(document)
    found = list(kinds.get(kind, _of_tensors)(document))
    part_stems(found)
    return _METRICS.get(kind, _METRICS["check"]), _TITLES.get(kind, ("Tensors", "encoding")), found


def _of_tensors(document: Mapping[str, Any]) -> Iterator[Subject]:
    judged = document.get("verdict") is not None
    for entry in document["tensors"]:
        if "part_of" in entry:
            continue
        layer = entry.get("layer")
        names = [entry["name"]]
        if layer:
            names += [layer["module"], *(part["name"] for part in layer["parts"].values())]
        dims = entry["shape"]
        width = layer["bits_per_weight"] if layer else bits(entry["bytes"], math.prod(dims))
        made = subject(
            layer["module"] if layer else entry["name"],
            names=tuple(names),
            path=entry["path"],
            kept=safe(entry["encoding"] or entry["type"]),
            shape=shape(dims),
            values=(_value(width), _value(entry.get("dead_rows"))),
            checked=bool(entry.get("checked", True)) or not judged,
        )
        made.numbers = list(_flat(entry, ("name", "codes", "shape", "encoding")))
        if "codes" in entry:
            made.charts.append(codes(entry["codes"]["counts"]))
        yield made


def _of_compare(document: Mapping[str, Any]) -> Iterator[Subject]:
    for pair in document["result"].get("layers", ()):
        cost = pair.get("cost", {})
        expected = cost.get("expected", {})
        different = pair.get("difference", {})
        share = None
        if different.get("weights", {}).get("of"):
            share = different["weights"]["different"] / different["weights"]["of"]
        one, two = pair["encodings"]
        texts = [told["text"] for told in pair.get("transformations", ()) if told.get("text")]
        made = subject(
            pair["name"],
            names=tuple(dict.fromkeys((pair["other_name"], pair["name"]))),
            kept=safe(one if one == two else f"{one}, {two}"),
            shape=shape(pair["shape"]),
            said=safe("; ".join((pair["relation"], *texts)), _TEXT),
            values=(
                *(_value(expected.get(key)) for key in ("ratio", "code_ratio", "scale_ratio")),
                _value(cost.get("relative_error")),
                _value(cost.get("snr_db")),
                _value(cost.get("max_steps", {}).get("value")),
                _value(cost.get("cosine")),
                share,
                _value(sum(cost.get("nonfinite", {}).values()) or None),
            ),
            checked=pair["relation"] != "not-compared",
        )
        made.numbers = list(_flat(pair, ("name", "profile", "histogram", "shape", "data")))
        if cost:
            made.charts.append(
                profile(cost["rows"]["profile"], "Error of each row", "relative error", "row")
            )
        if "histogram" in cost:
            made.charts.append(histogram(cost["histogram"], "Errors in steps", "weights"))
        if "steps" in different.get("codes", {}):
            made.charts.append(steps(different["codes"]))
        yield made


def _of_dumps(document: Mapping[str, Any]) -> Iterator[Subject]:
    for one in document["result"]["tensors"]:
        made = subject(
            one["name"],
            names=tuple(dict.fromkeys((one["name"], one["device_name"] or one["name"]))),
            kept=safe(one["relation"]),
            shape=shape(one["shape"]),
            said=safe(one["why"] or "", _TEXT),
            values=(
                *(_value(one[key]) for key in ("relative", "snr_db", "cosine", "rms", "max")),
                _value(one["not_finite"]["device"]),
            ),
            checked=one["relation"] != "not-compared",
            severity=GRADES.index("error") if one["relation"] == "bad" else 0,
        )
        made.numbers = list(_flat(one, ("name", "shape", "profile", "histogram", "why")))
        if one["profile"] is not None:
            made.charts.append(
                profile(one["profile"], "Error of each channel", "RMS error", "channel")
            )
        if one["histogram"] is not None:
            made.charts.append(histogram(one["histogram"], "Errors", "values"))
        yield made


def _of_outputs(document: Mapping[str, Any]) -> Iterator[Subject]:
    result = document["result"]
    outputs = result.get("outputs", ())
    for one in outputs:
        # A finding names its output as well as the layer, which is the same for all of them.
        names = (one["name"], result["layer"]) if len(outputs) == 1 else (one["name"],)
        grades = {each["severity"] for each in document["findings"] if each["field"] == one["name"]}
        noted = (
            one["verdict"] == "fault" and grades == {"info"} and len(one["faults"][0]["faults"]) < 2
        )
        made = Subject(
            name=safe(one["name"]),
            names=names,
            module=safe(one["name"], 80),
            kept="no fault by itself" if noted else safe(one["verdict"]),
            shape=shape((one["rows"], result["shape"][0])),
            said=safe("; or ".join(each["text"] for each in one["faults"][:3]), _TEXT),
            values=tuple(
                _value(one[part]["relative"]) if one[part] else None
                for part in ("device", "quantization", "total")
            ),
        )
        made.numbers = list(_flat(one, ("name", "profile", "histogram", "channels")))
        for part in ("device", "quantization", "total"):
            if one[part] is None:
                continue
            title = f"Error of each output channel, {label(part)}"
            made.charts.append(profile(one[part]["profile"], title, "RMS error", "channel"))
            if one[part]["histogram"] is not None:
                made.charts.append(
                    histogram(one[part]["histogram"], f"Errors, {label(part)}", "outputs")
                )
        yield made


def _of_fit(document: Mapping[str, Any]) -> Iterator[Subject]:
    fits = document["result"].get("fits", ())
    for fit in fits:
        for row in fit["layers"]:
            outcome = row["outcome"]
            more = {}
            if row["layer_numbers"]:
                told = dict.fromkeys(row["layer_numbers"][:_LAYERS])
                more["layers"] = tuple(str(layer) for layer in told)
            made = subject(
                row["name"],
                path=fit["path"],
                kept=safe(row["becomes"]),
                shape=shape((row["n"], row["k"])),
                values=(_value(row["count"]),),
                checked=not outcome["unknown"],
                severity=GRADES.index(outcome["severity"] or ""),
                **more,
            )
            if len(fits) > 1:
                made.stem = f"{fit['path']} {made.stem}"
            made.numbers = list(_flat(row, ("name", "becomes", "layer_numbers")))
            yield made


def _value(value: Any) -> float | None:
    """Return a number, infinity among them; none for NaN, and for what is no number."""
    if value == "Infinity":
        return math.inf
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value):
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
        said = f"{before}{safe(label(str(key)), 60)}"
        if isinstance(value, Mapping):
            inner = _flat(value, without, f"{said}: ", depth + 1) if depth < _DEEPEST else iter(())
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            inner = (
                pair
                for place, item in enumerate(value[:8])
                for pair in _flat(item, without, f"{said} {place + 1}: ", depth + 1)
            )
        else:
            fifths = before.endswith("rows: ") and isinstance(value, list) and key != "worst"
            inner = iter([(said + _QUANTILES if fifths else said, _said(value))])
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
