"""The ggml type table against tables that other people keep."""

from __future__ import annotations

import pytest

from qassay.containers.ggml_types import GGML_TYPES, ggml_type
from qassay.containers.safetensors_types import safetensors_type

gguf = pytest.importorskip("gguf")


def test_every_number_up_to_42_is_there() -> None:
    assert list(GGML_TYPES) == list(range(43))
    assert len({known.name for known in GGML_TYPES.values()}) == 43


def test_sizes_equal_those_of_gguf_py() -> None:
    from gguf.constants import GGML_QUANT_SIZES

    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    # gguf-py says 40; block_q8_1 has been 36 bytes since its sum became an f16.
    assert theirs.pop(9) == ("Q8_1", 32, 40)
    ours = {n: (GGML_TYPES[n].name, GGML_TYPES[n].block, GGML_TYPES[n].block_bytes) for n in theirs}
    assert ours == theirs
    assert (GGML_TYPES[9].block, GGML_TYPES[9].block_bytes) == (32, 36)


def test_sizes_equal_those_of_libgguf() -> None:
    libgguf = pytest.importorskip("libgguf")
    compared = 0
    for number, known in GGML_TYPES.items():
        try:
            theirs = libgguf.type_size(number)
        except ValueError:
            continue
        if theirs:  # it knows the names of retired types, not their sizes
            compared += 1
            assert known.block_bytes == theirs, known
    assert compared >= 20


@pytest.mark.parametrize("number", [4, 5, 31, 32, 33, 36, 37, 38])
def test_retired_types_say_requantize(number: int) -> None:
    known = ggml_type(number)
    assert known.note == f"retired type {number} ({known.name}): requantize from the source"


@pytest.mark.parametrize("number", [9, 15])
def test_activation_types_say_so(number: int) -> None:
    assert "activations" in ggml_type(number).note


def test_all_other_types_have_a_size_and_no_note() -> None:
    for number in set(range(43)) - {4, 5, 9, 15, 31, 32, 33, 36, 37, 38}:
        known = ggml_type(number)
        assert known.family == "ggml"
        assert known.label == number
        assert known.block > 0
        assert known.block_bytes > 0
        assert not known.note


@pytest.mark.parametrize("number", [43, 99, 2**32 - 1])
def test_an_unknown_number_has_no_size(number: int) -> None:
    known = ggml_type(number)
    assert (known.name, known.block, known.block_bytes) == (f"type {number}", 0, 0)
    assert str(number) in known.note


def test_safetensors_types_of_whole_bytes_and_of_less() -> None:
    sizes = {"BOOL": 1, "BF16": 2, "U16": 2, "F32": 4, "C64": 8, "U64": 8, "F8_E8M0": 1}
    for word, size in sizes.items():
        assert (safetensors_type(word).block, safetensors_type(word).block_bytes) == (1, size)
    assert (safetensors_type("F4").block, safetensors_type("F4").block_bytes) == (2, 1)
    assert (safetensors_type("F6_E2M3").block, safetensors_type("F6_E3M2").block_bytes) == (4, 3)
    assert safetensors_type("F7").block == 0
    assert "\n" not in safetensors_type("F\n7").name
