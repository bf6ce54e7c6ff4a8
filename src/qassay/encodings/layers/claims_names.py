"""Which modules an entry of a configuration means: prefixes, fused names, lists and patterns.

Programs disagree on how an entry is matched, and so the reading here is the common ground:

* transformers (`quantizers_utils.should_convert_module`): an entry is a regular expression from
  the beginning of the name, or the end of the name.
* vLLM (`quant_utils.is_layer_skipped`): the whole name; for AWQ any part of it (AutoAWQ, too).
* compressed-tensors (`utils/match.py`, `_match_name`): the whole name, or `re:` and a regular
  expression from the beginning of the name.
* modelopt (vLLM `ModelOptQuantConfigBase.is_layer_excluded`): a shell wildcard for the whole name;
  older files hold plain parts of names.

An entry without wildcards means the module of that name and all inside it; only the list of
compressed-tensors is exact. A part of a word (`gate` in `gate_proj`) counts nowhere but for AWQ,
and there leaves the question open, since its readers differ.

The same module is called `model.layers.0`, `language_model.model.layers.0` and
`model.language_model.layers.0` by different programs: wrappers in front are left out. Runtimes
join matrices that share their input (vLLM `packed_modules_mapping`): an entry that names the
joined matrix means its parts, and entries for all the parts mean the joined one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from qassay.core.text import safe
from qassay.encodings.layers.claims_values import Notes
from qassay.encodings.layers.patterns import Glob, Pattern, PatternError, PatternSet

LONGEST_NAME = 256
_MOST_PARTS = 40
_MOST_PATTERNS = 256
_MOST_AHEAD = 16
_MOST_LOOSE = 64
_WRAPPERS = frozenset({"model", "language_model", "base_model"})
_PREFIXES = ("", "model.", "language_model.", "model.language_model.", "language_model.model.")
_WILD = frozenset("*?[](){}|^$+\\")

FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "w13": ("w1", "w3"),
}
"""Matrices that runtimes join, by the name of the joined one."""

_PART_OF = {part: whole for whole, parts in FUSED.items() for part in parts}

_EMBEDDINGS = frozenset({"wte", "wpe", "embed_in", "embeddings"})
_ROUTERS = frozenset({"gate", "router", "wg", "shared_expert_gate"})
_HEADS = frozenset({"lm_head", "embed_out"})
# Linear layers that quantizers leave alone without saying so: they belong to no decoder layer of
# the language model, or are too small to matter.
_ASIDE = frozenset({
    "visual", "vision_tower", "vision_model", "vision_encoder", "audio_tower", "audio_encoder",
    "multi_modal_projector", "mm_projector", "vision_projection", "mtp", "eh_proj", "shared_head",
    "weights_proj", "rotary_emb", "indexer", "x_proj", "dt_proj",
})  # fmt: skip


def kind_of(module: str) -> str:
    """Return what a module's name makes it: `linear`, `head`, `embedding`, `norm`, `conv`,
    `router`, or `aside` for linear layers that are commonly left alone without a word.
    """  # noqa: D205
    parts = module.lower().split(".")
    last = parts[-1]
    if last in _HEADS:
        return "head"
    if "norm" in last or last.startswith("ln_") or last in ("ln1", "ln2"):
        return "norm"
    if last in _EMBEDDINGS or "embed" in last:
        return "embedding"
    if "conv" in last or "patch_embed" in parts:
        return "conv"
    if last in _ROUTERS or "router" in parts:
        return "router"
    return "aside" if not _ASIDE.isdisjoint(parts) else "linear"


def in_layer(module: str) -> bool:
    """Tell whether a module belongs to a numbered layer."""
    return any(part.isdecimal() for part in module.split("."))


def core(module: str) -> str:
    """Return a name without the wrappers in front of it."""
    parts = module.split(".", 4)
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        parts.pop(0)
    return ".".join(parts)


def siblings(module: str) -> tuple[list[str], list[str]]:
    """Return the names of the joined matrix that a module is part of, and of its own parts."""
    head, dot, last = module.rpartition(".")
    whole = _PART_OF.get(last)
    parts = FUSED.get(last, ())
    return (
        [f"{head}{dot}{whole}"] if whole else [],
        [f"{head}{dot}{part}" for part in parts],
    )


class _Together:
    """Some of the patterns of a list, matched together.

    Args:
        patterns: The list: entries, patterns, and whether to try wrappers in front of a name.
        spelled: Only patterns whose entry spells this.
        wrapped: Only patterns to try with wrappers, or only the others.
    """

    def __init__(
        self, patterns: list[tuple[str, Pattern, bool]], spelled: str, wrapped: bool
    ) -> None:
        self._numbers = [
            number
            for number, (entry, _, which) in enumerate(patterns)
            if which is wrapped and spelled in entry
        ]
        self.entries = [patterns[number][0] for number in self._numbers]
        self.patterns = PatternSet([patterns[number][1] for number in self._numbers])
        self._prefixes = _PREFIXES if wrapped else ()

    def find(self, module: str, bare: str) -> int | None:
        """Return the number in the list of the first pattern that fits, -1 for none."""
        numbers = [self.patterns.first(module)]
        if numbers[0] == -1:
            numbers += [self.patterns.first(prefix + bare) for prefix in self._prefixes]
        known = [number for number in numbers if number is not None and number >= 0]
        if known:
            return self._numbers[min(known)]
        return None if None in numbers else -1


class Entries:
    """A list of module names and patterns.

    Args:
        entries: As in the file.
        how: `exact` (compressed-tensors), `tree`, `part` (AWQ) or `glob` (modelopt).
        notes: Takes the patterns that are not read.
        key: Where the list stands.
        search: Whether patterns match anywhere in a name.
    """

    def __init__(
        self,
        entries: Iterable[str],
        how: str,
        notes: Notes,
        key: str,
        *,
        search: bool = False,
    ) -> None:
        self._how = how
        self._notes, self._key, self._search = notes, key, search
        self._room = PatternSet.MOST_TOGETHER
        self._literal: dict[str, str] = {}
        self._starts: dict[str, str] = {}
        self._patterns: list[tuple[str, Pattern, bool]] = []
        self._aheads = 0
        self.unread: str = ""
        self._order = {entry: number for number, entry in enumerate(entries)}
        for entry in self._order:
            self._add(entry)
        self._start_list = tuple(self._starts)
        loose = self._literal if how == "part" else ()
        self._loose = [entry for entry in loose if not entry.startswith("<")][:_MOST_LOOSE]
        self._sets: dict[str, list[_Together]] = {}

    def __bool__(self) -> bool:
        return bool(self._literal or self._starts or self._patterns or self.unread)

    def _add(self, entry: str) -> None:
        exact_regex = entry.startswith("re:")
        if not exact_regex and (self._how == "exact" or _WILD.isdisjoint(entry)):
            self._literal.setdefault(entry, entry)
            self._literal.setdefault(f"<{core(entry)}", entry)
            return
        if self._how == "glob" and entry[-1] == "*" and _WILD.isdisjoint(entry[:-1]):
            for start in (entry[:-1], core(entry)[:-1]):
                self._starts.setdefault(start, entry)
            return
        try:
            made = self._pattern(entry.removeprefix("re:"), entry)
            self._take_room(made[1])
        except PatternError as error:
            if not self.unread:
                self.unread = entry
            self._notes.add(
                f"the pattern '{safe(entry, 80)}' in {self._key} is not read: {error}",
                self._key,
                expected="a pattern that can be matched safely",
                found=entry,
            )
        else:
            self._patterns.append(made)

    def _take_room(self, pattern: Pattern) -> None:
        self._room -= pattern.size
        self._aheads += bool(pattern.ahead)
        many = len(self._patterns) >= _MOST_PATTERNS or self._aheads > _MOST_AHEAD
        if self._room < 0 or many:
            raise PatternError("there are too many patterns")

    def _pattern(self, text: str, entry: str) -> tuple[str, Pattern, bool]:
        # What depends on the wrappers in front is tried with each of them.
        wrapped = bool(re.search(r"model|^\^|^[A-Za-z]", text)) and not self._search
        if self._how == "glob":
            return entry, Glob(text), wrapped
        try:
            made = Pattern(text, search=self._search)
        except PatternError:
            if self._how == "exact" or not text.startswith("*"):
                raise
            return entry, Glob(text), wrapped  # a wildcard where an expression is expected
        return entry, made, wrapped and not made.ahead

    def find(self, module: str) -> tuple[bool | None, str]:
        """Return whether an entry means a module, and which; None where that cannot be told."""
        seen, entry = self._one(module)
        if seen:
            return True, entry
        wholes, parts = siblings(module)
        for name in wholes:
            whole, other = self._one(name, joined=True)
            if whole:
                return True, other
        each = [self._one(name) for name in parts]
        if each and all(found for found, _ in each):
            return True, each[0][1]
        if any(found for found, _ in each):
            return None, next(other for found, other in each if found)
        if seen is None:
            return None, entry
        return (None, self.unread) if self.unread else (False, "")

    def first(self, module: str) -> tuple[bool | None, str]:
        """Return as `find` does, for a list whose order counts: what is unread may come before."""
        seen, entry = self.find(module)
        if seen and self.unread and self._order[self.unread] < self._order[entry]:
            return None, self.unread
        return seen, entry

    def _one(self, module: str, *, joined: bool = False) -> tuple[bool | None, str]:
        """Look for one name; a pattern means a `joined` matrix only if it spells its name.

        (`.*v_proj` fits `qkv_proj`, and does not mean q.)
        """
        bare = core(module)
        spelled = module.rpartition(".")[2] if joined else ""
        entry = self._literal.get(module) or self._literal.get(f"<{bare}")
        if entry is None and self._how != "exact":
            entry = self._inside(module, bare)
        if entry is None and self._start_list:
            for name in (module, bare):
                if name.startswith(self._start_list):
                    entry = next(e for s, e in self._starts.items() if name.startswith(s))
                    entry = entry if spelled in entry else None
        if entry is not None:
            return True, entry
        open_entry = ""
        best = len(self._patterns)
        for patterns in self._together(spelled):
            number = patterns.find(module, bare)
            if number is None:
                open_entry = patterns.entries[0]
            elif number >= 0:
                best = min(best, number)
        if best < len(self._patterns):
            return True, self._patterns[best][0]
        if not open_entry:
            open_entry = next((entry for entry in self._loose if entry in module), "")
        return (None, open_entry) if open_entry else (False, "")

    def _together(self, spelled: str) -> list[_Together]:
        """Return the patterns that spell a word, those to try with wrappers by themselves."""
        sets = self._sets.get(spelled)
        if sets is None:
            sets = self._sets[spelled] = [
                made
                for which in (False, True)
                if (made := _Together(self._patterns, spelled, which)).entries
            ]
        return sets

    def _inside(self, module: str, bare: str) -> str | None:
        """Return the entry that names a module around this one, or the last parts of its name."""
        if not self._literal:
            return None
        parts = bare.split(".")
        for stop in range(1, len(parts)):
            entry = self._literal.get(f"<{'.'.join(parts[:stop])}")
            if entry is not None:
                return entry
        parts = module.split(".")
        for start in range(len(parts)):
            for stop in range(start + 1, len(parts) + 1):
                entry = self._literal.get(".".join(parts[start:stop]))
                if entry is not None and entry not in _WRAPPERS:
                    return entry
        return None


def is_matchable(module: str) -> bool:
    """Tell whether a module's name is one that can be matched in bounded time."""
    return len(module) <= LONGEST_NAME and module.count(".") < _MOST_PARTS
