"""What `qassay probe` has to say."""

from __future__ import annotations

from qassay.core.text import safe
from qassay.report.document import Coverage, Input, Report
from qassay.report.page import Column, Lines, Table
from qassay.report.words import shape
from qassay.run.probe import ProbeResult, kinds_of


def report_of(done: ProbeResult) -> Report:
    """Return the report of inputs that were written."""
    weights = done.weights
    n, k = weights.setup.n, weights.setup.k
    group = f", g {weights.group}" if weights.group else ""
    rows = tuple((kind, str(rows), shows) for kind, rows, shows in kinds_of(done.probes))
    written = [f"{name} {shape(sizes)}" for name, sizes in done.arrays.items()]
    return Report(
        command="probe",
        inputs=(
            Input(weights.path, weights.format, weights.nbytes,
                  f"{safe(weights.name, 80)}, {weights.label}, [{n}, {k}]{group}"),
        ),
        coverage=Coverage(tensors=1, checked=1, bytes=0),
        result={
            "layer": weights.name,
            "shape": [n, k],
            "group_size": weights.group or None,
            "rows": list(done.probes.kinds),
            "arrays": {name: list(sizes) for name, sizes in done.arrays.items()},
            "written": [done.path.name, done.page.name],
        },
        sections=(
            Table("Inputs", (Column("rows"), Column("number", right=True), Column("they show")),
                  rows),
            Lines(
                "Written",
                (
                    f"{safe(done.path.name)}: {', '.join(written)}",
                    f"{safe(done.page.name)}: what to run, and how to bring the outputs back",
                ),
            ),
        ),
        judged=False,
    )  # fmt: skip
