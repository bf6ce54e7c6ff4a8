"""Plots of the HTML report as bare numbers; the page's script makes Vega-Lite of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Chart = dict[str, Any]

_CODES = 512


def profile(told: Mapping[str, Any], title: str, measure: str, noun: str) -> Chart:
    """Return the plot of `errorProfile`: mean and largest error of some channels in a row.

    Args:
        told: As the document has it.
        title: Of the plot.
        measure: What its bars are.
        noun: What they are of: `row` of a weight, `channel` of an output.
    """
    return {
        "kind": "profile",
        "title": title,
        "measure": measure,
        "noun": noun,
        "channels": told["channels"],
        "per": told["per"],
        "mean": told["mean"],
        "most": told["most"],
    }


def histogram(told: Mapping[str, Any], title: str, noun: str) -> Chart:
    """Return the plot of `errorHistogram`; `noun` is what was counted: weights, outputs."""
    return {"kind": "histogram", "title": title, "noun": noun, **told}


def codes(counts: Mapping[str, int]) -> Chart:
    """Return the plot of how often each code occurs, those that occur most if there are many."""
    some = sorted(counts.items(), key=lambda pair: -pair[1])[:_CODES]
    bars = sorted((int(code), seen) for code, seen in some)
    return {"kind": "bars", "title": "Codes", "x": "code", "bars": [list(bar) for bar in bars]}


def steps(told: Mapping[str, Any]) -> Chart:
    """Return the plot of by how many steps codes differ."""
    same = told["of"] - told["different"]
    return {
        "kind": "bars",
        "title": "Codes that differ, by steps",
        "x": "steps",
        "bars": [["0", same], *([word, seen] for word, seen in told["steps"].items())],
    }
