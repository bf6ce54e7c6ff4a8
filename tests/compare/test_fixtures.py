"""Checkpoints by other programs: equal to themselves, and each mutation of one named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qassay.core.container import Container
from qassay.encodings.registry import open_with_encodings
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.safetensors_writer import write_safetensors

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "checkpoints"
READ = [
    "autoround-fp8_block",
    "autoround-w3a16",
    "autoround-w4a16",
    "autoround-w4a16-asym-gptq",
    "autoround-w4a16-awq",
    "gptqmodel-gptq-w4g128-desc",
    "llmcompressor-fp8_block",
    "llmcompressor-mxfp4a16",
    "llmcompressor-nvfp4a16",
    "llmcompressor-w4a16",
    "llmcompressor-w4a16_asym",
    "source-tiny-llama-f16",
]
UP = "model.layers.0.mlp.up_proj"
Q = "model.layers.0.self_attn.q_proj"
Edit = Callable[[np.ndarray], Any]


@pytest.mark.parametrize("name", READ)
def test_a_folder_is_equal_to_itself(name, compare, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(FOLDER / name, copy)
    code, report = compare(FOLDER / name, copy)
    assert (code, report["verdict"]) == (0, "clean")
    assert report["result"]["relation"] == "equal"
    assert report["result"]["metadata"] == {}
    assert report["coverage"]["checked"] == report["coverage"]["tensors"] == 9


@pytest.mark.parametrize("name", ["bnb-nf4", "bnb-nf4-dq", "hqq-b4g64"])
def test_what_is_not_read_is_not_called_equal(name, compare):
    code, report = compare(FOLDER / name, FOLDER / name)
    assert (code, report["verdict"]) == (3, "incomplete")
    assert report["result"]["relation"] == "not-compared"
    skipped = {skip["name"] for skip in report["coverage"]["skipped"]}
    assert f"{Q}.weight" in skipped


@pytest.mark.parametrize("name", ["bnb-nf4", "hqq-b4g64"])
def test_what_is_not_read_against_what_is(name, compare):
    code, report = compare(FOLDER / "llmcompressor-w4a16", FOLDER / name)
    layers = {layer["name"]: layer for layer in report["result"]["layers"]}
    assert layers[f"{Q}.weight"]["relation"] == "not-compared"
    # Parts of what is not read are no tensors of their own; the copies lack what is left here.
    assert not [x for x in report["findings"] if Q in x["tensor"]]
    assert (code, {x["code"] for x in report["findings"]}) == (1, {"Q612"})
    assert {x["data"]["side"] for x in report["findings"]} == {"first"}


def test_two_tools_quantize_differently(compare):
    code, report = compare(FOLDER / "llmcompressor-w4a16", FOLDER / "autoround-w4a16")
    assert (code, report["result"]["relation"]) == (1, "different")
    layers = {layer["name"]: layer for layer in report["result"]["layers"]}
    for module in (UP, Q):
        layer = layers[f"{module}.weight"]
        assert layer["relation"] == "different"
        assert layer["transformations"] == []
        # Both rounded the same source to 4 bits: no weight is far from the other one.
        assert 0 < layer["difference"]["largest_steps"] < 3
        assert layer["difference"]["rows"]["different"] == layer["shape"][0]
    assert layers["model.norm.weight"]["relation"] == "equal"
    assert {finding["code"] for finding in report["findings"]} == {"Q611"}
    assert "config.quantization_config.quant_method" in report["result"]["metadata"]


def test_quantized_against_its_float_source_costs_what_it_should(compare):
    code, report = compare(FOLDER / "source-tiny-llama-f16", FOLDER / "llmcompressor-w4a16")
    assert (code, report["result"]["relation"]) == (0, "quantized")
    norms = [x for x in report["result"]["layers"] if "norm" in x["name"]]
    assert [layer["relation"] for layer in norms] == ["equal"] * 3  # all ones, in either dtype


def test_the_float_side_is_the_reference_wherever_it_stands(compare):
    source, quantized = FOLDER / "source-tiny-llama-f16", FOLDER / "llmcompressor-w4a16"
    ways = [compare(source, quantized)[1], compare(quantized, source)[1]]
    costs = [[x["cost"] for x in each["result"]["layers"] if "cost" in x] for each in ways]
    assert len(costs[0]) == 6
    assert costs[0] == costs[1]


def test_source_and_what_kept_it_in_bf16(compare):
    """Norms of F16 and BF16 are compared by value."""
    _, report = compare(FOLDER / "source-tiny-llama-f16", FOLDER / "llmcompressor-w4a16")
    [norm] = [x for x in report["result"]["layers"] if x["name"] == "model.norm.weight"]
    assert norm["encodings"] == ["f16", "bf16"]


def mutated(
    name: str, folder: Path, edits: dict[str, Edit], config: dict[str, Any] | None = None
) -> Path:
    """Return a copy of a fixture with tensors changed, by name, and keys of the configuration."""
    copy = folder / "mutated"
    shutil.copytree(FOLDER / name, copy)
    container = open_with_encodings(copy)
    tensors = list(_edited(container, edits))
    container.close()
    (copy / "model.safetensors").write_bytes(write_safetensors(tensors))
    for path in copy.glob("*.json") if config else ():
        document = json.loads(path.read_text())
        part = document.get("quantization_config", document)
        if "bits" in part or "config_groups" in part:
            part.update(config or {})
        path.write_text(json.dumps(document))
    return copy


VIEWS = {"I32": "<i4", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F8_E4M3": "u1", "U8": "u1",
         "I64": "<i8"}  # fmt: skip


def _edited(container: Container, edits: dict[str, Edit]) -> Iterator[tuple[Any, ...]]:
    left = set(edits)
    for tensor in container.tensors:
        word = str(tensor.type.label)
        stored = np.array(tensor.raw().view(VIEWS[word])).reshape(tensor.shape)
        if tensor.name in edits:
            left.discard(tensor.name)
            stored = np.ascontiguousarray(edits[tensor.name](stored).astype(stored.dtype))
            assert stored.shape == tensor.shape
        yield tensor.name, word, list(tensor.shape), stored.tobytes()
    assert not left


def swap_nibbles(words: np.ndarray) -> np.ndarray:
    raw = np.ascontiguousarray(words).view(np.uint8)
    return ((raw << 4) | (raw >> 4)).view(words.dtype)


def reordered(order: list[int]) -> Edit:
    """Return an edit that moves the eight nibbles of each word."""

    def edit(words: np.ndarray) -> np.ndarray:
        source = words.view(np.uint32)
        nibbles = [(source >> (4 * i)) & 15 for i in range(8)]
        return sum(nibbles[order[i]] << (4 * i) for i in range(8)).astype(np.uint32).view(np.int32)

    return edit


# In a sound file nibble i holds column AWQ[i]; without the order, column i, which is in nibble
# INVERSE[i] of the sound one.
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]
INVERSE = [AWQ.index(i) for i in range(8)]
without_order = reordered(INVERSE)


def shuffled(index: np.ndarray) -> np.ndarray:
    return np.random.default_rng(0).permutation(index)


def plus_one(words: np.ndarray) -> np.ndarray:
    """Return words with 1 added to every nibble, modulo 16."""
    source = words.view(np.uint32)
    total = np.zeros_like(source)
    for i in range(8):
        total |= ((((source >> (4 * i)) & 15) + 1) & 15) << (4 * i)
    return total.view(np.int32)


def doubled(scales: np.ndarray) -> np.ndarray:
    if scales.dtype == np.uint16:  # BF16: one more in the exponent
        return scales + 0x80
    return scales * 2


def transposed(scales: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(scales.T).reshape(scales.shape)


MUTATIONS: dict[str, tuple[str, dict[str, Edit], dict[str, Any], str, str, set[str]]] = {
    "gptq nibbles": (
        "autoround-w4a16", {f"{UP}.qweight": swap_nibbles}, {},
        "Q606", "nibbles-swapped", {"codes"},
    ),
    "asymmetric gptq nibbles of zeros": (
        "autoround-w4a16-asym-gptq", {f"{UP}.qzeros": swap_nibbles}, {},
        "Q606", "nibbles-swapped", {"zeros"},
    ),
    "compressed nibbles": (
        "llmcompressor-w4a16", {f"{UP}.weight_packed": swap_nibbles}, {},
        "Q606", "nibbles-swapped", {"codes"},
    ),
    "nvfp4 nibbles": (
        "llmcompressor-nvfp4a16", {f"{UP}.weight_packed": swap_nibbles}, {},
        "Q606", "nibbles-swapped", {"codes"},
    ),
    "mxfp4 nibbles": (
        "llmcompressor-mxfp4a16", {f"{UP}.weight_packed": swap_nibbles}, {},
        "Q606", "nibbles-swapped", {"codes"},
    ),
    "awq nibbles": (
        "autoround-w4a16-awq", {f"{UP}.qweight": swap_nibbles}, {},
        "Q606", "nibbles-swapped", {"codes"},
    ),
    "awq order dropped in codes": (
        "autoround-w4a16-awq", {f"{UP}.qweight": without_order}, {},
        "Q606", "awq-order-missing", {"codes"},
    ),
    "awq order dropped in zeros": (
        "autoround-w4a16-awq", {f"{UP}.qzeros": without_order}, {},
        "Q606", "awq-order-missing", {"zeros"},
    ),
    "awq order dropped in both": (
        "autoround-w4a16-awq",
        {f"{UP}.qweight": without_order, f"{UP}.qzeros": without_order}, {},
        "Q606", "awq-order-missing", {"codes", "zeros"},
    ),
    "awq order twice": (
        "autoround-w4a16-awq", {f"{UP}.qweight": reordered(AWQ)}, {},
        "Q606", "awq-order-extra", {"codes"},
    ),
    "gptq scales rolled": (
        "autoround-w4a16-asym-gptq", {f"{UP}.scales": lambda s: np.roll(s, 1, 0)}, {},
        "Q604", "groups-rolled", {"scales"},
    ),
    "awq scales rolled": (
        "autoround-w4a16-awq", {f"{UP}.scales": lambda s: np.roll(s, 1, 0)}, {},
        "Q604", "groups-rolled", {"scales"},
    ),
    "compressed scales rolled": (
        "llmcompressor-w4a16", {f"{UP}.weight_scale": lambda s: np.roll(s, 1, 1)}, {},
        "Q604", "groups-rolled", {"scales"},
    ),
    "nvfp4 scales rolled": (
        "llmcompressor-nvfp4a16", {f"{UP}.weight_scale": lambda s: np.roll(s, 1, 1)}, {},
        "Q604", "groups-rolled", {"scales"},
    ),
    "fp8 block scales transposed": (
        "llmcompressor-fp8_block", {f"{Q}.weight_scale": transposed}, {},
        "Q604", "scales-transposed", {"scales"},
    ),
    "compressed scales transposed": (
        "llmcompressor-w4a16", {f"{UP}.weight_scale": transposed}, {},
        "Q604", "scales-transposed", {"scales"},
    ),
    "gptq scales transposed": (
        "autoround-w4a16-asym-gptq", {f"{UP}.scales": transposed}, {},
        "Q604", "scales-transposed", {"scales"},
    ),
    "g_idx shuffled": (
        "gptqmodel-gptq-w4g128-desc", {f"{UP}.g_idx": shuffled}, {},
        "Q604", "columns-in-other-groups", {"groups"},
    ),
    "zeros shifted": (
        "autoround-w4a16-asym-gptq",
        {f"{UP}.qzeros": plus_one}, {},
        "Q605", "zero-points-shifted", {"zeros"},
    ),
    "global scale inverted": (
        "llmcompressor-nvfp4a16", {f"{UP}.weight_global_scale": lambda s: 1 / s}, {},
        "Q613", "global-scale-inverted", {"whole"},
    ),
    "fp8 scales doubled, as FNUZ needs": (
        "autoround-fp8_block", {f"{UP}.weight_scale_inv": doubled}, {},
        "Q613", "scales-multiplied", {"scales"},
    ),
    "rows exchanged": (
        "llmcompressor-fp8_block",
        {f"{UP}.weight": lambda w: w[np.array([1, 0, *range(2, len(w))])]}, {},
        "Q603", "rows-permuted", set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MUTATIONS)
def test_mutation_is_named(what, compare, tmp_path):
    name, edits, config, code, kind, parts = MUTATIONS[what]
    other = mutated(name, tmp_path, edits, config)
    exit_code, report = compare(FOLDER / name, other)
    result = report["result"]
    assert (exit_code, result["relation"]) == (1, "equal-up-to"), report["findings"]
    [finding] = report["findings"]
    assert (finding["code"], finding["data"]["kind"]) == (code, kind)
    assert (finding["severity"], finding["certainty"]) == ("error", "proven")
    assert set(finding["data"]["parts"]) == parts
    changed = {next(iter(edits)).rpartition(".")[0] + ".weight"}
    assert {x["name"] for x in result["layers"] if x["relation"] != "equal"} == changed


def test_v1_labelled_v2(compare, tmp_path):
    name = "gptqmodel-gptq-w4g128-desc"
    other = mutated(name, tmp_path, {}, {"checkpoint_format": "gptq_v2"})
    code, report = compare(FOLDER / name, other)
    assert (code, report["result"]["relation"]) == (1, "equal-up-to")
    assert {finding["code"] for finding in report["findings"]} == {"Q605"}
    assert {finding["data"]["shift"] for finding in report["findings"]} == {-1}
    assert len(report["findings"]) == 6
    assert any("checkpoint_format" in key for key in report["result"]["metadata"])


def test_tensor_lost(compare, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(FOLDER / "llmcompressor-w4a16", copy)
    container = open_with_encodings(copy)
    kept = [one for one in _edited(container, {}) if not one[0].startswith((UP, "model.norm"))]
    container.close()
    (copy / "model.safetensors").write_bytes(write_safetensors(kept))
    code, report = compare(FOLDER / "llmcompressor-w4a16", copy)
    assert (code, report["result"]["relation"]) == (1, "different")
    assert {(x["code"], x["tensor"]) for x in report["findings"]} == {
        ("Q612", f"{UP}.weight_packed"),
        ("Q612", "model.norm.weight"),
    }
    assert report["coverage"]["tensors"] == 9
    code, report = compare(copy, FOLDER / "llmcompressor-w4a16")
    assert {x["data"]["side"] for x in report["findings"]} == {"second"}


def test_layer_that_lost_a_companion_is_not_compared(compare, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(FOLDER / "llmcompressor-w4a16", copy)
    container = open_with_encodings(copy)
    kept = [one for one in _edited(container, {}) if one[0] != f"{UP}.weight_scale"]
    container.close()
    (copy / "model.safetensors").write_bytes(write_safetensors(kept))
    code, report = compare(FOLDER / "llmcompressor-w4a16", copy)
    assert (code, report["result"]["relation"]) == (3, "not-compared")
    assert [skip["name"] for skip in report["coverage"]["skipped"]] == [f"{UP}.weight"]
    assert (report["coverage"]["tensors"], report["coverage"]["checked"]) == (9, 8)


def test_one_nan_scale_is_found(compare, tmp_path):
    def poke(scales: np.ndarray) -> np.ndarray:
        scales[3, 1] = 0x7FC0
        return scales

    other = mutated("llmcompressor-w4a16", tmp_path, {f"{UP}.weight_scale": poke})
    code, report = compare(FOLDER / "llmcompressor-w4a16", other)
    [finding] = report["findings"]
    assert (code, finding["code"], finding["location"]["row"]) == (1, "Q611", 3)
    assert finding["location"]["column"] == 128
    assert compare(other, other)[0] == 0


GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def unpaired(packed: np.ndarray) -> np.ndarray:
    """Return codes `[N, K]`: element 2i in the low half of byte i."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


def blocks_of(codes: np.ndarray, scales: np.ndarray, run: int, per_block: int) -> bytes:
    """Return ggml blocks: scales first, then for each run the halves of it."""
    cut = codes.reshape(-1, run)
    halves = (cut[:, : run // 2] | (cut[:, run // 2 :] << 4)).reshape(-1, per_block * run // 2)
    return np.concatenate([scales.reshape(-1, per_block), halves], axis=1).tobytes()


@pytest.mark.parametrize(
    ("name", "number", "run", "per_block"),
    [("llmcompressor-mxfp4a16", 39, 32, 1), ("llmcompressor-nvfp4a16", 40, 16, 4)],
)
def test_repack_of_a_real_checkpoint_to_gguf_is_equal(
    name, number, run, per_block, compare, tmp_path
):
    container = open_with_encodings(FOLDER / name)
    stored = {one.name: one for one in container.tensors}
    prefix = "model.layers.0."
    tensors: list[Any] = []
    for module, short in GGUF_NAMES.items():
        packed = stored[f"{prefix}{module}.weight_packed"]
        codes = unpaired(np.array(packed.raw()).reshape(packed.shape))
        scales = np.array(stored[f"{prefix}{module}.weight_scale"].raw())
        data = blocks_of(codes, scales, run, per_block)
        tensors.append((f"blk.0.{short}.weight", number, list(codes.shape[::-1]), data))
        divisor = stored.get(f"{prefix}{module}.weight_global_scale")
        if divisor is not None:
            scale = np.float32(1) / np.array(divisor.raw()).view(np.float32)
            tensors.append((f"blk.0.{short}.scale", 0, [1], scale.tobytes()))
    for norm, short in (
        (f"{prefix}input_layernorm", "blk.0.attn_norm"),
        (f"{prefix}post_attention_layernorm", "blk.0.ffn_norm"),
        ("model.norm", "output_norm"),
    ):
        raw = np.array(stored[f"{norm}.weight"].raw()).view(np.uint16).astype(np.uint32)
        tensors.append((f"{short}.weight", 0, [raw.size], (raw << 16).tobytes()))
    container.close()
    path = tmp_path / "m.gguf"
    path.write_bytes(write_gguf({"general.architecture": "llama"}, tensors))
    code, report = compare(FOLDER / name, path)
    assert (code, report["result"]["relation"]) == (0, "equal"), report["findings"]
    assert report["coverage"]["checked"] == report["coverage"]["tensors"] == 9
    assert compare(path, FOLDER / name)[1]["result"]["relation"] == "equal"
