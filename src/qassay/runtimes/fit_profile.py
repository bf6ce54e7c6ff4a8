"""What a runtime's catalog is asked with: where, in which mode, and the facts of one Linear."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from qassay.core.errors import UsageError
from qassay.core.finding import Certainty
from qassay.core.text import safe
from qassay.runtimes.catalog.expressions import Value
from qassay.runtimes.catalog.grammar import Catalog
from qassay.runtimes.catalog.load import catalog
from qassay.runtimes.named import named
from qassay.runtimes.shapes.linear import Linear, Shapes


@dataclass(frozen=True, slots=True)
class Place:
    """One runtime, as `--on` names it.

    Attributes:
        runtime: Id of the catalog.
        variant: Chip, kernel or target; "" where the runtime has none.
        version: Of the runtime; "" where nothing depends on it.
        note: Why what is said of this version is not proven, "" where it is.
    """

    runtime: str
    variant: str = ""
    version: str = ""
    note: str = ""

    def __str__(self) -> str:
        """Return it as `--on` spells it."""
        variant = f":{self.variant}" if self.variant else ""
        return f"{self.runtime}{variant}" + (f"@{self.version}" if self.version else "")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be known of a model.

    Attributes:
        place: Where it shall run.
        to: The mode that floats are quantized to, as the runtime spells it.
        bits: Of a code in that mode; 16 where nothing is quantized.
        half: `bf16`, `f16`, or "" where that was not said.
        group_size: Of floats that the runtime quantizes, -1 for one scale a row.
        tp: Ranks of tensor parallelism.
        notes: What was taken from the checkpoint, and what of the command line does not count.
    """

    place: Place
    to: str
    bits: int
    half: str
    group_size: int
    tp: int = 1
    notes: tuple[str, ...] = ()


Cap = tuple[Certainty, str]
"""The most that can be said, and why not more."""


class Profile:
    """What code adds to a catalog. This one adds nothing: variants and versions are the catalog's.

    Args:
        about: The catalog.
    """

    def __init__(self, about: Catalog) -> None:
        self.catalog = about

    def mode_in(self, words: Iterable[str]) -> str | None:
        """Return the first of several words that is a mode of the runtime, None for none."""
        del words
        return None

    def place(self, variant: str, version: str | None) -> Place:
        """Return the place that `--on` names.

        Raises:
            UsageError: There is no such variant.
        """
        known = self.catalog.variants
        if variant not in known and (known or variant):
            raise UsageError(
                f"no such variant of {self.catalog.runtime}",
                expected=", ".join(known) or "none",
                found=safe(repr(variant), 60),
            )
        newest = self.catalog.versions[-1] if self.catalog.versions else ""
        return Place(self.catalog.runtime, variant, newest if version is None else version)

    def places(self) -> Iterator[Place]:
        """Yield every place that the catalog tells apart."""
        for variant in self.catalog.variants or ("",):
            for version in self.catalog.versions or ("",):
                yield self.place(variant, version or None)

    def ask(
        self, shapes: Shapes, place: Place, to: str | None, group_size: int | None, tp: int
    ) -> Asked:
        """Return what is asked, completed from what the checkpoint says."""
        group = group_size if group_size is not None else shapes.group_size
        width = re.search(r"\d{1,2}", to or "")
        bits = int(width[0]) if width else 16
        return Asked(place, to or "", bits, "", -1 if group is None else group, tp)

    def settle(self, linear: Linear, shapes: Shapes, asked: Asked) -> str:
        """Return how the runtime comes to run a Linear.

        `codes` of the checkpoint, `floats` that the runtime quantizes, `again` for floats that it
        quantizes though the checkpoint kept them, or why it stays at 16 bits.
        """
        if linear.quantized:
            return "codes"
        if shapes.quantized:
            return "the checkpoint keeps it at 16 bits"
        return "floats" if asked.bits < 16 else "nothing is quantized"

    def unread(self, linear: Linear, how: str) -> str:
        """Return why nothing is known of such a Linear, "" where something is."""
        del linear, how
        return ""

    def facts(self, linear: Linear, shapes: Shapes, asked: Asked, how: str) -> dict[str, Any]:
        """Return the values of the names in conditions; None for what is not known."""
        del shapes
        values: dict[str, Any] = dict(base_facts(linear, asked, how))
        return values

    def caps(self, linear: Linear, asked: Asked, how: str) -> Mapping[str, Cap]:
        """Return how certain each aspect is, that of "" counting for all."""
        del linear, asked, how
        return {"": (Certainty.PROVEN, "")}


def base_facts(linear: Linear, asked: Asked, how: str) -> dict[str, Value | None]:
    """Return the facts that need no runtime: shapes, ranks, codes."""
    codes = how == "codes"
    tp = asked.tp
    n = linear.n if linear.parallel != "col" else _share(linear.n, tp)
    k = linear.k if linear.parallel != "row" else _share(linear.k, tp)
    return {
        "N": linear.n,
        "K": linear.k,
        "Np": n,
        "Kp": k,
        "g": linear.group if codes else asked.group_size,
        "bits": linear.bits if codes else asked.bits,
        "tp": tp,
        "sym": linear.symmetric if codes else None,
        "act_order": linear.act_order if codes else False,
        "quantized": codes,
        "role": linear.role,
        "method": linear.method.lower(),
        "format": linear.format.lower(),
        "kind": linear.kind,
    }


def _share(size: int, tp: int) -> int | None:
    return size // tp if size % tp == 0 else None


def as_codes(linear: Linear, *, quantized: bool) -> Linear:
    """Return a Linear of which it is not known how it is kept, kept one way or the other."""
    return replace(linear, quantized=quantized)


def profile_of(runtime: str) -> Profile:
    """Return what is known of a runtime.

    Raises:
        UsageError: There is no catalog of it.
    """
    about = catalog(runtime)
    if not about.profile:
        return Profile(about)
    module = importlib.import_module(about.profile)
    made: Profile = module.profile(about)
    return made


def parse_on(word: str) -> tuple[Profile, Place]:
    """Return the runtime that a word of `--on` names: `sophgo:bm1684x`, `sophgo:bm1684x@1.28.1`.

    Raises:
        UsageError: It names none that is known.
    """
    given = named(word)
    profile = profile_of(given.runtime)
    return profile, profile.place(given.variant, given.version)
