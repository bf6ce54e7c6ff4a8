"""What `inspect` tells of a container from its headers alone."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from qassay.containers import MetadataArray
from qassay.core.container import Container, StoredTensor
from qassay.core.finding import Finding
from qassay.core.text import safe
from qassay.encodings.registry import assembled
from qassay.report.document import Coverage, NotChecked, Report
from qassay.report.inputs import input_of
from qassay.report.kinds import KINDS, kind_of
from qassay.report.layers import described
from qassay.report.layers import table as layers_table
from qassay.report.page import Column, Lines, Pairs, Section, Table
from qassay.report.strict import strict
from qassay.report.tensors import TensorEntry
from qassay.report.words import bits, count, number, plain, shape, size

if TYPE_CHECKING:  # a model without layers does not load them
    from qassay.encodings.layers import Layer

_LONG = 100
"""Characters of a metadata string that the text report shows."""


@dataclass(slots=True)
class _Sum:
    tensors: int = 0
    weights: int = 0
    nbytes: int = 0
    types: Counter[str] = field(default_factory=Counter)
    packed: bool = False

    @property
    def bits_per_weight(self) -> float | None:
        """None where integers hold several weights each: their number says nothing."""
        return None if self.packed else bits(self.nbytes, self.weights)

    def add(self, stored: StoredTensor) -> None:
        self.tensors += 1
        self.packed |= bool(stored.part_of)
        self.types[stored.type.name] += 1
        if stored.nbytes is not None:
            self.weights += stored.size
            self.nbytes += stored.nbytes

    def add_layer(self, layer: Layer) -> None:
        self.tensors += len(layer.parts)
        self.types[layer.label] += 1
        self.weights += layer.weights
        self.nbytes += layer.nbytes

    def to_dict(self) -> dict[str, Any]:
        return {
            "tensors": self.tensors,
            "weights": self.weights,
            "bytes": self.nbytes,
            "bits_per_weight": self.bits_per_weight,
            "types": dict(sorted(self.types.items())),
        }


def report_of(container: Container, findings: Sequence[Finding] = ()) -> Report:
    """Return the report of `inspect`; `findings` are those of the structure."""
    assembly = assembled(container)
    layers = () if assembly is None else tuple(assembly.layers)
    loose = container.tensors if assembly is None else assembly.loose
    by_type = _sums(loose, layers, lambda stored: stored.type.name, lambda layer: layer.label)
    by_kind = _sums(
        loose, layers, lambda stored: kind_of(stored.name), lambda layer: kind_of(layer.codes.name)
    )
    kinds = {kind: by_kind[kind] for kind in KINDS if kind in by_kind}
    config = config_of(container)
    result: dict[str, Any] = {
        "header": _header(container),
        "metadata": {key: _summary(value) for key, value in container.metadata.items()},
        "types": {name: each.to_dict() for name, each in sorted(by_type.items())},
        "kinds": {kind: each.to_dict() for kind, each in kinds.items()},
    }
    if config:
        result["config"] = config
    if layers:
        result["layers"] = [described(layer) for layer in layers]
    return Report(
        command="inspect",
        inputs=(input_of(container),),
        coverage=Coverage(
            tensors=len(container.tensors),
            skipped=tuple(
                NotChecked(skip.name, container.path, skip.reason) for skip in container.skipped
            ),
        ),
        findings=tuple(findings),
        tensors=tuple(TensorEntry(stored) for stored in container.tensors),
        result=result,
        sections=tuple(_sections(container, layers, by_type, kinds)),
        judged=False,
    )


def key_report(container: Container, key: str, value: Any) -> Report:
    """Return the report of one metadata value, arrays in full."""
    whole = _decoded(value)
    lines = whole if isinstance(whole, list) else [whole]
    return Report(
        command="inspect",
        inputs=(input_of(container),),
        coverage=Coverage(tensors=len(container.tensors)),
        result={"key": key, "value": whole},
        sections=(Lines("", tuple(_value_text(line) for line in lines), bare=True),),
        judged=False,
    )


def config_of(container: Container) -> Mapping[str, Any]:
    """Return what a folder's config.json says; nothing for a single file."""
    config = container.extra.get("config")
    return config if isinstance(config, Mapping) else {}


def _header(container: Container) -> dict[str, Any]:
    names = ("version", "alignment", "header_bytes", "data_offset")
    return {name: container.extra[name] for name in names if name in container.extra}


def _sums(
    tensors: Iterable[StoredTensor],
    layers: Iterable[Layer],
    of: Callable[[StoredTensor], str],
    of_layer: Callable[[Layer], str],
) -> dict[str, _Sum]:
    sums: dict[str, _Sum] = {}
    for stored in tensors:
        sums.setdefault(of(stored), _Sum()).add(stored)
    for layer in layers:
        sums.setdefault(of_layer(layer), _Sum()).add_layer(layer)
    return sums


def _summary(value: Any) -> Any:
    """Return a metadata value for the document, without decoding an array."""
    if isinstance(value, MetadataArray):
        return {"array": value.item_name, "count": len(value)}
    return value


def _decoded(value: Any) -> Any:
    return [_decoded(item) for item in value] if isinstance(value, MetadataArray) else value


def _sections(
    container: Container,
    layers: Sequence[Layer],
    by_type: Mapping[str, _Sum],
    kinds: Mapping[str, _Sum],
) -> Iterator[Section]:
    types = container.extra.get("value_types", {})
    for title, values in (("Config", config_of(container)), ("Metadata", container.metadata)):
        pairs = tuple(
            (safe(key), _metadata_text(value, types.get(key, ""))) for key, value in values.items()
        )
        if pairs:
            yield Pairs(title, pairs)
    if not container.tensors:
        return
    rows = tuple(
        (
            safe(stored.name),
            stored.type.name,
            shape(stored.shape),
            "-" if stored.nbytes is None else size(stored.nbytes),
            kind_of(stored.name),
        )
        for stored in container.tensors
    )
    columns = (
        Column("tensor"),
        Column("encoding"),
        Column("shape", right=True),
        Column("size", right=True),
        Column("kind"),
    )
    yield Table("Tensors", columns, rows)
    if layers:
        yield layers_table(layers)
    yield _sum_table("Encodings", "encoding", dict(sorted(by_type.items())), types=False)
    yield _sum_table("Bits per weight by kind", "kind", kinds, types=True)


def _sum_table(title: str, first: str, sums: Mapping[str, _Sum], *, types: bool) -> Table:
    rows = []
    for name, each in sums.items():
        mean = each.bits_per_weight
        row = (
            name,
            f"{each.tensors:,}",
            f"{each.weights:,}",
            size(each.nbytes),
            "-" if mean is None else f"{mean:.2f}",
        )
        held = ", ".join(f"{kind} ({seen:,})" for kind, seen in each.types.most_common())
        rows.append((*row, held) if types else row)
    columns: tuple[Column, ...] = (
        Column(first),
        *(Column(word, right=True) for word in ("tensors", "weights", "size", "bits/weight")),
    )
    return Table(title, (*columns, Column("encodings")) if types else columns, tuple(rows))


def _metadata_text(value: Any, kind: str) -> str:
    if isinstance(value, MetadataArray):
        noun = "string" if value.item_name == "string" else f"{value.item_name} value"
        return f"{count(len(value), noun)} (--key prints them)"
    if isinstance(value, str):
        if len(value) > _LONG:
            return f"{safe(value, _LONG)} ({len(value):,} characters; --key prints all)"
        return safe(value, _LONG)
    if kind == "float32":  # in the file's own precision: 1e-05, not 9.999999747378752e-06
        value = float(str(np.float32(value)))
    text = _value_text(value)
    if len(text) > _LONG:
        text = f"{text[:_LONG]}..."
    return text


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return safe(value, max(len(value), 1))
    if isinstance(value, float) and not math.isfinite(value):
        return number(value)
    text = json.dumps(strict(value), ensure_ascii=False)
    return plain(text if isinstance(value, (dict, list)) else text.strip('"'))
