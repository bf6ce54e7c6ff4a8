"""What becomes of each tensor: the type asked for, or the one that fits its rows, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from qassay.containers.ggml_types import ggml_type
from qassay.core.container import Container, StoredTensor, StoredType
from qassay.core.errors import UsageError
from qassay.core.text import safe
from qassay.encodings.base import BlockEncoding, Encoding, Floats, Ggml
from qassay.encodings.registry import by_id
from qassay.run.audit import why_not_read
from qassay.runtimes.base import Engine
from qassay.runtimes.registry import all_engines
from qassay.runtimes.registry import engine as engine_called
from qassay.runtimes.targets import Choice, Target, choices_for, fitting
from qassay.runtimes.targets_recipes import RECIPES, TYPES, Layout

MOST_AXES = 4
_PLAIN = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """One tensor of the new file.

    Attributes:
        stored: Where it comes from.
        source: Its encoding there.
        target: Its encoding in the new file.
        shape: Its shape in the new file (a scalar gets one axis).
        engine: What quantizes it; None where bytes are copied or floats widened to F32.
        reason: Why `target` is not what was asked for; "" where it is.
        importance: Of each expert's input features, `[experts, K]`, where the quantizer uses it.
    """

    stored: StoredTensor
    source: type[Encoding]
    target: type[Encoding]
    shape: tuple[int, ...]
    engine: type[Engine] | None
    reason: str = ""
    importance: Floats | None = None

    @property
    def takes_importance(self) -> bool:
        """Whether importance changes the bytes that are written."""
        route = None if self.engine is None else self.engine.routes.get(self.target.id)
        return route is not None and route.takes_importance

    @property
    def type(self) -> StoredType:
        """The GGUF type of `target`."""
        return gguf_type(self.target)

    @property
    def copied(self) -> bool:
        """Whether its bytes stay as they are."""
        return self.source is self.target


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for; as a `Chooser`, what the preflight judges and the plan is made of.

    Attributes:
        engine: Quantizes.
        to: What everything becomes that no pattern names: an encoding or a recipe.
        patterns: Shell patterns of tensor names with the encodings they get; the last one that
            matches counts.
    """

    engine: type[Engine]
    to: Target
    patterns: tuple[tuple[str, type[Encoding]], ...] = ()

    @classmethod
    def parse(cls, engine: str, to: str, patterns: Sequence[tuple[str, str]] = ()) -> Wish:
        """Return the wish that names stand for.

        Raises:
            UsageError: There is no such engine or type, or the engine does not write the type.
        """
        chosen = engine_called(engine)
        pairs = tuple((pattern, _encoding(name, chosen)) for pattern, name in patterns)
        return cls(chosen, _target(to, chosen), pairs)

    def choose(self, tensor: StoredTensor, source: type[Encoding], layout: Layout) -> Choice:
        """Return what becomes of a tensor; of one that is not floats, what it would have to be."""
        if source.kind == "integer":
            return Choice(self.to.word, reason="integers")
        asked = self.asked_for(tensor.name)
        if asked is not None:
            return fitting(asked.id, asked, tensor.shape)
        choice = self.to.meant(tensor, layout)
        if choice.encoding is not None:
            return choice
        # llama-quantize leaves these as they are, and its converters make them F32.
        kept = source if tensor.type.family == "ggml" else by_id("f32")
        return Choice(choice.word, kept.id, kept, reason=choice.reason)

    def asked_for(self, name: str) -> type[Encoding] | None:
        """Return the encoding that the patterns give a tensor; None where none matches."""
        found = (to for pattern, to in self.patterns[::-1] if fnmatchcase(name, pattern))
        return next(found, None)


def gguf_number(encoding: type[Encoding]) -> int | None:
    """Return the number that GGUF gives `encoding`; None where it has none."""
    labels = (label.number for label in encoding.stored_as if isinstance(label, Ggml))
    return next(labels, None)


def gguf_type(encoding: type[Encoding]) -> StoredType:
    """Return the GGUF type of an encoding that has one."""
    number = gguf_number(encoding)
    if number is None:
        raise ValueError(f"GGUF has no type for {encoding.id}")
    return ggml_type(number)


def _target(name: str, engine: type[Engine]) -> Target:
    word = name.strip().upper()
    if word not in RECIPES:
        encoding = _encoding(name, engine, recipes=True)
        return Target(encoding.id, encoding)
    if not engine.routes.keys() >= set(TYPES):
        raise UsageError(
            f"engine {engine.id} does not write the types of recipe {word}",
            expected=", ".join(_writes(engine)),
            hint="name another engine with --engine",
        )
    return Target(word)


def _writes(engine: type[Engine], *, recipes: bool = False) -> list[str]:
    able = recipes and engine.routes.keys() >= set(TYPES)
    return [*sorted({*engine.routes, *_PLAIN}), *(RECIPES if able else ())]


def _encoding(name: str, engine: type[Engine], *, recipes: bool = False) -> type[Encoding]:
    try:
        encoding = by_id(name.strip())
    except KeyError:
        encoding = None
    writes = _writes(engine, recipes=recipes)
    if encoding is None or encoding.id not in writes or gguf_number(encoding) is None:
        raise UsageError(
            f"engine {engine.id} does not write {encoding.id}"
            if encoding is not None
            else f"there is no type called {safe(name, 40)}",
            expected=", ".join(writes),
            hint=_other_ways(encoding, name),
        )
    return encoding


def _other_ways(encoding: type[Encoding] | None, name: str) -> str:
    """Return what to do about a type that an engine does not write."""
    if encoding is None:
        is_recipe = name.strip().upper() in RECIPES
        return "recipes are for --to alone" if is_recipe else "`qassay encodings` lists them"
    able = [each.id for each in all_engines().values() if encoding.id in _writes(each)]
    if not able or gguf_number(encoding) is None:
        return "no engine writes it into GGUF; take one of those"
    return f"write it with --engine {able[0]}"


def plan(container: Container, wish: Wish) -> list[Planned]:
    """Return what becomes of every readable tensor of `container`, in its order.

    Raises:
        UsageError: A pattern matches nothing, or a tensor cannot be quantized or be put into GGUF.
    """
    _check_patterns(container, wish)
    _check_format(container)
    if not (container.tensors or container.skipped or container.defects):
        raise UsageError(
            "the source holds no tensors, so there is nothing to quantize",
            path=container.path,
            hint="name the file or folder that holds the weights",
        )
    readable: list[tuple[StoredTensor, type[Encoding]]] = []
    for stored in container.tensors:
        source, _ = why_not_read(stored)
        if source is not None:
            _check_shape(stored)
            readable.append((stored, source))
    return [
        _place(stored, source, choice, wish)
        for (stored, source), (choice,) in zip(
            readable, choices_for((wish,), readable), strict=True
        )
    ]


def _check_patterns(container: Container, wish: Wish) -> None:
    if container.skipped:  # the names in there are not known; the check says what is wrong
        return
    for pattern, _ in wish.patterns:
        if not any(fnmatchcase(stored.name, pattern) for stored in container.tensors):
            raise UsageError(
                f"--type-for {safe(pattern)} matches no tensor",
                path=container.path,
                hint="`qassay inspect` lists their names",
            )


def _check_format(container: Container) -> None:
    formats = {part.format for part in container.extra.get("parts", {}).values()}
    if len(formats) > 1:
        raise UsageError(
            "the folder holds models in different formats",
            path=container.path,
            found=", ".join(sorted(formats)),
            hint="name one file, or move the others elsewhere",
        )
    for stored in container.tensors:
        if stored.part_of:
            raise UsageError(
                f"this model is quantized already: tensor '{safe(stored.name)}' is a part of a "
                "weight that is quantized over several tensors",
                path=stored.path,
                hint="quantize the float model that it was made from",
            )


def _place(stored: StoredTensor, source: type[Encoding], choice: Choice, wish: Wish) -> Planned:
    shape = stored.shape or (1,)
    if source.kind == "integer":
        return _integers(stored, source, wish.asked_for(stored.name), shape)
    target = choice.encoding
    if target is None:  # every float is written as something
        raise ValueError(f"no encoding for {stored.name}")
    if issubclass(source, BlockEncoding) and source is not target:
        raise UsageError(
            f"tensor '{safe(stored.name)}' is quantized already, as {stored.type.name}",
            path=stored.path,
            expected="floats",
            found=stored.type.name,
            hint="quantize the float model that it was made from",
        )
    reason = f"{choice.reason}: not quantized" if choice.reason else ""
    if choice.fell_back:
        block = by_id(choice.wanted).block
        reason = f"rows of {shape[-1]} are no whole number of {block}-weight blocks"
    return Planned(stored, source, target, shape, _writer(source, target, wish.engine), reason)


def _check_shape(stored: StoredTensor) -> None:
    if len(stored.shape) > MOST_AXES or stored.size == 0:
        raise UsageError(
            f"GGUF cannot hold tensor '{safe(stored.name)}' of shape {list(stored.shape)}",
            path=stored.path,
            expected=f"1 to {MOST_AXES} axes, none of them empty",
            hint="leave it out of the source, or reshape it there",
        )


def _integers(
    stored: StoredTensor,
    source: type[Encoding],
    asked: type[Encoding] | None,
    shape: tuple[int, ...],
) -> Planned:
    if gguf_number(source) is None or asked is not None:
        raise UsageError(
            f"tensor '{safe(stored.name)}' holds integers and cannot be quantized"
            if asked is not None
            else f"GGUF has no type for tensor '{safe(stored.name)}' of {stored.type.name}",
            path=stored.path,
            expected="floats" if asked is not None else "floats, or signed integers",
            found=stored.type.name,
            hint="leave it out of the source"
            if asked is None
            else "use a --type-for pattern that leaves it out",
        )
    return Planned(stored, source, source, shape, None, "integers: copied")


def _writer(
    source: type[Encoding], target: type[Encoding], engine: type[Engine]
) -> type[Engine] | None:
    if source is target or target.id == "f32":
        return None
    if target.id in engine.routes:
        return engine
    if target.kind == "block":
        raise UsageError(
            f"engine {engine.id} does not write {target.id}, which rows that do not fit would get",
            hint="name another engine with --engine",
        )
    # Not every program writes halves itself; the C reference rounds them to nearest even.
    return engine_called("ggml")
