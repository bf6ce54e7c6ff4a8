"""From what `run.check` found to the document, and the tables that go with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qassay.report.document import Coverage, NotChecked, Report
from qassay.report.inputs import input_of, missing_tensors
from qassay.report.of_targets import table as targets_table
from qassay.report.of_targets import targets
from qassay.report.page import Column, Section, Table
from qassay.report.tensors import TensorEntry
from qassay.report.totals import Total, totals
from qassay.report.words import number
from qassay.run.check import CheckResult

_OF_SCALES = (
    "blocks",
    "min |x|",
    "max |x|",
    "zero",
    "subnormal",
    "non-finite",
    "negative",
    "dead blocks",
)
_OF_VALUES = (
    "values",
    "min |x|",
    "max |x|",
    "zero",
    "subnormal",
    "NaN",
    "infinite",
    "dead rows",
)


def report_of(results: Sequence[CheckResult]) -> Report:
    """Return one report of one or more inputs."""
    facts = [result.facts for result in results]
    read = [tensor for one in facts for tensor in one.tensors]
    by_identity = {id(tensor.stored): tensor for tensor in read}
    others = {
        id(part): tensor.layer.module
        for tensor in read
        if tensor.layer is not None
        for part in tensor.layer.parts.values()
        if part is not tensor.stored
    }
    listed = [stored for one in facts for stored in one.container.tensors]
    summed = totals(read)
    full = any(result.full_stats for result in results)
    aims = targets(read)
    rules = sorted({code for result in results for code in result.rules})
    crashed = sorted({rule.code for one in facts for rule, _ in one.crashed})
    return Report(
        command="check",
        inputs=tuple(input_of(one.container) for one in facts),
        coverage=Coverage(
            tensors=len(listed) + sum(missing_tensors(one.container) for one in facts),
            checked=sum(tensor.parts for tensor in read if not tensor.partial),
            skipped=tuple(skip for result in results for skip in _skipped(result)),
            bytes=sum(tensor.nbytes for tensor in read),
        ),
        findings=tuple(finding for result in results for finding in result.findings),
        tensors=tuple(
            TensorEntry(stored, by_identity.get(id(stored)), full, others.get(id(stored), ""))
            for stored in listed
        ),
        result={
            "totals": {name: each.to_dict() for name, each in summed.items()},
            "rules": rules,
            "crashed": crashed,
            **({"targets": aims} if aims else {}),
        },
        sections=(*_sections(summed, full=full), *([targets_table(aims)] if aims else [])),
        fault=bool(crashed),
    )


def _skipped(result: CheckResult) -> list[NotChecked]:
    path = result.facts.container.path
    skipped = [NotChecked(skip.name, path, skip.reason) for skip in result.facts.unread]
    for rule, error in result.facts.crashed:
        reason = f"the rule failed: {type(error).__name__}"
        skipped.append(NotChecked(f"rule {rule.code} {rule.name}", path, reason))
    return skipped


def _sections(summed: Mapping[str, Total], *, full: bool) -> tuple[Section, ...]:
    tables = (_scales(summed), *([_codes(summed)] if full else []), _values(summed))
    return tuple(table for table in tables if table.rows)


def _scales(summed: Mapping[str, Total]) -> Table:
    rows = []
    for name, each in summed.items():
        for place, (scale, stats) in enumerate(each.scales.items()):
            rows.append(
                (
                    name if place == 0 else "",
                    scale,
                    number(stats.blocks),
                    number(stats.min_nonzero),
                    number(stats.max),
                    number(stats.zero),
                    number(stats.subnormal),
                    number(stats.nonfinite),
                    number(stats.negative),
                    number(each.dead_blocks) if place == 0 else "",
                )
            )
    columns = (Column("encoding"), Column("scale"), *(Column(title, True) for title in _OF_SCALES))
    return Table("Scales", columns, tuple(rows))


def _codes(summed: Mapping[str, Total]) -> Table:
    rows = []
    for name, each in summed.items():
        if each.codes is not None and each.codes.total:
            counts = each.codes.counts / each.codes.total
            codes = each.codes.patterns + each.lowest_code
            rows.append(
                (
                    name,
                    number(each.codes.total),
                    f"{codes.size:,} of {each.possible_codes:,}",
                    number(int(codes[0])),
                    f"{counts[0]:.2%}",
                    number(int(codes[-1])),
                    f"{counts[-1]:.2%}",
                )
            )
    titles = ("weights counted", "codes used", "lowest", "share", "highest", "share")
    columns = (Column("encoding"), *(Column(title, True) for title in titles))
    return Table("Codes", columns, tuple(rows))


def _values(summed: Mapping[str, Total]) -> Table:
    rows = [
        (
            name,
            number(each.values.values),
            number(each.values.min_nonzero),
            number(each.values.max),
            number(each.values.zero),
            number(each.values.subnormal),
            number(each.values.nan),
            number(each.values.inf),
            number(each.dead_rows),
        )
        for name, each in summed.items()
        if each.values is not None
    ]
    columns = (Column("encoding"), *(Column(title, True) for title in _OF_VALUES))
    return Table("Float values", columns, tuple(rows))
