"""The audit of weights that are kept in several tensors: sound folders, and planted faults."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qassay
from qassay.encodings.layers import Layer, assemble
from qassay.encodings.registry import open_with_encodings
from qassay.kernels.layer_codes import read_slab
from qassay.kernels.layer_geometry import LayerGeometry
from qassay.kernels.layer_index import index_of
from qassay.kernels.layer_moments import moments
from qassay.kernels.select import REFERENCE
from qassay.testing.safetensors_writer import write_safetensors

CHECKPOINTS = Path(__file__).resolve().parent.parent / "fixtures" / "checkpoints"
UNREAD = ("bnb-nf4", "bnb-nf4-dq", "hqq-b4g64")
SOUND = sorted(
    path.name
    for path in CHECKPOINTS.iterdir()
    if path.name not in UNREAD and path.name != "source-tiny-llama-f16"
)
DOWN = "model.layers.0.mlp.down_proj"


def layers_of(folder: Path) -> dict[str, Layer]:
    return {layer.module: layer for layer in assemble(open_with_encodings(folder)).layers}


@pytest.fixture
def copy(tmp_path: Path) -> Any:
    """Return a function that copies a checkpoint, so that its bytes can be changed."""

    def make(name: str) -> Path:
        return Path(shutil.copytree(CHECKPOINTS / name, tmp_path / name))

    return make


def poke(folder: Path, module: str, part: str, index: int, raw: bytes) -> tuple[str, int]:
    """Overwrite element `index` of a part; return tensor name and byte offset."""
    stored = layers_of(folder)[module].parts[part]
    at = stored.offset + index * len(raw)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(at)
        file.write(raw)
    return stored.name, at


def told(folder: Path, code: str, **options: Any) -> list[Any]:
    return [found for found in qassay.check(folder, **options).findings if found.code == code]


@pytest.mark.parametrize("name", SOUND)
def test_sound_checkpoints_are_clean(name: str, kernel_set: str) -> None:
    report = qassay.check(CHECKPOINTS / name)
    assert report.verdict == "clean", [(f.code, f.message) for f in report.findings]
    assert report.coverage.checked == report.coverage.tensors
    modules = {
        entry["layer"]["module"] for entry in report.to_dict()["tensors"] if "layer" in entry
    }
    assert len(modules) == 6


@pytest.mark.parametrize("name", UNREAD)
def test_families_that_are_not_read_are_not_checked(name: str) -> None:
    report = qassay.check(CHECKPOINTS / name)
    assert report.verdict == "incomplete"
    assert report.coverage.checked < report.coverage.tensors
    assert not any("layer" in entry for entry in report.to_dict()["tensors"])


@pytest.mark.parametrize("name", SOUND)
def test_layouts_agree_with_unpacking(name: str) -> None:
    """Segments are flagged alike by layout and by the family's own unpacking."""
    for layer in layers_of(CHECKPOINTS / name).values():
        index = index_of(layer)
        geometry = LayerGeometry(layer, index.first)
        layout = layer.encoding.layout(layer)
        if layout is None:
            continue
        by_group = layout.form.value in ("columns", "lanes")
        whole = layer.groups if by_group else layer.total_rows
        fast = read_slab(geometry, layout, index, 0, whole, REFERENCE)
        plain = read_slab(geometry, None, index, 0, layer.total_rows, REFERENCE)
        assert np.array_equal(fast.count(REFERENCE), plain.count(REFERENCE))
        at = np.arange(fast.flags.size)
        rows, groups = fast.units(at)
        assert plain.canonical is not None
        first = plain.canonical.codes[rows, index.first_of(groups)].astype(np.uint8)
        assert np.array_equal(fast.first_codes(at), first)


SCALES = [
    ("autoround-w4a16-asym-gptq", "scales", "<f2", True),
    ("gptqmodel-gptq-w4g128-desc", "scales", "<f2", True),
    ("autoround-w3a16", "scales", "<f2", True),
    ("autoround-w4a16-awq", "scales", "<f2", True),
    ("llmcompressor-w4a16", "weight_scale", "bf16", False),
    ("llmcompressor-w4a16_asym", "weight_scale", "bf16", False),
]
BITS = {
    "<f2": {"nan": 0x7E00, "inf": 0x7C00, "zero": 0, "negative": 0xA000},
    "bf16": {"nan": 0x7FC0, "inf": 0x7F80, "zero": 0, "negative": 0xBC00},
}
CODE = {"nan": "Q201", "inf": "Q201", "zero": "Q202", "negative": "Q205"}


@pytest.mark.parametrize("fault", sorted(CODE))
@pytest.mark.parametrize(("name", "part", "kind", "by_group"), SCALES, ids=[s[0] for s in SCALES])
def test_a_planted_scale(
    copy: Any, name: str, part: str, kind: str, by_group: bool, fault: str
) -> None:
    folder = copy(name)
    layer = layers_of(folder)[DOWN]
    row, group = 41, 2
    index = group * layer.rows + row if by_group else row * layer.groups + group
    if kind == "<f2" and str(layer.parts[part].type.label) == "BF16":
        kind = "bf16"
    _, at = poke(folder, DOWN, part, index, BITS[kind][fault].to_bytes(2, "little"))
    if fault == "negative" and name == "autoround-w3a16":
        # Half of its scales are negative: signs are its quantizer's choice.
        assert not told(folder, "Q205")
        return
    [finding] = told(folder, CODE[fault])
    assert (finding.tensor, finding.field, finding.count) == (layer.codes.name, part, 1)
    place = finding.locations[0]
    column = int(np.flatnonzero(layer.encoding.unpack(layer).groups == group)[0])
    assert (place.row, place.block, place.byte_offset) == (row, group, at)
    assert place.column == column
    assert finding.data["layer"] == DOWN
    assert finding.path.endswith("model.safetensors")


@pytest.mark.parametrize(
    ("name", "part", "byte", "code"),
    [
        ("llmcompressor-nvfp4a16", "weight_scale", 0x7F, "Q201"),
        ("llmcompressor-nvfp4a16", "weight_scale", 0xFF, "Q201"),
        ("llmcompressor-nvfp4a16", "weight_scale", 0x80 | 0x40, "Q205"),
        ("llmcompressor-nvfp4a16", "weight_scale", 0, "Q202"),
        ("llmcompressor-mxfp4a16", "weight_scale", 255, "Q201"),
    ],
)
def test_a_planted_scale_of_one_byte(
    copy: Any, name: str, part: str, byte: int, code: str, kernel_set: str
) -> None:
    folder = copy(name)
    layer = layers_of(folder)[DOWN]
    row, group = 100, 7
    _, at = poke(folder, DOWN, part, row * layer.groups + group, bytes([byte]))
    [finding] = told(folder, code)
    place = finding.locations[0]
    assert (finding.tensor, finding.field) == (layer.codes.name, part)
    assert (place.row, place.column, place.byte_offset) == (row, group * layer.group, at)


@pytest.mark.parametrize(("value", "code"), [(np.nan, "Q201"), (0.0, "Q202"), (-1.0, "Q205")])
def test_a_scale_of_the_whole_weight(copy: Any, value: float, code: str) -> None:
    folder = copy("llmcompressor-nvfp4a16")
    _, at = poke(folder, DOWN, "weight_global_scale", 0, np.float32(value).tobytes())
    [finding] = told(folder, code)
    assert (finding.severity.label, finding.field) == ("error", "weight_global_scale")
    assert finding.locations[0].byte_offset == at


@pytest.mark.parametrize("name", ["autoround-fp8_block", "llmcompressor-fp8_block"])
def test_codes_that_are_nan(copy: Any, name: str, kernel_set: str) -> None:
    folder = copy(name)
    layer = layers_of(folder)[DOWN]
    _, at = poke(folder, DOWN, "weight", 130 * layer.columns + 300, b"\xff")
    [finding] = told(folder, "Q303")
    assert (finding.tensor, finding.count, finding.severity.label) == (f"{DOWN}.weight", 1, "error")
    place = finding.locations[0]
    assert (place.row, place.column, place.byte_offset, place.value) == (130, 300, at, 0xFF)


def test_a_block_scale_of_nan_and_of_zero(copy: Any) -> None:
    folder = copy("llmcompressor-fp8_block")
    layer = layers_of(folder)[DOWN]
    part = layer.parts["weight_scale"]
    size = part.type.block_bytes
    poke(folder, DOWN, "weight_scale", layer.groups + 2, b"\xff" * size)
    poke(folder, DOWN, "weight_scale", 1, bytes(size))
    [nan], [zero] = told(folder, "Q201"), told(folder, "Q202")
    assert (nan.locations[0].row, nan.locations[0].column) == (128, 256)
    assert (zero.locations[0].row, zero.locations[0].column) == (0, 128)


@pytest.mark.parametrize("value", [-1, 4, 1 << 30])
def test_an_index_that_names_no_group(copy: Any, value: int) -> None:
    folder = copy("gptqmodel-gptq-w4g128-desc")
    layer = layers_of(folder)[DOWN]
    _, at = poke(folder, DOWN, "g_idx", 300, np.int32(value).tobytes())
    [finding] = told(folder, "Q304")
    place = finding.locations[0]
    assert (finding.tensor, finding.field, finding.count) == (layer.codes.name, "g_idx", 1)
    assert (place.column, place.byte_offset, place.value) == (300, at, value)


def test_scales_of_groups_without_columns_do_not_count(tmp_path: Path, kernel_set: str) -> None:
    codes = np.random.default_rng(2).integers(0, 256, (8, 16, 4), dtype=np.uint8)
    scales = np.zeros((2, 16), np.float16)
    scales[1] = 1
    scales[1, 3] = 0
    data = write_safetensors(
        [("a.qweight", "I32", [8, 16], codes.tobytes()),
         ("a.qzeros", "I32", [2, 2], codes[0, :4].tobytes()),
         ("a.scales", "F16", [2, 16], scales.tobytes()),
         ("a.g_idx", "I32", [64], np.ones(64, np.int32).tobytes())]
    )  # fmt: skip
    (tmp_path / "a.safetensors").write_bytes(data)
    [zero] = told(tmp_path, "Q202")
    assert (zero.count, zero.locations[0].row, zero.locations[0].block) == (1, 3, 1)
    [dead] = told(tmp_path, "Q402")
    assert (dead.count, dead.locations[0].row) == (1, 3)


@pytest.mark.parametrize(
    "name", ["autoround-w4a16-awq", "autoround-w4a16-asym-gptq", "llmcompressor-w4a16_asym",
             "gptqmodel-gptq-w4g128-desc", "llmcompressor-nvfp4a16", "autoround-w3a16"]
)  # fmt: skip
def test_a_dead_group(copy: Any, name: str, kernel_set: str) -> None:
    """A group whose codes all equal its zero point, written by the family's own `pack`."""
    folder = copy(name)
    layer = layers_of(folder)[DOWN]
    canonical = layer.encoding.unpack(layer)
    row, group = 19, 1
    blank = 0 if canonical.zeros is None else canonical.zeros[row, group]
    canonical = type(canonical)(
        canonical.codes.copy(), canonical.scales, canonical.groups, canonical.zeros
    )
    canonical.codes[row, canonical.groups == group] = blank
    codes = layer.encoding.codes_part(layer.parts)
    packed = layer.encoding.pack(layer, canonical)[codes]
    poke(folder, DOWN, codes, 0, packed.tobytes())
    [finding] = told(folder, "Q301")
    place = finding.locations[0]
    assert (finding.count, place.row, place.block) == (1, row, group)
    assert not told(folder, "Q202")
    # A row of them is a dead row.
    canonical.codes[row] = 0 if canonical.zeros is None else canonical.zeros[row][canonical.groups]
    poke(folder, DOWN, codes, 0, layer.encoding.pack(layer, canonical)[codes].tobytes())
    [dead] = told(folder, "Q402")
    assert (dead.count, dead.locations[0].row) == (1, row)


def test_a_scale_in_another_shard(tmp_path: Path) -> None:
    codes = np.random.default_rng(1).integers(0, 256, (64, 32), dtype=np.uint8)
    scales = np.full((64, 4), 0x38, np.uint8)
    scales[5, 3] = 0x7F
    one = write_safetensors(
        [("a.weight_packed", "U8", [64, 32], codes.tobytes()),
         ("a.weight_global_scale", "F32", [1], np.float32(2).tobytes())]
    )  # fmt: skip
    two = write_safetensors([("a.weight_scale", "F8_E4M3", [64, 4], scales.tobytes())])
    names = [f"model-0000{at}-of-00002.safetensors" for at in (1, 2)]
    for name, data in zip(names, (one, two), strict=True):
        (tmp_path / name).write_bytes(data)
    weight_map = dict.fromkeys(("a.weight_packed", "a.weight_global_scale"), names[0])
    index = {"metadata": {}, "weight_map": {**weight_map, "a.weight_scale": names[1]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    [finding] = told(tmp_path, "Q201")
    assert finding.tensor == "a.weight_packed"
    assert finding.path.endswith(names[1])
    place = finding.locations[0]
    assert (place.row, place.column) == (5, 48)
    assert place.byte_offset == len(two) - scales.size + 5 * 4 + 3


def scrambled(folder: Path) -> None:
    """Put runs of awkward bytes everywhere, so that offences of every kind occur everywhere."""
    rng = np.random.default_rng(3)
    for layer in layers_of(folder).values():
        for name, part in layer.parts.items():
            if name in ("weight_shape", "g_idx"):
                continue
            raw = np.array(part.raw())
            for begin in range(0, raw.size, 64):
                if rng.random() < 0.4:
                    raw[begin : begin + 64] = rng.choice(
                        np.array([0, 0xFF, 0x88, 0x77, 0x7F, 0x80, 0x7E], np.uint8)
                    )
            with (folder / "model.safetensors").open("r+b") as file:
                file.seek(part.offset)
                file.write(raw.tobytes())


@pytest.mark.parametrize("stats", ["default", "full"])
@pytest.mark.parametrize("name", SOUND)
def test_jobs_chunks_and_kernels_do_not_show(
    copy: Any, name: str, stats: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy(name)
    scrambled(folder)
    seen = set()
    for kernels in ("reference", "fast"):
        monkeypatch.setenv("QASSAY_KERNELS", kernels)
        for jobs, size in ((1, 1 << 24), (2, 20_000), (3, 300)):
            report = qassay.check(folder, jobs=jobs, chunk_bytes=size, stats=stats)
            seen.add(json.dumps(report.to_dict()))
    assert len(seen) == 1
    assert len(json.loads(seen.pop())["findings"]) > 6


def test_the_order_of_lanes_shows_in_the_correlation() -> None:
    for layer in layers_of(CHECKPOINTS / "autoround-w4a16-awq").values():
        found = moments(layer, layer.encoding.layout(layer), index_of(layer), REFERENCE, 1 << 30)
        assert found is not None
        told, counts = found
        assert told.complete
        assert counts.sum() == layer.weights
        assert told.zeros is not None
        assert told.zeros_complete
        assert told.zeros.total == layer.rows * layer.groups
        canonical = layer.encoding.unpack(layer)
        means = canonical.codes.reshape(layer.rows, layer.groups, layer.group).mean(axis=2)
        assert canonical.zeros is not None
        wanted = np.corrcoef(canonical.zeros.ravel(), means.ravel())[0, 1]
        assert told.correlation["as_read"] == pytest.approx(wanted)
        assert told.correlation["as_read"] > 0.5
        assert abs(told.correlation["codes_reordered"]) < 0.5
        assert abs(told.correlation["zeros_reordered"]) < 0.5
        assert told.bias == pytest.approx(float((means - canonical.zeros).mean()))
