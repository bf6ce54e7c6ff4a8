"""The manual: rules from their docstrings, encodings from their declarations."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from qassay.core.pages import page
from qassay.encodings.base import BlockEncoding, Codes, Encoding, Ggml, PlainEncoding, Safetensors
from qassay.encodings.bits import Bits
from qassay.encodings.fields import BitsField, Field, Role, ScaleField
from qassay.encodings.layers.base import LayerEncoding, Part
from qassay.encodings.layers.base import Role as LayerRole
from qassay.report.document import Report
from qassay.report.page import Column, Lines, Pairs, Section, Table
from qassay.rules.base import Rule

_ROLES = {
    Role.SCALE: "scale",
    Role.SUB_SCALE: "scale of a sub-block",
    Role.MIN_SCALE: "scale of the minimums",
    Role.OFFSET: "offset",
}


def rule_dict(rule: type[Rule]) -> dict[str, Any]:
    """Return what a list of rules says of one."""
    return {
        "code": rule.code,
        "name": rule.name,
        "severity": rule.severity.label,
        "certainty": rule.certainty.value,
        "title": rule.title(),
        "since": rule.since,
    }


def manual_parts(rule: type[Rule]) -> list[tuple[str, str]]:
    """Return a rule's manual page as pairs of heading and text; the first heading is ""."""
    pieces = re.split(r"^## +(.+)$", page(rule), flags=re.MULTILINE)
    pairs = [("", pieces[0].strip())]
    pairs += [
        (heading.strip(), text.strip())
        for heading, text in zip(pieces[1::2], pieces[2::2], strict=True)
    ]
    return pairs


def rule_report(rule: type[Rule]) -> Report:
    """Return the report of `explain CODE`."""
    parts = manual_parts(rule)
    head = f"{rule.code} {rule.name}"
    graded = f"{rule.severity.label}, {rule.certainty.value}, since {rule.since}"
    sections: list[Section] = [Lines(head, (*parts[0][1].splitlines(), "", graded))]
    sections += [Lines(heading, tuple(text.splitlines())) for heading, text in parts[1:]]
    manual = {heading: text for heading, text in parts if heading}
    return Report(
        command="explain",
        result={"rule": {**rule_dict(rule), "manual": manual}},
        sections=tuple(sections),
        judged=False,
    )


def rules_report(rules: Sequence[type[Rule]]) -> Report:
    """Return the report of `rules`."""
    names = ("code", "name", "severity", "certainty")
    rows = [rule_dict(rule) for rule in rules]
    return Report(
        command="rules",
        result={"rules": rows},
        sections=(
            Table(
                "",
                (*(Column(name) for name in names), Column("what it finds")),
                tuple((*(row[name] for name in names), row["title"]) for row in rows),
            ),
        ),
        judged=False,
    )


def encoding_dict(encoding: type[Encoding]) -> dict[str, Any]:
    """Return what a list of encodings says of one.

    Sizes are None for a family of layers: they vary with bits and groups. It has `parts`, the
    tensors that make up a weight, instead of fields.
    """
    head = {"id": encoding.id, "title": encoding.title(), "kind": encoding.kind}
    tail = {"formula": encoding.formula, "sources": list(encoding.sources)}
    if issubclass(encoding, LayerEncoding):
        sizes = {"block": None, "bytes": None, "bits_per_weight": None}
        parts = [
            {
                "name": part.name,
                "role": part.role.value,
                "dtypes": list(part.dtypes),
                "required": part.required,
                "instead_of": part.instead_of or None,
            }
            for part in encoding.parts
        ]
        return {**head, "stored_as": [], **sizes, "fields": [], "parts": parts, **tail}
    return {
        **head,
        "stored_as": stored_as(encoding),
        "block": encoding.block,
        "bytes": encoding.block_bytes,
        "bits_per_weight": encoding.bits_per_weight(),
        "fields": [
            {"name": field.name, "offset": field.offset, "bytes": field.nbytes, "what": what(field)}
            for field in fields_of(encoding)
        ],
        **tail,
    }


def stored_as(encoding: type[Encoding]) -> list[str]:
    """Return the labels that containers give an encoding: `GGUF type 8`, `safetensors F16`."""
    labels = []
    for label in encoding.stored_as:
        if isinstance(label, Ggml):
            labels.append(f"GGUF type {label.number}")
        elif isinstance(label, Safetensors):
            labels.append(f"safetensors {label.dtype}")
    return labels


def part_names(encoding: type[LayerEncoding]) -> list[str]:
    """Return the tensors that make up a weight; one in brackets may be left out.

    Scales of activations are no part of the weight, and not among them. Of `a or b` one is there.
    """
    return [
        " or ".join([part.name, *encoding.alternatives(part.name)])
        if part.required
        else f"[{part.name}]"
        for part in encoding.parts
        if part.role is not LayerRole.ACTIVATION and not part.instead_of
    ]


def part_rows(encoding: type[LayerEncoding]) -> list[tuple[str, str, str, str]]:
    """Return name, role, dtypes and necessity of each tensor that makes up a weight."""
    return [
        (
            part.name,
            part.role.value,
            ", ".join(part.dtypes),
            _needed(encoding, part),
        )
        for part in encoding.parts
    ]


def _needed(encoding: type[LayerEncoding], part: Part) -> str:
    if part.instead_of:
        return f"instead of {part.instead_of}"
    if not part.required:
        return "may be left out"
    return ", or ".join(["yes", *encoding.alternatives(part.name)])


def row(encoding: type[Encoding]) -> tuple[str, str, str, str, str, str, str]:
    """Return a line of the list: id, block, bytes, bits a weight, fields, formula, labels."""
    return (
        encoding.id,
        f"{encoding.block}",
        f"{encoding.block_bytes}",
        f"{encoding.bits_per_weight():g}",
        " ".join(field.name for field in fields_of(encoding)),
        encoding.formula,
        ", ".join(stored_as(encoding)),
    )


def fields_of(encoding: type[Encoding]) -> tuple[Field, ...]:
    """Return the stored fields; a plain encoding has one."""
    if issubclass(encoding, BlockEncoding):
        return encoding.fields
    return (Field("x", encoding.block_bytes),)


def what(field: Field) -> str:
    """Return what a field holds: `f16 scale`, `32 integers of 4 bits`."""
    if isinstance(field, ScaleField):
        notes = [f"{field.format} {_ROLES[field.role]}"]
        if field.signed:
            notes.append("may be negative")
        if field.subnormal_is_normal:
            notes.append("often subnormal")
        return ", ".join(notes)
    if isinstance(field, BitsField):
        runs = [
            (name, f"{run.count} {'signed ' if run.signed else ''}integers of {run.width} bits")
            for name, run in field.runs.items()
        ]
        if len(runs) == 1:
            return runs[0][1]
        return "; ".join(f"{name}: {text}" for name, text in runs)
    return "one number"


def encodings_report(encodings: Sequence[type[Encoding]]) -> Report:
    """Return the report of `encodings`."""
    layers = [encoding for encoding in encodings if issubclass(encoding, LayerEncoding)]
    rows = tuple(row(one) for one in encodings if not issubclass(one, LayerEncoding))
    families = tuple((one.id, ", ".join(part_names(one)), one.formula) for one in layers)
    columns = (
        Column("encoding"),
        Column("block", right=True),
        Column("bytes", right=True),
        Column("bits/weight", right=True),
        Column("fields"),
        Column("weight"),
        Column("stored as"),
    )
    return Report(
        command="encodings",
        result={"encodings": [encoding_dict(encoding) for encoding in encodings]},
        sections=(
            Table("", columns, rows),
            Table(
                "Weights that are kept in several tensors (in brackets: may be left out)",
                (Column("encoding"), Column("tensors"), Column("weight")),
                families,
            ),
        ),
        judged=False,
    )


def encoding_report(encoding: type[Encoding]) -> Report:
    """Return the report of `explain ENCODING`."""
    if issubclass(encoding, LayerEncoding):
        return _layer_report(encoding)
    doc = page(encoding).splitlines()
    weights = "1 weight" if encoding.block == 1 else f"{encoding.block} weights"
    amount = "1 byte" if encoding.block_bytes == 1 else f"{encoding.block_bytes} bytes"
    facts = [
        ("block", f"{weights} in {amount}, {encoding.bits_per_weight():g} bits a weight"),
        ("weight", encoding.formula),
        ("stored as", ", ".join(stored_as(encoding))),
    ]
    if isinstance(encoding, type) and issubclass(encoding, PlainEncoding):
        facts.insert(1, ("kind", encoding.kind))
    sections: list[Section] = [Lines(encoding.id, tuple(doc)), Pairs("", tuple(facts))]
    if issubclass(encoding, BlockEncoding):
        sections.append(Lines("Layout of a block", tuple(drawing(encoding))))
        rows = tuple(
            (field.name, f"{field.offset}", f"{field.nbytes}", what(field))
            for field in encoding.fields
        )
        columns = (
            Column("field"),
            Column("byte", right=True),
            Column("bytes", right=True),
            Column("holds"),
        )
        sections.append(Table("Fields", columns, rows))
        sections.append(Lines("Where integers lie", tuple(examples(encoding))))
    sections.append(Lines("Sources", encoding.sources))
    return Report(
        command="explain",
        result={"encoding": encoding_dict(encoding)},
        sections=tuple(sections),
        judged=False,
    )


def _pagelines(encoding: type[Encoding]) -> Iterator[str]:
    """Yield a page without the marks that begin its drawings."""
    lines = page(encoding).splitlines()
    for line, before in zip(lines, ["", *lines], strict=False):
        if line != "::" and not (line == "" and before == "::"):
            yield line


def _layer_report(encoding: type[LayerEncoding]) -> Report:
    columns = (Column("tensor"), Column("holds"), Column("dtype"), Column("needed"))
    facts = (
        ("weight", encoding.formula),
        ("bits a weight", "varies with the width of a code and the groups"),
        ("stored as", "several tensors"),
    )
    return Report(
        command="explain",
        result={"encoding": encoding_dict(encoding)},
        sections=(
            Lines(encoding.id, tuple(_pagelines(encoding))),
            Pairs("", facts),
            Table("Tensors", columns, tuple(part_rows(encoding))),
            Lines("Sources", encoding.sources),
        ),
        judged=False,
    )


def drawing(encoding: type[BlockEncoding]) -> Iterator[str]:
    """Yield a drawing of a block: byte offsets above, one cell a field."""
    cells = []
    for field in encoding.fields:
        label = field.format if isinstance(field, ScaleField) else f"{field.nbytes} bytes"
        wide = max(len(field.name), len(label), len(str(field.offset)), min(field.nbytes, 28))
        cells.append((field, label, wide + 2))
    rule = "+".join(["", *("-" * wide for _, _, wide in cells), ""])
    yield "".join(f"{field.offset:<{wide + 1}}" for field, _, wide in cells) + str(
        encoding.block_bytes
    )
    yield rule
    yield "|".join(["", *(f" {field.name:<{wide - 1}}" for field, _, wide in cells), ""])
    yield "|".join(["", *(f" {label:<{wide - 1}}" for _, label, wide in cells), ""])
    yield rule


def examples(encoding: type[BlockEncoding]) -> Iterator[str]:
    """Yield where the first and some later integers of each kind lie."""
    for name, codes in encoding.parts.items():
        run = codes.bits(encoding.runs)
        for index in sorted({0, 1, run.count // 2, run.count - 1}):
            yield f"{name}[{index}] = {_pieces(encoding, run, index)}{_zero(codes)}"


def _zero(codes: Codes) -> str:
    if codes.lookup is not None:
        return ", an index into the table"
    return f", minus {codes.zero}" if codes.zero else ""


def _pieces(encoding: type[BlockEncoding], run: Bits, index: int) -> str:
    """Return the pieces of one integer, low bits first: `qs byte 2 bits 0-3`."""
    found = []
    for plane in run.planes:
        mask = int(plane.mask[index])
        if not mask:
            continue
        byte, low = int(plane.byte[index]), int(plane.shift[index])
        high = low + mask.bit_length() - 1
        where = f"bits {low}-{high}" if high > low else f"bit {low}"
        field = next(each for each in encoding.fields if byte < each.offset + each.nbytes)
        up = int(plane.up[index])
        found.append(f"{field.name} byte {byte} {where}" + (f" << {up}" if up else ""))
    return " | ".join(itertools.chain(found))
