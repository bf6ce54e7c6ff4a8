"""Which Linears an architecture has, given its configuration.

Names are those of the published checkpoints; sizes follow the modules of Hugging Face transformers
(`modeling_llama`, `modeling_qwen2`, `modeling_qwen2_moe`, `modeling_qwen3`, `modeling_qwen3_moe`,
`modular_qwen3_next` at 043bb8dd, `modular_qwen3_5_moe` at 0960594c, `configuration_qwen3_5` at
008e5743, `modeling_qwen3_vl`). A family that is not here is never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qassay.core.errors import InputError
from qassay.core.text import safe
from qassay.runtimes.shapes.linear import LARGEST_AXIS, Linear
from qassay.runtimes.shapes.reading import Keys
from qassay.runtimes.shapes.roles import fused_name, part_of

ATTENTION = ("full_attention", "linear_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture.

    Attributes:
        bias: Default of the bias of q, k and v.
        derives_head_dim: Whether `head_dim` may be left out, for hidden size over heads.
        gated: Whether q_proj makes a gate as well, and so is twice as wide.
        gdn: How gated delta-net layers store their input: `split`, `fused`, or "" for none.
        experts: How experts are stored: `each`, `stacked`, or "" for none.
        all_sparse: Whether every layer has experts, whatever `decoder_sparse_step` says.
        shared: Whether a shared expert stands beside the others, with a gate of its own.
        vision: Whether there is a vision tower.
    """

    bias: bool = False
    derives_head_dim: bool = False
    gated: bool = False
    gdn: str = ""
    experts: str = ""
    all_sparse: bool = False
    shared: bool = False
    vision: bool = False


_QWEN3_5 = Family(gated=True, gdn="split", vision=True)
_QWEN3_5_MOE = Family(
    gated=True, gdn="split", experts="stacked", all_sparse=True, shared=True, vision=True
)
FAMILIES = {
    "llama": Family(derives_head_dim=True),
    "qwen2": Family(bias=True, derives_head_dim=True),
    "qwen2_moe": Family(bias=True, derives_head_dim=True, experts="each", shared=True),
    "qwen3": Family(),
    "qwen3_moe": Family(experts="each"),
    "qwen3_next": Family(gated=True, gdn="fused", experts="each", shared=True),
    "qwen3_5": _QWEN3_5,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5_MOE,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_vl": Family(vision=True),
    "qwen3_vl_text": Family(vision=True),
    "qwen3_vl_moe": Family(experts="stacked", vision=True),
    "qwen3_vl_moe_text": Family(experts="stacked", vision=True),
}
"""By `model_type`."""


def linears_of(keys: Keys, family: Family, vision: Keys | None, prefix: str) -> Iterator[Linear]:
    """Yield the Linears of a model, layer by layer.

    Args:
        keys: The text model's part of the configuration.
        family: The architecture.
        vision: The vision tower's part, None where there is none.
        prefix: What stands before `layers` in names.

    Raises:
        InputError: A key is missing or no size.
    """
    hidden, count = keys.number("hidden_size"), keys.number("num_hidden_layers")
    kinds = _kinds(keys, family, count)
    sparse = _sparse(keys, family, count)
    delta = "linear_attention"
    attention = list(_attention(keys, family, hidden)) if set(kinds) != {delta} else []
    gdn = list(_gdn(keys, family, hidden)) if delta in kinds else []
    dense = list(_mlp("mlp", keys.number("intermediate_size"), hidden)) if not all(sparse) else []
    moe = list(_moe(keys, family, hidden)) if any(sparse) else []
    for layer, kind in enumerate(kinds):
        mixer, feed = gdn if kind == delta else attention, moe if sparse[layer] else dense
        for one in (*mixer, *feed):
            yield _placed(one, f"{prefix}layers.{layer}.")
    if vision is not None:
        yield from _vision(vision, prefix)


def head_of(keys: Keys, name: str) -> Linear:
    """Return the output head."""
    return _linear(name, keys.number("vocab_size"), keys.number("hidden_size"))


def _linear(
    name: str, n: int, k: int, *, bias: bool | None = False, experts: int | None = None
) -> Linear:
    if max(n, k) > LARGEST_AXIS:
        raise InputError(
            f"{name} would have a shape [{n}, {k}]",
            expected=f"at most {LARGEST_AXIS:,} rows or columns",
            hint="heads, sizes of heads and the like multiply to more than any model has",
        )
    part = part_of(name)
    fused = fused_name(name, part)
    return Linear(name, n, k, part.role, part.parallel, fused, bias, experts)


def _placed(one: Linear, prefix: str) -> Linear:
    """Return the same Linear in a layer."""
    fused = prefix + one.fused_as if one.fused_as else ""
    name = prefix + one.name
    return Linear(name, one.n, one.k, one.role, one.parallel, fused, one.bias, one.experts)


def _kinds(keys: Keys, family: Family, count: int) -> tuple[str, ...]:
    if not family.gdn:
        return ("full_attention",) * count
    told = keys.words("layer_types", count, ATTENTION)
    if told is not None:
        return told
    every = keys.number("full_attention_interval", 4)
    return tuple(
        "full_attention" if (at + 1) % every == 0 else "linear_attention" for at in range(count)
    )


def _sparse(keys: Keys, family: Family, count: int) -> list[bool]:
    """Return which layers have experts."""
    if not family.experts or family.all_sparse:
        return [bool(family.experts)] * count
    step, dense = keys.number("decoder_sparse_step", 1), set(keys.numbers("mlp_only_layers"))
    return [at not in dense and (at + 1) % step == 0 for at in range(count)]


def _attention(keys: Keys, family: Family, hidden: int) -> Iterator[Linear]:
    heads = keys.number("num_attention_heads")
    shared = keys.number("num_key_value_heads", heads if family.derives_head_dim else None)
    size = keys.get("head_dim")
    if size is None and family.derives_head_dim:
        if hidden % heads:
            raise keys.refusal(
                "num_attention_heads", "does not divide hidden_size", f"a divisor of {hidden}"
            )
        size = hidden // heads
    else:
        size = keys.number("head_dim")
    bias = keys.flag("attention_bias", default=family.bias)
    yield _linear("self_attn.q_proj", heads * size * (2 if family.gated else 1), hidden, bias=bias)
    yield _linear("self_attn.k_proj", shared * size, hidden, bias=bias)
    yield _linear("self_attn.v_proj", shared * size, hidden, bias=bias)
    out_bias = bias and not family.bias  # Qwen2 has none
    yield _linear("self_attn.o_proj", hidden, heads * size, bias=out_bias)


def _gdn(keys: Keys, family: Family, hidden: int) -> Iterator[Linear]:
    heads = keys.number("linear_num_value_heads")
    key = keys.number("linear_num_key_heads") * keys.number("linear_key_head_dim")
    value = heads * keys.number("linear_value_head_dim")
    if family.gdn == "fused":
        yield _linear("linear_attn.in_proj_qkvz", 2 * key + 2 * value, hidden)
        yield _linear("linear_attn.in_proj_ba", 2 * heads, hidden)
    else:
        yield _linear("linear_attn.in_proj_qkv", 2 * key + value, hidden)
        yield _linear("linear_attn.in_proj_z", value, hidden)
        yield _linear("linear_attn.in_proj_b", heads, hidden)
        yield _linear("linear_attn.in_proj_a", heads, hidden)
    yield _linear("linear_attn.out_proj", hidden, value)


def _mlp(module: str, size: int, hidden: int) -> Iterator[Linear]:
    yield _linear(f"{module}.gate_proj", size, hidden)
    yield _linear(f"{module}.up_proj", size, hidden)
    yield _linear(f"{module}.down_proj", hidden, size)


def _moe(keys: Keys, family: Family, hidden: int) -> Iterator[Linear]:
    experts, size = keys.number("num_experts"), keys.number("moe_intermediate_size")
    yield _linear("mlp.gate", experts, hidden)
    if family.experts == "stacked":
        yield _linear("mlp.experts.gate_up_proj", 2 * size, hidden, experts=experts)
        yield _linear("mlp.experts.down_proj", hidden, size, experts=experts)
    else:
        for expert in range(experts):
            yield from _mlp(f"mlp.experts.{expert}", size, hidden)
    if family.shared:
        yield from _mlp("mlp.shared_expert", keys.number("shared_expert_intermediate_size"), hidden)
        yield _linear("mlp.shared_expert_gate", 1, hidden)


def _vision(keys: Keys, prefix: str) -> Iterator[Linear]:
    """Yield the vision tower of Qwen3-VL and Qwen3.5; every Linear of it has a bias."""
    root = f"{prefix.removesuffix('language_model.')}visual."
    depth, hidden = keys.number("depth"), keys.number("hidden_size")
    size, out = keys.number("intermediate_size"), keys.number("out_hidden_size")
    merged = hidden * keys.number("spatial_merge_size", 2) ** 2
    if merged > 1 << 28:
        raise keys.refusal("spatial_merge_size", "is no size", "a small number such as 2")
    for block in range(depth):
        at = f"{root}blocks.{block}."
        yield _linear(f"{at}attn.qkv", 3 * hidden, hidden, bias=True)
        yield _linear(f"{at}attn.proj", hidden, hidden, bias=True)
        yield _linear(f"{at}mlp.linear_fc1", size, hidden, bias=True)
        yield _linear(f"{at}mlp.linear_fc2", hidden, size, bias=True)
    mergers = ["merger."]
    mergers += [f"deepstack_merger_list.{at}." for at, _ in
                enumerate(keys.numbers("deepstack_visual_indexes"))]  # fmt: skip
    for merger in mergers:
        yield _linear(f"{root}{merger}linear_fc1", merged, merged, bias=True)
        yield _linear(f"{root}{merger}linear_fc2", out, merged, bias=True)


def family_of(model_type: str, path: str) -> Family:
    """Return the architecture of a `model_type`.

    Raises:
        InputError: It is not known; the message lists those that are.
    """
    if model_type not in FAMILIES:
        raise InputError(
            "its Linears are not known from the configuration alone"
            if model_type
            else "model_type is missing",
            path=path,
            expected=f"model_type one of {', '.join(FAMILIES)}",
            found=safe(repr(model_type), 60) if model_type else "no such key",
            hint="name the folder with the weights, or a table of shapes (name,N,K)",
        )
    return FAMILIES[model_type]
