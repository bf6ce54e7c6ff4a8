"""The text report, whole, as people see it."""

from __future__ import annotations

from qassay.testing.gguf_writer import write_gguf

SOUND = """\
sound.gguf  GGUF, version 3, 2 tensors, 13.20 bits/weight, 768 B

Scales
  encoding   scale  blocks    min |x|   max |x|  zero  subnormal  non-finite  negative  dead blocks
  ggml.q8_0  d           8  0.0078125  0.014648     0          0           0         0            0

Float values
  encoding  values  min |x|  max |x|  zero  subnormal  NaN  infinite  dead rows
  f32           64  0.03125  0.96875     0          0    0         0          0

checked 2 of 2 tensors, 528 B
clean: no errors, no warnings
"""

BROKEN = """\
broken.gguf  GGUF, version 3, 2 tensors, 13.20 bits/weight, 768 B

error Q201 scale-not-finite  blk.0.ffn_up.weight
  3 of 8 blocks have a scale d that is NaN or infinite (the first is NaN); expected a finite number
  at row 1, column 32, block 3, field d, byte 326 (0x146): NaN
  and 2 more: blocks 5, 6
  Fix: quantize this tensor again from a finite source; do not use the file

error Q401 value-not-finite  blk.0.attn_norm.weight
  1 of 64 values is not finite (0 NaN, 1 infinite); expected finite numbers
  at row 0, column 7, byte 540 (0x21c): inf
  Fix: take this tensor from a sound checkpoint; do not quantize or use it

Scales
  encoding   scale  blocks    min |x|   max |x|  zero  subnormal  non-finite  negative  dead blocks
  ggml.q8_0  d           8  0.0078125  0.014648     0          0           3         0            0

Float values
  encoding  values  min |x|  max |x|  zero  subnormal  NaN  infinite  dead rows
  f32           64  0.03125  0.96875     0          0    0         1          0

checked 2 of 2 tensors, 528 B
findings: 2 errors
"""

PARTLY = """\
partly.gguf  GGUF, version 3, 2 tensors, 5.39 bits/weight, 416 B

Float values
  encoding  values  min |x|  max |x|  zero  subnormal  NaN  infinite  dead rows
  f32           32  0.03125  0.96875     0          0    0         0          0

checked 1 of 2 tensors, 128 B
not checked: unknown: encoding IQ2_XXS is not read by this version
incomplete: not all was checked, and what was has no errors and no warnings
"""


def test_sound(run, sound):
    assert run("check", sound).stdout == SOUND


def test_broken(run, broken):
    assert run("check", broken).stdout == BROKEN


CODES = """\
Codes
  encoding   weights counted  codes used  lowest  share  highest  share
  ggml.q8_0              256  227 of 256    -127  0.39%      111  0.39%

Float values
"""


def test_full_stats_show_a_table_of_codes(run, broken):
    assert CODES in run("check", broken, "--stats", "full").stdout
    assert "Codes" not in run("check", broken, "--stats", "full", "-q").stdout


def test_one_is_not_plural(run, tmp_path):
    path = tmp_path / "m.gguf"
    blocks = [("d", 8, (32,), b"\x00\x7c" + bytes(32)), ("x", 0, (1,), b"\x00\x00\x80\x7f")]
    path.write_bytes(write_gguf({}, blocks))
    text = run("check", path).stdout
    assert "1 of 1 block has a scale d that is NaN or infinite (the first is inf); expected" in text
    assert "1 of 1 value is not finite (0 NaN, 1 infinite)" in text
    assert "Infinity" not in text


def test_partly(run, partly):
    assert run("check", partly).stdout == PARTLY


def test_two_inputs_keep_their_order_and_say_which_file(run, sound, broken):
    text = run("check", broken, sound, "-q").stdout
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["broken.gguf", "sound.gguf"]
    assert "error Q201 scale-not-finite  broken.gguf: blk.0.ffn_up.weight" in lines
    assert lines[-1] == "findings: 2 errors"


def test_nothing_could_be_read(run, tmp_path):
    path = tmp_path / "page.gguf"
    path.write_text("<!DOCTYPE html><html>")
    lines = run("check", path).stdout.splitlines()
    assert lines[0] == "page.gguf  not read"
    assert lines[-2].startswith("not checked: page.gguf: ")
    assert "HTML" in lines[-2]
    assert lines[-1] == "incomplete: nothing could be checked"
