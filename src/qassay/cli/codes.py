"""Rule codes, their beginnings and rule names, as people type them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from qassay.core.errors import UsageError
from qassay.core.text import safe
from qassay.rules.registry import codes as rule_modules


def known_codes(
    given: Iterable[str],
    codes: Sequence[str],
    where: str,
    path: str | None = None,
    *,
    whole: bool = False,
) -> tuple[str, ...]:
    """Return the code, or beginning of codes, that each word in `given` means.

    Args:
        given: Codes, beginnings of codes, names of rules; upper or lower case.
        codes: The codes there are.
        where: The option, variable or setting that they come from.
        path: The configuration file that they come from, if it is one.
        whole: Whether the beginning of a code will not do.

    Raises:
        UsageError: A word means no rule.
    """
    names = {_name(module): code for code, module in rule_modules().items() if code in codes}
    found = []
    for word in given:
        code = names.get(word.lower().replace("_", "-"), word.upper())
        if code not in codes and (whole or not any(each.startswith(code) for each in codes)):
            raise _unknown(word, names, where, path, whole=whole)
        found.append(code)
    return tuple(dict.fromkeys(found))


def _name(module: str) -> str:
    """Return the name of the rule in a module `...q201_scale_not_finite`; a test compares both."""
    return module.rpartition(".")[2][5:].replace("_", "-")


def _unknown(
    word: str, names: dict[str, str], where: str, path: str | None, *, whole: bool
) -> UsageError:
    near = difflib.get_close_matches(word.upper(), names.values(), n=12, cutoff=0.5)
    # Codes of one series begin alike: Q210 is rather meant to be Q201 than Q610.
    near = sorted(near, key=lambda code: code[:2] != word[:2].upper())[:3]
    if not near:
        alike = difflib.get_close_matches(word.lower(), names, n=3, cutoff=0.6)
        near = [f"{names[name]} {name}" for name in alike]
    return UsageError(
        f"{where}: no rule is called {safe(word)}",
        path=path,
        expected="a code such as Q201, or the name of a rule"
        if whole
        else "a code such as Q201, the beginning of one, or the name of a rule",
        hint=(f"perhaps {', '.join(near)}; " if near else "") + "`qassay rules` lists them",
    )
