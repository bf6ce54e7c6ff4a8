"""Finding what `explain` is asked about, under the several spellings people use."""

from __future__ import annotations

import difflib
import re
from importlib.resources import files

from qassay.containers.ggml_types import GGML_TYPES
from qassay.core.container import StoredType
from qassay.core.errors import UsageError
from qassay.core.text import safe
from qassay.encodings.base import Encoding, Ggml, Safetensors
from qassay.encodings.registry import all_encodings
from qassay.report.document import Report
from qassay.report.manual import encoding_report, rule_report
from qassay.rules.base import Rule
from qassay.rules.registry import all_rules


def explain(subject: str) -> Report:
    """Return the page about a rule (code or name) or an encoding (id, bare name or label).

    Raises:
        UsageError: Nothing is called that; the message suggests what may be meant.
    """
    rules, encodings = _rules(), _encodings()
    word = _key(subject)
    if word in rules:
        return rule_report(rules[word])
    if word in encodings:
        return encoding_report(encodings[word])
    unread = _unread_type(word)
    if unread is not None:
        raise UsageError(
            f"{unread.name} is a ggml type that this version does not read"
            + (f": {unread.note}" if unread.note else ""),
            hint="`qassay encodings` lists those that it reads",
        )
    near = difflib.get_close_matches(word, [*rules, *encodings, "schema"], n=3, cutoff=0.6)
    # Spellings are keys to the same things: suggest each thing once, under its proper name.
    proper = [_proper(key, rules, encodings) for key in near]
    meant = ", ".join(dict.fromkeys(proper))
    raise UsageError(
        f"no rule and no encoding is called {safe(subject)}",
        hint=f"perhaps {meant}" if meant else "`qassay rules` and `qassay encodings` list them",
    )


def schema() -> str:
    """Return the JSON schema of the report."""
    return (files("qassay.report") / "schema" / "report-v1.json").read_text(encoding="utf-8")


def _key(word: str) -> str:
    """Return the form in which spellings are compared: `Scale not finite`, `scale_not_finite`."""
    return re.sub(r"[\s_-]+", "-", word.strip().lower())


def _rules() -> dict[str, type[Rule]]:
    found: dict[str, type[Rule]] = {}
    for rule in all_rules():
        for spelling in (rule.code, rule.name, f"{rule.code}-{rule.name}"):
            found[_key(spelling)] = rule
    return found


def _encodings() -> dict[str, type[Encoding]]:
    """Return encodings by every spelling that means just one of them."""
    found: dict[str, set[type[Encoding]]] = {}
    for encoding in all_encodings().values():
        spellings = {encoding.id, encoding.id.replace(".", "-")}
        if encoding.kind != "layer":  # `pack`, `int`, `compressed` name nothing by themselves
            spellings.add(encoding.id.rpartition(".")[2])
        for label in encoding.stored_as:
            if isinstance(label, Safetensors):
                spellings.add(label.dtype)
            elif isinstance(label, Ggml):
                spellings |= {f"type {label.number}", f"ggml {label.number}"}
        for spelling in spellings:
            found.setdefault(_key(spelling), set()).add(encoding)
    return {key: next(iter(those)) for key, those in found.items() if len(those) == 1}


def _unread_type(word: str) -> StoredType | None:
    """Return the ggml type that `word` names; the caller knows that no encoding is called that."""
    for number, kind in GGML_TYPES.items():
        name = kind.name.lower()
        spellings = (name, f"ggml.{name}", f"ggml {name}", f"type {number}", f"ggml {number}")
        if word in map(_key, spellings):
            return kind
    return None


def _proper(key: str, rules: dict[str, type[Rule]], encodings: dict[str, type[Encoding]]) -> str:
    if key in rules:
        return f"{rules[key].code} {rules[key].name}"
    return encodings[key].id if key in encodings else key
