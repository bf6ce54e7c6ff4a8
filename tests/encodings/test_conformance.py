"""One suite over every registered encoding: what a declaration promises, it keeps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest

from qassay.containers.ggml_types import ggml_type
from qassay.core.errors import DeclarationError
from qassay.encodings import BlockEncoding, Encoding, PlainEncoding, all_encodings, by_id
from qassay.encodings.base import Blocks, Codes, Ggml
from qassay.encodings.fields import Health, f16, uints
from qassay.encodings.layers import LayerEncoding
from qassay.encodings.layers.base import Part, Role
from qassay.testing.safetensors_writer import write_safetensors

EVERY = list(all_encodings().values())
BLOCK = [e for e in EVERY if issubclass(e, BlockEncoding)]
PLAIN = [e for e in EVERY if issubclass(e, PlainEncoding)]
LAYERS = [e for e in EVERY if issubclass(e, LayerEncoding)]


def name(encoding: type[Encoding]) -> str:
    return encoding.id


def random_blocks(encoding: type[BlockEncoding], n: int = 64) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, (n, encoding.block_bytes), dtype=np.uint8)


@pytest.mark.parametrize("encoding", EVERY, ids=name)
def test_sizes_agree_with_the_container_table_and_gguf(encoding: type[Encoding]) -> None:
    for label in encoding.stored_as:
        if isinstance(label, Ggml):
            ours = ggml_type(label.number)
            assert (ours.block, ours.block_bytes) == (encoding.block, encoding.block_bytes)
            if label.number not in {kind.value for kind in gguf.GGMLQuantizationType}:
                continue
            kind = gguf.GGMLQuantizationType(label.number)
            assert gguf.GGML_QUANT_SIZES[kind] == (encoding.block, encoding.block_bytes)


@pytest.mark.parametrize("encoding", BLOCK, ids=name)
def test_fields_cover_the_block_without_gaps(encoding: type[BlockEncoding]) -> None:
    end = 0
    for field in encoding.fields:
        assert field.offset == end
        end += field.nbytes
    assert end == encoding.block_bytes


@pytest.mark.parametrize("encoding", BLOCK, ids=name)
def test_packing_what_was_unpacked_gives_the_same_bytes(encoding: type[BlockEncoding]) -> None:
    blocks = random_blocks(encoding)
    again = np.zeros_like(blocks)
    for field in encoding.scale_fields.values():
        cut = slice(field.offset, field.offset + field.nbytes)
        again[:, cut] = blocks[:, cut]
    for run in encoding.runs.values():
        run.pack(run.unpack(blocks), again)
    assert np.array_equal(again, blocks)


@pytest.mark.parametrize("encoding", BLOCK, ids=name)
def test_every_bit_of_a_run_belongs_to_one_integer(encoding: type[BlockEncoding]) -> None:
    taken = np.zeros((encoding.block_bytes, 8), int)
    for run in encoding.runs.values():
        for plane in run.planes:
            for byte, shift, mask in zip(plane.byte, plane.shift, plane.mask, strict=True):
                for bit in range(8):
                    taken[byte, bit] += int(mask) << int(shift) >> bit & 1
    for field in encoding.bits_fields.values():
        assert (taken[field.offset : field.offset + field.nbytes] == 1).all(), field.name


@pytest.mark.parametrize("encoding", BLOCK, ids=name)
def test_codes_stay_in_their_range(encoding: type[BlockEncoding]) -> None:
    bits = encoding.code_bits()
    low, high = encoding.codes.range(bits)
    codes = bits.unpack(random_blocks(encoding, 4096))
    assert (codes.min(), codes.max()) == (low, high)
    assert encoding.codes.values(bits).size == high - low + 1
    assert set(encoding.codes.extremes(bits)) <= set(range(low, high + 1))


@pytest.mark.parametrize("encoding", BLOCK, ids=name)
def test_zero_codes_and_zero_scales_decode_to_zero(encoding: type[BlockEncoding]) -> None:
    blocks = random_blocks(encoding, 16)
    for field in encoding.scale_fields.values():
        zeros = np.flatnonzero(field.health & int(Health.ZERO))
        if zeros.size == 0:
            return  # a power of two is never zero
        blocks[:, field.offset : field.offset + field.nbytes] = 0
    assert not encoding.dequantize(blocks.reshape(-1)).any()


@pytest.mark.parametrize("encoding", EVERY, ids=name)
def test_documentation_is_there(encoding: type[Encoding]) -> None:
    assert encoding.title().endswith(".")
    assert encoding.sources
    assert all(encoding.sources)
    assert by_id(encoding.id) is encoding


@pytest.mark.parametrize("encoding", BLOCK + PLAIN, ids=name)
def test_the_last_part_of_a_name_is_enough_for_what_one_tensor_holds(
    encoding: type[Encoding],
) -> None:
    assert by_id(encoding.id.rpartition(".")[2].upper()) is encoding


@pytest.mark.parametrize("encoding", LAYERS, ids=name)
def test_families_of_layers_take_their_whole_name(encoding: type[LayerEncoding]) -> None:
    assert encoding.kind == "layer"
    bare = encoding.id.rpartition(".")[2]
    if bare != encoding.id:
        with pytest.raises(KeyError):
            by_id(bare)


def test_names_of_blocks_mean_what_they_meant() -> None:
    assert by_id("mxfp4").id == "ggml.mxfp4"


def test_opening_a_file_loads_no_family_of_layers(tmp_path: Path) -> None:
    file = tmp_path / "one.safetensors"
    file.write_bytes(write_safetensors([("a.bias", "F32", [2], bytes(8))]))
    code = (
        "import sys\n"
        "from qassay.encodings.registry import open_with_encodings\n"
        f"open_with_encodings({str(file)!r}).close()\n"
        "print([name for name in sys.modules if name.startswith('qassay.encodings.layers.')])\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


THEIRS = {
    "bf16": ml_dtypes.bfloat16,
    "f8_e4m3": ml_dtypes.float8_e4m3fn,
    "f8_e5m2": ml_dtypes.float8_e5m2,
    "f16": np.float16,
}


@pytest.mark.parametrize("encoding", THEIRS)
def test_narrow_floats_equal_ml_dtypes_for_every_pattern(encoding: str) -> None:
    ours = by_id(encoding)
    patterns = np.arange(1 << (8 * ours.block_bytes)).astype(f"<u{ours.block_bytes}")
    values = ours.dequantize(patterns.view(np.uint8))
    with np.errstate(invalid="ignore"):
        expected = patterns.view(THEIRS[encoding]).astype(np.float32)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(values), nan)
    assert np.array_equal(values[~nan].view(np.uint32), expected[~nan].view(np.uint32))


@pytest.mark.parametrize("encoding", [e for e in PLAIN if e.kind == "float"], ids=name)
def test_normal_and_finite_limits_are_where_the_values_say(encoding: type[PlainEncoding]) -> None:
    last, first = encoding.numbers([encoding.first_nonfinite - 1, encoding.first_nonfinite])
    assert np.isfinite(last)
    assert not np.isfinite(first)
    below, least = encoding.numbers([encoding.least_normal - 1, encoding.least_normal])
    one = encoding.numbers([1])[0]
    assert np.isclose(least - below, one)  # subnormals have even steps up to the first normal
    assert encoding.numbers(encoding.pattern_up_to(1.0))[0] == 1.0


@pytest.mark.parametrize("encoding", PLAIN, ids=name)
def test_plain_values_come_out_as_numpy_reads_them(encoding: type[PlainEncoding]) -> None:
    raw = np.random.default_rng(3).integers(0, 256, 64 * encoding.block_bytes, dtype=np.uint8)
    values = encoding.dequantize(raw)
    assert values.dtype == np.float32
    assert values.shape == (64,)
    if encoding.id not in THEIRS:
        with np.errstate(over="ignore", invalid="ignore"):
            assert np.array_equal(
                values, raw.view(encoding.dtype).astype(np.float32), equal_nan=True
            )


def test_an_incomplete_declaration_is_refused_by_name() -> None:
    with pytest.raises(DeclarationError, match="no stored_as, no sources"):

        class _Half(BlockEncoding, id="test.half"):
            """Something."""

            block = 32
            fields = (f16("d"), uints("qs", 32, 4, run=16))
            codes = Codes("qs")
            formula = "d * q"

            @staticmethod
            def decode(b: Blocks) -> np.ndarray:
                return b.d * b.q

    assert "test.half" not in all_encodings()


def test_a_label_that_is_taken_is_refused_and_names_both_modules() -> None:
    with pytest.raises(DeclarationError, match=r"ggml_legacy.*test_conformance"):

        class _Again(BlockEncoding, id="test.again"):
            """Something."""

            block = 32
            fields = (f16("d"), uints("qs", 32, 4, run=16))
            codes = Codes("qs")
            stored_as = (Ggml(2),)
            sources = ("none",)
            formula = "d * q"

            @staticmethod
            def decode(b: Blocks) -> np.ndarray:
                return b.d * b.q


def test_a_part_in_the_place_of_none_is_refused() -> None:
    for other in ("scales", "nothing"):
        with pytest.raises(DeclarationError, match="required part's place"):

            class _Astray(LayerEncoding, id="test.astray"):
                """Something."""

                parts = (
                    Part("codes", Role.CODES, ("U8",)),
                    Part("scales", Role.SCALE, ("F32",), required=False),
                    Part("scale", Role.SCALE, ("F32",), required=False, instead_of=other),
                )
                sources = ("none",)
                formula = "codes * scales"


def test_a_run_that_no_field_holds_is_refused() -> None:
    with pytest.raises(DeclarationError, match="runs that none of its fields holds"):

        class _Astray(BlockEncoding, id="test.astray"):
            """Something."""

            block = 32
            fields = (f16("d"), uints("qs", 32, 4, run=16))
            codes = Codes("quants")
            stored_as = (Ggml(9000),)
            sources = ("none",)
            formula = "d * q"

            @staticmethod
            def decode(b: Blocks) -> np.ndarray:
                return b.d * b.q


def test_an_altered_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    from qassay.encodings import tables

    tables.table.cache_clear()
    real = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda data: real(data + b" "))
    with pytest.raises(DeclarationError, match="was altered"):
        tables.table("iq4_nl")
    monkeypatch.undo()
    tables.table.cache_clear()
    assert tables.table("iq4_nl").size == 16
