"""Models whose pages are looked at, some with names that want to be more than text."""

from __future__ import annotations

import numpy as np

from qassay.testing.gguf_writer import write_gguf

MODULES = {"attn_q": (64, 64), "attn_k": (32, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
HOSTILE = (
    "blk.1.</script><script>document.title='owned'</script>",
    "blk.1.<img src=x onerror=document.title='owned'>",
    "blk.1.\u2028\u2029\u202e]]><!--",
    "blk.1.{{ 7 * 7 }}{% raw %}",
    "blk.1.\"'onmouseover=document.title='owned' x=",
    "blk.1.&lt;b&gt;\\u003c",
    "blk.1.\u5c64\U0001f600",
    "<script>alert(1)</script>",
    "blk.1.__proto__",
    "__proto__",
    "constructor",
    "</style><style>*{display:none}",
    "\u200f\u05d0\u05d1.weight",
    "blk.0." + "A" * 10_000,
)


def blocks(values):
    """Return values as blocks of Q8_0, and what they decode to."""
    rows = values.reshape(-1, 32)
    scales = (np.abs(rows).max(axis=1) / 127).astype(np.float16)
    codes = np.rint(rows / np.maximum(scales.astype(np.float64), 1e-12)[:, None])
    made = np.zeros((rows.shape[0], 34), np.uint8)
    made[:, :2] = scales[:, None].view(np.uint8)
    made[:, 2:] = np.clip(codes, -127, 127).astype(np.int8).view(np.uint8)
    return made


def models(folder, layers, names=(), *, all_permuted=False):
    """Write `ref.gguf` (f32) and `bad.gguf` (Q8_0, four faults), and return their paths.

    Every tensor has its rows in another order, too, if `all_permuted`.
    """
    rng = np.random.default_rng(5)
    ref, bad = [], []
    shapes = [
        *((f"blk.{i}.{module}.weight", n, k) for i in range(layers)
          for module, (n, k) in MODULES.items()),
        *((name, 32, 64) for name in names),
    ]  # fmt: skip
    for name, n, k in shapes:
        values = rng.normal(0, 0.02, (n, k)).astype(np.float32)
        made = blocks(values)
        if all_permuted:
            made = made.reshape(n, -1)[rng.permutation(n)].reshape(-1, 34)
        if name == "blk.0.ffn_up.weight":
            made = made.reshape(n, -1)[[1, 0, *range(2, n)]].reshape(-1, 34)
        if name == "blk.1.attn_q.weight" or name in names:
            made[3, :2] = (0, 0x7E)  # NaN
        if name == "blk.1.ffn_down.weight":
            made[:6] = 0
        ref.append((name, 0, (k, n), values.tobytes()))
        bad.append((name, 8, (k, n), made.tobytes()))
    for file, tensors in (("ref.gguf", ref), ("bad.gguf", bad)):
        (folder / file).write_bytes(write_gguf({"general.architecture": "llama"}, tensors))
    return folder / "ref.gguf", folder / "bad.gguf"
