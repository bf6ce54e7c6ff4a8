"""What a catalog may say: the entries of its YAML, checked one by one.

::

    runtime: sophgo
    title: TPU-MLIR, W4 and W8 with 16-bit activations
    profile: qassay.runtimes.sophgo.fit     # code that knows more than a table can: P of a chip
    versions: [1.28.1, 1.30.2]              # those that the entries are about, oldest first
    variants: [...]                         # chips, kernels, targets; left out where code has them
    paths: [marlin, machete]                # alternatives: one of them has to take a layer
    facts: {P: number, misfit: word}        # names for conditions beside those of `expressions`
    rules:
      - id: lanes
        path: W4 A16MatMul
        dimension: N                        # what the condition is about
        condition: Np % P == 0              # what has to hold
        when: reordered                     # which layers it is about; left out: all
        applies:
          since: 1.2.0                      # a version, or `unknown`: then `words` say it
          until: unknown                    # the first version it is no longer about
          words: before PR 45295
          variants: [bm1684x]
          act_order: false
          symmetric: true
          tp: split                         # only where tensor parallelism splits the layer
        effect: hard_error
        stage: compile
        step: weight-reorder
        says: N = {N} is no multiple of {P}
        does: tpu-mlir aborts
        error: invalid scale channel
        fix: [another version]
        pads: N                             # the dimension that padding repairs
        splits: N                           # the dimension that can be cut into N0 and the rest
        group_helps: false                  # whether another group size is worth a try
        aspect: misfit                      # which of the profile's certainties caps this one
        source: [...]
        confidence: high
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qassay.core.errors import DeclarationError
from qassay.core.finding import Certainty, Severity
from qassay.runtimes.catalog.expressions import NAMES, Expression, parse

STAGES = ("export", "quantized-data", "compile", "acceptance")
UNKNOWN = "unknown"
_ID = re.compile(r"[a-z][a-z0-9_.-]{1,60}")
_PLACE = re.compile(r"\{(\w+)\}")


class Effect(enum.Enum):
    """What a runtime does with a layer that does not fit."""

    HARD_ERROR = "hard_error"
    KERNEL_REJECTED = "kernel_rejected"
    CORRUPTION = "corruption"
    SILENT_FALLBACK = "silent_fallback"
    WARNED_FALLBACK = "warned_fallback"
    SILENT_SKIP = "silent_skip"
    WARNED_SKIP = "warned_skip"
    LOGGED_SKIP = "logged_skip"
    SILENT_PADDING = "silent_padding"
    WARNED_PADDING = "warned_padding"
    SILENT_SLOW_PATH = "silent_slow_path"

    @property
    def code(self) -> str:
        """The rule that reports it; a rejecting kernel is Q701 only if no other takes the layer."""
        return _CODES[self][0]

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return _CODES[self][1]


_CODES = {
    Effect.HARD_ERROR: ("Q701", Severity.ERROR),
    Effect.KERNEL_REJECTED: ("Q703", Severity.INFO),
    Effect.CORRUPTION: ("Q702", Severity.ERROR),
    Effect.SILENT_FALLBACK: ("Q703", Severity.WARNING),
    Effect.WARNED_FALLBACK: ("Q703", Severity.INFO),
    Effect.SILENT_SKIP: ("Q703", Severity.WARNING),
    Effect.WARNED_SKIP: ("Q703", Severity.INFO),
    Effect.LOGGED_SKIP: ("Q703", Severity.INFO),
    Effect.SILENT_PADDING: ("Q704", Severity.WARNING),
    Effect.WARNED_PADDING: ("Q704", Severity.INFO),
    Effect.SILENT_SLOW_PATH: ("Q703", Severity.INFO),
}


class Confidence(enum.Enum):
    """How well an entry is founded."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    @property
    def certainty(self) -> Certainty:
        """The most that a finding by such an entry can be."""
        return {"high": Certainty.PROVEN, "medium": Certainty.LIKELY, "low": Certainty.HINT}[
            self.value
        ]


@dataclass(frozen=True, slots=True)
class Applies:
    """When an entry counts at all.

    Attributes:
        since: First version, `unknown`, or "" for all before `until`.
        until: First version that it is no longer about, `unknown`, or "".
        words: The condition in words, for a version range that is not known.
        variants: Chips or kernels; empty for all.
        act_order: Only with, or without, act-order; None for both.
        symmetric: Only symmetric, or asymmetric; None for both.
        split: Whether only layers that tensor parallelism splits.
    """

    since: str = ""
    until: str = ""
    words: str = ""
    variants: tuple[str, ...] = ()
    act_order: bool | None = None
    symmetric: bool | None = None
    split: bool = False

    @property
    def open(self) -> bool:
        """Whether the range of versions is not known."""
        return UNKNOWN in (self.since, self.until)


@dataclass(frozen=True, slots=True)
class CatalogRule:
    """One entry of a catalog; see the module's docstring for the fields."""

    id: str
    path: str
    dimension: str
    condition: Expression
    when: Expression | None
    applies: Applies
    effect: Effect
    stage: str
    step: str
    says: str
    does: str
    error: str
    fix: tuple[str, ...]
    pads: str
    splits: str
    group_helps: bool
    aspect: str
    source: tuple[str, ...]
    confidence: Confidence


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is known of one runtime.

    Attributes:
        runtime: Its id, as `--on` spells it.
        title: What it is.
        profile: Module with code that knows more, "" for none.
        versions: Those that the entries are about, oldest first.
        variants: Chips, kernels or targets; empty where the profile has them.
        paths: Alternatives, one of which has to take a layer.
        facts: Names of its own for conditions, with their kinds.
        rules: The entries, in the order in which a layer meets them.
    """

    runtime: str
    title: str
    profile: str
    versions: tuple[str, ...]
    variants: tuple[str, ...]
    paths: tuple[str, ...]
    facts: Mapping[str, str]
    rules: tuple[CatalogRule, ...]


class _Entry:
    """A mapping of the YAML, whose keys are taken one by one; what is left over is an error."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, Mapping):
            raise DeclarationError(f"{where} is no mapping", found=type(values).__name__)
        self.left = dict(values)
        self.where = where

    def refusal(self, key: str, expected: str, found: Any) -> DeclarationError:
        return DeclarationError(
            f"{self.where}: {key} is wrong", expected=expected, found=f"{found!r:.80}"
        )

    def text(self, key: str, *, required: bool = False) -> str:
        value = self.left.pop(key, None)
        if value is None and not required:
            return ""
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value.strip():
            raise self.refusal(key, "text", value)
        return " ".join(value.split())

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.left.pop(key, None)
        if value is None:
            return ()
        many = [value] if isinstance(value, str) else value
        if not isinstance(many, Sequence) or any(not isinstance(one, str) for one in many):
            raise self.refusal(key, "a list of texts", value)
        return tuple(" ".join(one.split()) for one in many)

    def flag(self, key: str) -> bool | None:
        value = self.left.pop(key, None)
        if value is not None and not isinstance(value, bool):
            raise self.refusal(key, "true or false", value)
        return value

    def choice(self, key: str, among: Sequence[str], *, required: bool = False) -> str:
        value = self.text(key, required=required)
        if value and value not in among:
            raise self.refusal(key, f"one of {', '.join(among)}", value)
        return value

    def done(self) -> None:
        if self.left:
            raise DeclarationError(
                f"{self.where} has keys that mean nothing", found=", ".join(map(str, self.left))
            )


def read_catalog(document: Any, where: str) -> Catalog:
    """Return the catalog that a YAML document holds.

    Raises:
        DeclarationError: An entry is incomplete or wrong; the message says which and how.
    """
    entry = _Entry(document, where)
    runtime = entry.text("runtime", required=True)
    facts = entry.left.pop("facts", {}) or {}
    kinds = ("number", "flag", "word")
    if not isinstance(facts, Mapping) or any(
        not isinstance(name, str) or not name.isidentifier() or name in NAMES or kind not in kinds
        for name, kind in facts.items()
    ):
        raise entry.refusal("facts", f"new names, each {' or '.join(kinds)}", facts)
    rules = entry.left.pop("rules", None)
    if not isinstance(rules, Sequence) or isinstance(rules, str) or not rules:
        raise entry.refusal("rules", "a list of entries", rules)
    paths = entry.texts("paths")
    read = tuple(_rule(one, f"{where}, rule {at}", facts, paths) for at, one in enumerate(rules))
    if len({rule.id for rule in read}) != len(read):
        raise DeclarationError(f"{where}: an id stands twice")
    profile = entry.text("profile")
    if profile and not re.fullmatch(r"qassay\.runtimes\.\w+\.fit", profile):
        raise entry.refusal("profile", "a module such as qassay.runtimes.sophgo.fit", profile)
    versions = tuple(map(str, entry.left.pop("versions", ())))
    made = Catalog(
        runtime,
        entry.text("title", required=True),
        profile,
        versions,
        entry.texts("variants"),
        paths,
        dict(facts),
        read,
    )
    entry.done()
    return made


def _rule(values: Any, where: str, facts: Mapping[str, str], paths: tuple[str, ...]) -> CatalogRule:
    entry = _Entry(values, where)
    name = entry.text("id", required=True)
    if not _ID.fullmatch(name):
        raise entry.refusal("id", "small letters, digits, dots", name)
    entry.where = f"{where} ({name})"
    when = entry.left.pop("when", None)
    condition = entry.left.pop("condition", None)
    rule = CatalogRule(
        id=name,
        path=entry.text("path", required=True),
        dimension=entry.choice("dimension", ("N", "K", "g", "bits", "model"), required=True),
        condition=parse("True" if condition is True else str(condition), facts),
        when=None if when is None else parse(str(when), facts),
        applies=_applies(entry.left.pop("applies", {}), entry.where),
        effect=Effect(entry.choice("effect", [one.value for one in Effect], required=True)),
        stage=entry.choice("stage", STAGES, required=True),
        step=entry.text("step"),
        says=entry.text("says", required=True),
        does=entry.text("does", required=True),
        error=entry.text("error"),
        fix=entry.texts("fix"),
        pads=entry.choice("pads", ("N", "K")),
        splits=entry.choice("splits", ("N",)),
        group_helps=entry.flag("group_helps") is not False,
        aspect=entry.text("aspect"),
        source=entry.texts("source"),
        confidence=Confidence(
            entry.choice("confidence", [one.value for one in Confidence], required=True)
        ),
    )
    entry.done()
    known = {*NAMES, *facts, "variant", "version"}
    for text in (rule.says, rule.does, *rule.fix):
        strange = set(_PLACE.findall(text)) - known
        if strange:
            raise entry.refusal("says, does or fix", "names that are known", sorted(strange))
    if not rule.source:
        raise entry.refusal("source", "where it was read or run", ())
    if rule.effect is Effect.KERNEL_REJECTED and rule.path not in paths:
        raise entry.refusal("path", f"one of {', '.join(paths)}, which may reject", rule.path)
    return rule


def _applies(values: Any, where: str) -> Applies:
    entry = _Entry(values or {}, f"{where}, applies")
    made = Applies(
        since=entry.text("since"),
        until=entry.text("until"),
        words=entry.text("words"),
        variants=entry.texts("variants"),
        act_order=entry.flag("act_order"),
        symmetric=entry.flag("symmetric"),
        split=bool(entry.choice("tp", ("split", "any")) == "split"),
    )
    entry.done()
    if made.open and not made.words:
        raise entry.refusal("words", "the condition in words, as the versions are not known", "")
    return made


def filled(text: str, values: Mapping[str, Any]) -> str:
    """Return a sentence with `{N}` and its like replaced by values; an unknown one is `?`."""
    return _PLACE.sub(lambda found: str(_shown(values.get(found[1]))), text)


def _shown(value: Any) -> Any:
    return "?" if value is None else value
