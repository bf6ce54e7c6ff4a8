"""Test cases as data: build tensors, poke bits, expect findings.

A case file is YAML (`tests/rules/cases/Q201.yml`): the rule it is about, then cases by name::

    rule: Q201
    infinite_scale_in_second_block:
      tensor: {encoding: ggml.q4_0, shape: [2, 32], fill: ramp}
      poke: [{block: 1, field: d, bits: 0x7C00}]
      expect: [{block: 1, row: 1, field: d, severity: error}]

**Building.** `tensor` is one tensor, `tensors` several (each may bring its own `poke`). A tensor
has `name` (default `t`), `encoding` (or `type` and `bytes` for one that no encoding knows),
`shape`, `fill` and `seed` (`content.healthy`); one with `layer` instead is a weight in several
tensors (see `layers`), whose `poke` names the tensor by `part`. Without `container` the tensors
stay in memory, each from a multiple of 64 bytes on; with `container: gguf` or `safetensors` a
file is written, with `metadata`, and `write` hands further arguments to `build_gguf` or
`write_safetensors` (text for a bytes argument is hexadecimal); tensors then take `offset`, or
`data_offsets`, as well. `files` makes a folder: by name a file recipe, `{json: ...}` or
`{hex: ...}`. A finished file is edited by `cut` (bytes off the end) and `edit`
(`[{at: 16, hex: "ff ff"}]`; `at` is an offset or, in GGUF, the name of a field of
`BuiltGguf.fields`).

**Poking.** A poke changes one place of a tensor: `{block, field, bits}` a scale field;
`{block, codes}` the codes of a block (a number or a list), with `element` one of them;
`{block, field, integers}` a run of sub-scales; `{block, zero: true}` and `{row, zero: true}` write
what writers leave for zeros; `{index, value}` and `{index, bits}` one value of a plain tensor;
`{byte, bits}` a byte of the tensor. Blocks, rows and indices count through the whole tensor; with
`count`, as many consecutive ones are poked.

**Expecting.** An entry of `expect` names attributes of a finding: `code` (default: the rule's),
`tensor`, `expert`, `severity`, `certainty`, `count`, `path`, `name`; those of its first location:
`row`, `column`, `block`, `byte_offset`, `value`; `field`; and `data`, of which the keys given are
compared. The rule's findings and the entries must match one to one, and other rules may add
nothing above info that is not listed. `options` are those of `CheckOptions`; `to` is what is meant
by `--to`, with `group_size`; `fit` what is asked of a `runtime` (with `to`, `group_size`, `tp`,
and a `catalog` of its own if it is made up); `crashed` names rules that shall have raised. With
`against`, a recipe of its own, the case is a comparison: what the case builds is the first model,
and the findings are about the second. With `linear` (`{n, k, group}`, and `seed`, `symmetric`,
`bias`) the case is about a simulated device: it gets the inputs of `qassay probe`, or `random`
rows, and has the `fault` of that name (`faulty_devices.faults` and `nameless`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qassay.core.container import Container, StoredTensor, StoredType
from qassay.core.finding import Finding, Severity
from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, Encoding, PlainEncoding
from qassay.encodings.registry import by_id
from qassay.rules.base import ModelFacts
from qassay.rules.registry import all_rules
from qassay.run.audit import audit
from qassay.run.check import CheckResult, check, judge
from qassay.run.compare import compare
from qassay.run.options import CheckOptions, FitOptions
from qassay.runtimes.catalog.grammar import read_catalog
from qassay.runtimes.catalog.load import offer
from qassay.runtimes.targets import parse_targets
from qassay.testing.content import encode, healthy
from qassay.testing.device_cases import run_device_case
from qassay.testing.gguf_writer import GgufTensor, build_gguf
from qassay.testing.layers import layer_tensors
from qassay.testing.safetensors_writer import SafeTensor, write_safetensors

Recipe = Mapping[str, Any]
_ALIGNMENT = 64
_PLACES = ("row", "column", "block", "byte_offset", "value")


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a case file."""

    rule: str
    name: str
    recipe: Recipe

    @property
    def expected(self) -> list[dict[str, Any]]:
        """The findings that the case lists, each with its code."""
        return [{"code": self.rule, **entry} for entry in self.recipe["expect"]]

    @property
    def fails(self) -> bool:
        """Whether the rule is to find something."""
        return any(entry["code"] == self.rule for entry in self.expected)


def load_cases(path: Path) -> list[Case]:
    """Return the cases of a YAML file; needs PyYAML."""
    import yaml  # noqa: PLC0415  (only test suites have it)

    document = yaml.safe_load(path.read_text("utf-8"))
    rule = document.pop("rule")
    return [Case(rule, name, recipe) for name, recipe in document.items()]


def run_case(case: Case, folder: Path, options: CheckOptions | None = None) -> CheckResult:
    """Build what the case describes and check it with every rule.

    Args:
        case: The case.
        folder: Where files may be written.
        options: Used instead of the defaults; the case's own options win.
    """
    wanted = replace(
        options or CheckOptions(),
        targets=parse_targets([case.recipe.get("to", "")], case.recipe.get("group_size")),
        fit=_fit_options(case.recipe.get("fit")),
        **case.recipe.get("options", {}),
    )
    if "against" in case.recipe:
        return _run_comparison(case.recipe, folder, wanted)
    if "linear" in case.recipe:
        return run_device_case(case.recipe, folder, wanted)
    if "crashed" not in case.recipe:
        return check(build(case.recipe, folder), wanted)
    facts = audit(in_memory(case.recipe), wanted)
    rules = {rule.code: rule for rule in all_rules()}
    facts.crashed.extend((rules[code], ValueError("made up")) for code in case.recipe["crashed"])
    return judge(facts, wanted)


def _fit_options(recipe: Recipe | None) -> FitOptions | None:
    if recipe is None:
        return None
    asked = dict(recipe)
    if "catalog" in asked:
        offer(read_catalog(asked.pop("catalog"), "the case's catalog"))
    return FitOptions(asked.pop("runtime"), **asked)


def _run_comparison(recipe: Recipe, folder: Path, options: CheckOptions) -> CheckResult:
    second = folder / "against"
    second.mkdir()
    first = build(recipe, folder)
    done = compare(first, build(recipe["against"], second), options)
    facts = ModelFacts(done.containers[1], crashed=done.crashed)
    return CheckResult(facts, done.findings, done.rules)


def build(recipe: Recipe, folder: Path) -> Container | Path:
    """Return the container, file or folder that `recipe` describes."""
    if "files" in recipe:
        place = folder / str(recipe.get("path", "model"))
        place.mkdir(parents=True)
        for name, part in recipe["files"].items():
            (place / name).write_bytes(_file(part))
        return place
    if "container" in recipe:
        place = folder / str(recipe.get("path", f"model.{recipe['container']}"))
        place.write_bytes(_file(recipe))
        return place
    return in_memory(recipe)


class MemorySource:
    """A source over bytes."""

    def __init__(self, data: Bytes, name: str = "memory") -> None:
        self._data = data
        self._data.flags.writeable = False
        self._name = name

    @property
    def name(self) -> str:
        """How reports name it."""
        return self._name

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self._data.size

    def read(self, offset: int, length: int) -> Bytes:
        """Return `length` bytes from `offset`."""
        return self._data[offset : offset + length]

    def close(self) -> None:
        """Do nothing: nothing is open."""


@dataclass(slots=True)
class BuiltTensor:
    """A tensor that a recipe made."""

    recipe: Recipe
    name: str
    encoding: type[Encoding] | None
    shape: tuple[int, ...]
    data: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))


def in_memory(recipe: Recipe) -> Container:
    """Return a container whose tensors lie one after the other in one memory source."""
    tensors = list(_tensors(recipe))
    starts: list[int] = []
    end = 0
    for tensor in tensors:
        starts.append(end)
        end += -(-tensor.data.size // _ALIGNMENT) * _ALIGNMENT
    data = np.zeros(end, np.uint8)
    for start, tensor in zip(starts, tensors, strict=True):
        data[start : start + tensor.data.size] = tensor.data
    source = MemorySource(data)
    stored = [
        StoredTensor(
            name=tensor.name,
            type=_stored_type(tensor),
            shape=tensor.shape,
            source=source,
            offset=start,
            nbytes=tensor.data.size if tensor.encoding else None,
            path=source.name,
        )
        for start, tensor in zip(starts, tensors, strict=True)
    ]
    return Container(
        path=source.name,
        format="memory",
        metadata=recipe.get("metadata", {}),
        tensors=stored,
        sources=[source],
    )


def _stored_type(tensor: BuiltTensor) -> StoredType:
    encoding = tensor.encoding
    if encoding is None:
        label = tensor.recipe["type"]
        return StoredType("ggml", label, f"type {label}", 0, 0)
    family, label = encoding.stored_as[0].key
    return StoredType(family, label, encoding.id, encoding.block, encoding.block_bytes)


def _tensors(recipe: Recipe) -> Iterator[BuiltTensor]:
    wanted = list(recipe.get("tensors", []))
    if "tensor" in recipe:
        wanted.insert(0, {"poke": recipe.get("poke", []), **recipe["tensor"]})
    for part in wanted:
        if "layer" in part:
            yield from _layer(part)
            continue
        shape = tuple(part["shape"])
        name = part.get("name", "t")
        if "encoding" not in part:
            data = np.zeros(part["bytes"], np.uint8)
            yield BuiltTensor(part, name, None, shape, data)
            continue
        encoding = by_id(part["encoding"])
        units = math.prod(shape) // encoding.block
        data = healthy(encoding, units, part.get("fill", "ramp"), part.get("seed", 0))
        built = BuiltTensor(part, name, encoding, shape, data)
        for poke in part.get("poke", []):
            apply_poke(built, poke)
        yield built


def _layer(recipe: Recipe) -> Iterator[BuiltTensor]:
    for name, (encoding, shape, data) in layer_tensors(recipe).items():
        built = BuiltTensor(recipe, name, by_id(encoding), shape, data)
        for poke in recipe.get("poke", []):
            if name == f"{recipe['name']}.{poke['part']}":
                apply_poke(built, poke)
        yield built


def apply_poke(tensor: BuiltTensor, poke: Recipe) -> None:
    """Change a tensor's bytes as `poke` says (see the module docstring)."""
    encoding = tensor.encoding
    if "byte" in poke:
        tensor.data[poke["byte"]] = poke["bits"]
        return
    if encoding is None:
        raise ValueError("only bytes of a tensor without encoding can be poked")
    count = poke.get("count", 1)
    units = tensor.data.reshape(-1, encoding.block_bytes)
    if "row" in poke:
        per_row = tensor.shape[-1] // encoding.block
        first, count = poke["row"] * per_row, count * per_row
    else:
        first = poke["block"] if "block" in poke else poke["index"]
    chosen = units[first : first + count]
    if chosen.shape[0] != count:
        raise ValueError(f"{poke} lies outside the tensor")
    if poke.get("zero"):
        chosen[:] = healthy(encoding, count, "zeros").reshape(chosen.shape)
    elif issubclass(encoding, BlockEncoding):
        _poke_block(encoding, chosen, poke)
    elif issubclass(encoding, PlainEncoding):
        _poke_value(encoding, chosen, poke)


def _poke_block(encoding: type[BlockEncoding], blocks: Bytes, poke: Recipe) -> None:
    if "codes" in poke:
        bits = encoding.code_bits()
        codes = bits.unpack(blocks)
        codes[:, poke.get("element", slice(None))] = poke["codes"]
        bits.pack(codes, blocks)
    elif "integers" in poke:
        encoding.runs[poke["field"]].pack(poke["integers"], blocks)
    else:
        scale = encoding.scale_fields[poke["field"]]
        pattern = int(poke["bits"]).to_bytes(scale.nbytes, "little")
        blocks[:, scale.offset : scale.offset + scale.nbytes] = np.frombuffer(pattern, np.uint8)


def _poke_value(encoding: type[PlainEncoding], values: Bytes, poke: Recipe) -> None:
    if "bits" in poke:
        pattern = int(poke["bits"]).to_bytes(encoding.block_bytes, "little")
        values[:] = np.frombuffer(pattern, np.uint8)
    else:
        values[:] = encode(encoding, float(poke["value"]))


def _file(recipe: Recipe) -> bytes:
    if "json" in recipe:
        return json.dumps(recipe["json"]).encode()
    if "hex" in recipe:
        return bytes.fromhex(recipe["hex"])
    fields: Mapping[str, int] = {}
    more: dict[str, Any] = {
        key: bytes.fromhex(value) if isinstance(value, str) else value
        for key, value in recipe.get("write", {}).items()
    }
    if recipe["container"] == "gguf":
        built = build_gguf(recipe.get("metadata", {}), map(_gguf_tensor, _tensors(recipe)), **more)
        data, fields = bytearray(built.data), built.fields
    else:
        tensors = map(_safetensor, _tensors(recipe))
        data = bytearray(write_safetensors(tensors, recipe.get("metadata"), **more))
    for edit in recipe.get("edit", []):
        at = edit["at"] if isinstance(edit["at"], int) else fields[edit["at"]]
        new = bytes.fromhex(edit["hex"])
        data[at : at + len(new)] = new
    return bytes(data[: len(data) - recipe.get("cut", 0)])


def _label(tensor: BuiltTensor, family: str) -> Any:
    if tensor.encoding is None:
        return tensor.recipe["type"]
    keys = dict(stored.key for stored in tensor.encoding.stored_as)
    return keys[family]


def _gguf_tensor(tensor: BuiltTensor) -> GgufTensor:
    return GgufTensor(
        tensor.name,
        _label(tensor, "ggml"),
        tensor.shape[::-1],
        tensor.data.tobytes(),
        offset=tensor.recipe.get("offset"),
    )


def _safetensor(tensor: BuiltTensor) -> SafeTensor:
    return SafeTensor(
        tensor.name,
        _label(tensor, "safetensors"),
        list(tensor.shape),
        tensor.data.tobytes(),
        data_offsets=tensor.recipe.get("data_offsets"),
    )


def differences(case: Case, findings: Sequence[Finding]) -> list[str]:
    """Return what is wrong with the findings on a case; nothing when they are as expected."""
    left = list(findings)
    wrong = []
    for entry in case.expected:
        match = next((found for found in left if not _unlike(entry, found)), None)
        if match is not None:
            left.remove(match)
            continue
        near = [_unlike(entry, found) for found in left if found.code == entry["code"]]
        wrong.append(f"expected {entry}; nearest: {min(near, key=len) if near else 'nothing'}")
    wrong += [
        f"unexpected {found.code} {found.severity.label} {found.tensor}: {found.message}"
        for found in left
        if found.code == case.rule or found.severity > Severity.INFO
    ]
    return wrong


def _unlike(entry: Recipe, found: Finding) -> list[str]:
    """Return the attributes of `entry` that `found` does not have."""
    document = found.to_dict()
    place = document["location"] or {}
    unlike = []
    for key, wanted in entry.items():
        if key == "data":
            unlike += [
                f"data.{name} is {found.data.get(name)!r}"
                for name, value in wanted.items()
                if found.data.get(name) != value
            ]
        elif key in _PLACES:
            if place.get(key) != wanted:
                unlike.append(f"{key} is {place.get(key)!r}")
        elif document[key] != wanted:
            unlike.append(f"{key} is {document[key]!r}")
    return unlike
