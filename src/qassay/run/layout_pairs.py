"""Which arrays of a file are scales and zero points that belong together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qassay.core.errors import UsageError
from qassay.core.text import safe
from qassay.run.layout_files import ArrayFile, only_of
from qassay.runtimes.sophgo.chips import Behaviour, Branch, behaviour
from qassay.runtimes.sophgo.layout import Half
from qassay.runtimes.sophgo.mlir import MatMulRecord, MlirModule
from qassay.runtimes.sophgo.named import Aimed

_HALVES = ("u16", "bf16", "f16")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says.

    Attributes:
        aimed: Chip and version.
        inverse: Whether to move out of the device's order.
        scale: Name of the array of scales; None: the only one of 16 bits.
        zero_point: Name of the array of zero points; None: the only one of 8 bits.
        shape: `[N, K/g]`, for arrays that are flat.
        group_size: g; decides the layout on some chips.
        weight_bits: 4 or 8; the same.
        half: What 16-bit patterns are; None: as the file says, else bf16.
    """

    aimed: Aimed
    inverse: bool = False
    scale: str | None = None
    zero_point: str | None = None
    shape: tuple[int, int] | None = None
    group_size: int = 64
    weight_bits: int = 4
    half: Half | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Scales and zero points of one Linear.

    Attributes:
        layer: Its name, or that of the scales.
        first: Name of the array of scales; of the only array.
        zeros: Name of the array of zero points, also where it is yet to be made.
        shape: `[N, K/g]`.
        half: What the 16 bits are.
        group_size: g.
        weight_bits: 4 or 8.
        alone: Whether there is only one array to be moved.
    """

    layer: str
    first: str
    zeros: str
    shape: tuple[int, int]
    half: Half
    group_size: int
    weight_bits: int
    alone: bool = False

    def acts(self, asked: Asked) -> Behaviour:
        """Return what the compiler does with it."""
        return behaviour(
            asked.aimed.chip.id,
            asked.aimed.version,
            weight_bits=self.weight_bits,
            q_group_size=self.group_size,
        )


def pairs_of(module: MlirModule, asked: Asked, file: ArrayFile) -> list[Pair]:
    """Return the pairs that a `.mlir` text names.

    Raises:
        UsageError: It is about another chip or another stage, or names arrays that are not there.
    """
    chip = module.chip.lower()
    if chip not in ("", "all", asked.aimed.chip.id):
        raise UsageError("the .mlir is about another chip", expected=asked.aimed.chip.id,
                         found=safe(chip, 40))  # fmt: skip
    found: dict[str, Pair] = {}
    names = frozenset(file.names())
    for record in module.linears:
        if record.quantized and record.scale is not None and record.scale.is_weight:
            pair = _of_record(record, asked, file, names)
            found.setdefault(pair.first, pair)
    if not found:
        raise UsageError("the .mlir holds no A16MatMul with scales of its own",
                         hint="name the .mlir of a stage from lowering on")  # fmt: skip
    return list(found.values())


def _of_record(record: MatMulRecord, asked: Asked, file: ArrayFile, names: frozenset[str]) -> Pair:
    scale, zeros = record.scale, record.zero_point
    assert scale is not None  # noqa: S101 - the caller looked
    name = safe(record.name, 80)
    shape = scale.type.shape
    if shape is None or scale.type.dtype not in ("bf16", "f16") or len(shape) not in (2, 3):
        raise UsageError(f"the scale of {name} is not 16 bits wide yet", found=str(scale.type),
                         expected="[N, K/g] or [P, N/P, K/g] of bf16 or f16",
                         hint="name the .mlir of a stage from lowering on")  # fmt: skip
    if (len(shape) == 3) != asked.inverse:
        raise UsageError(
            f"the scale of {name} is {'not yet' if asked.inverse else 'already'} in the device's"
            " order",
            found=str(scale.type),
            hint="leave --inverse out" if asked.inverse else "say --inverse",
        )
    acts_on = Pair(
        layer=record.name,
        first=scale.name,
        zeros=zeros.name if zeros is not None else f"{scale.name}.zero_point",
        shape=(1, 1),
        half="bf16" if scale.type.dtype == "bf16" else "f16",
        group_size=record.q_group_size or 0,
        weight_bits=record.weight_bits or 4,
    )
    branch = acts_on.acts(asked).branch
    logical = _logical(shape, branch, asked)
    missing = [one for one in (acts_on.first, acts_on.zeros if zeros is not None else None)
               if one is not None and one not in names]  # fmt: skip
    if missing:
        raise UsageError(
            f"the file has no array {safe(missing[0], 80)}",
            path=file.path,
            hint="name the npz that module.weight_file of the .mlir names",
        )
    return replace(acts_on, shape=logical)


def _logical(shape: tuple[int, ...], branch: Branch, asked: Asked) -> tuple[int, int]:
    if len(shape) == 2:
        return shape[0], shape[1]
    lanes, h, w = shape
    if lanes != asked.aimed.chip.lanes:
        raise UsageError("the scale was dealt to another number of lanes",
                         expected=str(asked.aimed.chip.lanes), found=str(lanes))  # fmt: skip
    interleaved = branch in (Branch.INTERLEAVED, Branch.INTERLEAVED_IN_ORDER)
    return lanes * h, w // 2 if interleaved else w


def named_pair(file: ArrayFile, asked: Asked) -> Pair:
    """Return the pair that names on the command line, or types in the file, tell.

    Raises:
        UsageError: They do not tell, or the shape is not known.
    """
    scale = _one(file, asked.scale, _HALVES, "--scale", "16-bit scales")
    interleaved = asked.inverse and _interleaves(asked)
    zeros = asked.zero_point
    if not interleaved:
        zeros = _one(file, asked.zero_point, ("u8",), "--zero-point", "8-bit zero points")
    first = scale if scale is not None else zeros
    if first is None:
        raise UsageError("the file holds neither scales nor zero points", path=file.path,
                         expected="arrays of 16-bit patterns and of bytes",
                         hint="say --scale NAME and --zero-point NAME")  # fmt: skip
    kind = file.kind(first)
    return Pair(
        layer=first,
        first=first,
        zeros=zeros or f"{first}.zero_point",
        shape=_shape(file, first, asked),
        half=asked.half or ("f16" if kind == "f16" else "bf16"),
        group_size=asked.group_size,
        weight_bits=asked.weight_bits,
        alone=(scale is None or zeros is None) and not interleaved,
    )


def _interleaves(asked: Asked) -> bool:
    acts = behaviour(asked.aimed.chip.id, asked.aimed.version,
                     weight_bits=asked.weight_bits, q_group_size=asked.group_size)  # fmt: skip
    return acts.branch in (Branch.INTERLEAVED, Branch.INTERLEAVED_IN_ORDER)


def _one(
    file: ArrayFile, name: str | None, kinds: tuple[str, ...], option: str, what: str
) -> str | None:
    if name is not None:
        if name not in file.names():
            raise UsageError(f"{option}: the file has no such array", path=file.path,
                             found=safe(name, 80),
                             expected=safe(", ".join(file.names()[:8]), 300))  # fmt: skip
        if file.kind(name) not in kinds:
            raise UsageError(f"{option}: {safe(name, 80)} holds no {what}", path=file.path,
                             expected=" or ".join(kinds), found=file.kind(name))  # fmt: skip
        return name
    able = only_of(file, kinds)
    if len(able) > 1:
        raise UsageError(
            f"several arrays can be {what}",
            path=file.path,
            found=safe(", ".join(able[:8]), 300),
            hint=f"say {option} NAME, or --mlir FILE with the text that belongs to the npz",
        )
    return able[0] if able else None


def _shape(file: ArrayFile, name: str, asked: Asked) -> tuple[int, int]:
    if asked.shape is not None:
        return asked.shape
    found = file.shape(name)
    if not asked.inverse and len(found) == 2:
        return found[0], found[1]
    if asked.inverse and len(found) == 3:
        wide = 2 if _interleaves(asked) else 1
        return found[0] * found[1], found[2] // wide
    raise UsageError(
        f"the shape of {safe(name, 80)} is not known: the array is {list(found)}",
        path=file.path,
        hint="say --shape N,K/g (before the reorder), or --mlir FILE",
    )
