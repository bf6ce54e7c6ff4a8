"""What the HTML report can say of one tensor, and which findings are about it.

A *subject* is what can be clicked: a tensor of `check`, a pair of `compare`, a Linear of `fit`, an
output of `diagnose`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from qassay.core.text import safe
from qassay.report.html_charts import Chart
from qassay.report.words import number

GRADES = ("", "info", "warning", "error")
_NAMED = 4096
"""Names of one finding that are looked for."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A column of the table of subjects, and what the map can be coloured by.

    Attributes:
        title: As the page calls it.
        most: Where the scale of colours ends at least: it begins at 0, so that a difference of no
            account looks like one.
        reverse: Whether a low value is the bad one.
        percent: Whether it is shown in percent.
        mapped: Whether the map offers it.
        text: How the table writes it, a Python format; "" for whole numbers and any other.
        words: What it is, where the title does not say it.
    """

    title: str
    most: float = 1.0
    reverse: bool = False
    percent: bool = False
    mapped: bool = True
    text: str = ""
    words: str = ""

    @property
    def form(self) -> str:
        """How the plots write it, a d3 format."""
        return ".3~p" if self.percent else ".3~g"

    def shown(self, value: float | None) -> str:
        """Return a value as the table has it."""
        if value is None:
            return "-"
        if not math.isfinite(value):
            return number(value)
        if self.percent:
            return f"{value * 100:.3g}%"
        if not self.text:
            return number(int(value) if value.is_integer() else value)
        return format(value, self.text)


@dataclass(slots=True)
class Subject:
    """One thing that can be clicked.

    Attributes:
        name: Escaped.
        names: What findings may call it, unescaped.
        path: The file that findings about it name; "" for any.
        stem: What is in front of the number of its layer.
        layers: Numbers of its layers; none outside of layers.
        module: The name without the number.
        kept: How it is kept, or what became of it.
        shape: `[N, K]`.
        said: A sentence about it.
        values: One for each metric, None where there is none.
        numbers: Label and value.
        charts: Its plots.
        checked: Whether it was; else nothing is known.
        severity: Of the worst finding about it: 0 for none, 1 info, 2 warning, 3 error.
        findings: Places of them in the report.
    """

    name: str
    names: tuple[str, ...]
    path: str = ""
    stem: str = ""
    layers: tuple[str, ...] = ()
    module: str = ""
    kept: str = ""
    shape: str = ""
    said: str = ""
    values: tuple[float | None, ...] = ()
    numbers: list[tuple[str, str]] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    checked: bool = True
    severity: int = 0
    findings: list[int] = field(default_factory=list)


_NUMBER = re.compile(r"(?:^|[./]|(?:layer|block)s?_)(\d{1,5}|\*)(?=[./]|$)")
_EXPERT = re.compile(r"([./]experts?[./])(?:\d+|\*)(?=[./])")
_NUMBERS = re.compile(r"(?<=\.)\d{1,9}(?=\.|$)")


def placed(name: str) -> tuple[str, str, str]:
    """Return by a tensor's name what is in front of its layer's number, the number, the module.

    `model.layers.3.mlp.down_proj.weight` is layer 3 of `mlp.down_proj`, `blk.3.attn_q.weight` of
    `attn_q`; experts of one layer share a module.
    """
    bare = re.sub(r"\.(?:weight|qweight|weight_packed|weight_q|W_q)$", "", name)
    bare = _EXPERT.sub(r"\1*", bare)
    found = _NUMBER.search(bare)
    if found is None:
        return "", "", bare
    stem = bare[: found.start()]
    rest = bare[found.end() :].lstrip("./")
    layer = "all" if found[1] == "*" else str(int(found[1]))
    return stem, layer, rest or stem or bare


def subject(name: str, **more: Any) -> Subject:
    """Return a subject with its place on the map."""
    stem, layer, module = placed(name)
    more.setdefault("names", (name,))
    more.setdefault("layers", (layer,) if layer else ())
    return Subject(name=safe(name), stem=stem, module=safe(module, 80), **more)


def part_stems(found: list[Subject]) -> None:
    """Name the stem with the module where models have several: a vision tower has layers, too."""
    stems = Counter(one.stem for one in found if one.layers)
    if len(stems) < 2:
        return
    main = stems.most_common(1)[0][0]
    for one in found:
        if one.layers and one.stem != main and one.module != safe(one.stem, 80):
            one.module = safe(f"{one.stem}: ", 40) + one.module


def attach(found: list[Subject], findings: list[Mapping[str, Any]]) -> list[tuple[int, ...]]:
    """Tell subjects their findings; return for each finding its subjects."""
    places: dict[tuple[str, str], int] = {}
    for at, each in enumerate(found):
        for name in each.names:
            places.setdefault((each.path, name), at)
    of = []
    for index, finding in enumerate(findings):
        hits: dict[int, None] = {}
        for name in _named(finding):
            at = places.get((finding["path"], name), places.get(("", name), -1))
            if at >= 0:
                hits[at] = None
        of.append(tuple(hits))
        rank = GRADES.index(finding["severity"])
        for at in hits:
            found[at].severity = max(found[at].severity, rank)
            found[at].findings.append(index)
    return of


def _named(finding: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that a finding gives: one tensor, or, of one about several, a list."""
    yield from (name for name in (finding["field"], finding["tensor"]) if name is not None)
    for key in ("names", "layers", "tensors"):
        listed = (finding.get("data") or {}).get(key)
        if isinstance(listed, list):
            for name in listed[:_NAMED]:
                if isinstance(name, str):
                    yield name
                    yield _NUMBERS.sub("*", name)  # `fit` lists a Linear once for every layer
