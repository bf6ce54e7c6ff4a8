"""Says what a file that is no model file really is, by its content."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from qassay.core.errors import InputError
from qassay.core.source import Source
from qassay.core.text import safe

HEAD_BYTES = 4096
_ZEROS_READ = 1 << 20
_EXCERPT = 60


class Foreign(NamedTuple):
    """What a file turned out to be.

    Attributes:
        found: What it is, as a noun phrase.
        hint: What the user can do.
    """

    found: str
    hint: str


_AGAIN = "download the file again"
_CONVERT = "convert it to safetensors or GGUF first"
_UNPACK = "unpack it first"
_CONFIGURATION = re.compile(r'"(architectures|model_type|hidden_size|text_config)"\s*:')
_RECONVERT = "convert the original model again with a current llama.cpp"

# Longest first where one begins another. Offsets and bytes: the formats' own documents;
# the four legacy magics are little-endian numbers that spell ggml, ggmf, ggjt, ggla.
_MAGICS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"lmgg", "an unversioned ggml file, a format from before GGUF", _RECONVERT),
    (0, b"fmgg", "a ggmf file, a format from before GGUF", _RECONVERT),
    (0, b"tjgg", "a ggjt file, a format from before GGUF", _RECONVERT),
    (0, b"algg", "a ggla file, a LoRA adapter from before GGUF", _RECONVERT),
    (0, b"nsgg", "a llama.cpp session file, which holds no weights", "name the model file"),
    (0, b"\x1f\x8b\x08", "gzip data", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "Zstandard data", _UNPACK),
    (0, b"\xfd7zXZ\x00", "xz data", _UNPACK),
    (0, b"BZh", "bzip2 data", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (0, b"Rar!\x1a\x07", "a RAR archive", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file", _CONVERT),
    (0, b"\x93NUMPY", "a NumPy .npy array", _CONVERT),
    (4, b"TFL3", "a TensorFlow Lite model", "name the model that it was made from"),
    (0, b"\x7fELF", "an executable", "name the model file"),
)


def identify(source: Source, head: bytes) -> Foreign | None:
    """Return what a file is, if it is something known that is neither GGUF nor safetensors.

    Args:
        source: The file.
        head: Its first `HEAD_BYTES` bytes, or all of them.
    """
    if source.size == 0:
        return Foreign("an empty file", _AGAIN)
    for offset, magic, found, hint in _MAGICS:
        if head[offset : offset + len(magic)] == magic:
            return Foreign(found, hint)
    for look in (_lfs_pointer, _zip, _pickle, _onnx, _gguf_kin, _text):
        answer = look(head)
        if answer is not None:
            return answer
    return _zeros(source, head)


def _lfs_pointer(head: bytes) -> Foreign | None:
    if not head.startswith(b"version https://git-lfs.github.com/spec/"):
        return None
    size = re.search(rb"^size (\d{1,20})\s*$", head, re.MULTILINE)
    stands = f" that stands for a file of {int(size[1])} bytes" if size else ""
    return Foreign(
        f"a Git LFS pointer{stands}", "run `git lfs pull` in the repository, or download the file"
    )


def _zip(head: bytes) -> Foreign | None:
    if not head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return None
    if b"/data.pkl" in head:
        return Foreign("a PyTorch checkpoint (zip)", _CONVERT)
    if b".npy" in head[:512]:
        return Foreign("a NumPy .npz archive", _CONVERT)
    return Foreign("a zip archive", _UNPACK)


def _pickle(head: bytes) -> Foreign | None:
    # Protocol 2 to 5, then an opcode that really starts objects: FRAME, a long integer
    # (torch.save's old magic number), a dict, a list, a class, a tuple mark, a string.
    if len(head) > 8 and head[0] == 0x80 and 2 <= head[1] <= 5 and head[2] in b"\x95\x8a}](cX\x8c":
        return Foreign("a Python pickle (an old PyTorch checkpoint, most likely)", _CONVERT)
    return None


def _onnx(head: bytes) -> Foreign | None:
    # ModelProto: field 1 (ir_version, a small number), then field 2 (producer_name, short text)
    # or field 8 (opset_import) or field 7 (graph).
    if (
        len(head) < 16
        or head[0] != 0x08
        or not 1 <= head[1] <= 20
        or head[2] not in b"\x12\x3a\x42"
    ):
        return None
    name = head[4 : 4 + head[3]]
    if head[2] == 0x12 and not (name and name.isascii() and name.decode("ascii").isprintable()):
        return None
    return Foreign("an ONNX model", "this version reads GGUF and safetensors; name one of these")


def _gguf_kin(head: bytes) -> Foreign | None:
    if head[:4] not in (b"GGUF", b"FUGG") or len(head) < 8:
        return None
    little, big = (int.from_bytes(head[4:8], order) for order in ("little", "big"))
    if head[:4] == b"FUGG" or 1 <= big <= 16:
        return Foreign(
            f"a big-endian GGUF file (version {big})",
            "convert it with gguf_convert_endian.py of llama.cpp first",
        )
    if little == 1:
        return Foreign("a GGUF file of version 1", _RECONVERT)
    return None


def _text(head: bytes) -> Foreign | None:
    """Recognise web pages, error bodies and other text; binary headers hold zeros early on."""
    sample = head[:512]
    if len(sample) < 8 or b"\0" in sample:
        return None
    try:
        text = sample.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < 500:
            return None
        text = sample[: error.start].decode("utf-8-sig", "replace")
    if any(char < " " and char not in "\t\r\n\f\x1b" for char in text):
        return None
    text = text.strip()
    start = text[:64].lower()
    excerpt = safe(text[:_EXCERPT])
    again = f"{_AGAIN}: a server may have answered with a message (a login or a token may be due)"
    if start.startswith(("<!doctype html", "<html", "<head", "<body")):
        return Foreign(f'an HTML page ("{excerpt}")', again)
    if start.startswith("<"):
        return Foreign(f'an XML document ("{excerpt}")', again)
    if start.startswith("{") and _CONFIGURATION.search(text):
        return Foreign(
            f'a configuration without weights ("{excerpt}")',
            "name the folder that holds the weights; what a runtime makes of a configuration's"
            " shapes alone, `qassay fit` tells",
        )
    if start.startswith(("{", "[")):
        return Foreign(f'a JSON document ("{excerpt}")', again)
    if text:
        return Foreign(f'text ("{excerpt}")', again)
    return None


def _zeros(source: Source, head: bytes) -> Foreign | None:
    if any(head[:24]):
        return None
    length = min(source.size, _ZEROS_READ)
    if source.read(0, length).any():
        return None
    found = "nothing but zero bytes" if length == source.size else f"{length} zero bytes up front"
    return Foreign(f"a file with {found}", f"{_AGAIN}: it was reserved, and never filled")


_RAW_PART = re.compile(
    r"""(?P<base>.+\.(?:gguf|safetensors))
    (?:
      [.\-_]?part[.\-_]?(?P<part>\d{1,5})(?:[.\-_]?of[.\-_]?(?P<total>\d{1,5}))?
    | [.\-_]?(?:part|split)[.\-_]?(?P<letters>[a-z]{1,2})
    | [.\-_]split[.\-_]?(?P<split>\d{1,5})
    | \.(?P<digits>\d{2,5})
    | \.(?P<suffix>a[a-z])
    )""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


def raw_part(name: str) -> Foreign | None:
    """Return what a file is if its name says that it is a piece of a file cut by `split` or so.

    Such pieces have no header of their own, but for the first; they have to be joined. Parts that
    llama.cpp's gguf-split wrote are complete files and are named otherwise.
    """
    match = _RAW_PART.fullmatch(name)
    if match is None:
        return None
    number = match["part"] or match["split"] or match["digits"]
    total = match["total"]
    if total is not None and int(total) < 2:
        return None
    letters = match["letters"] or match["suffix"]
    base = match["base"]
    which = f"raw part {int(number)}" if number else f"raw part '{letters}'"
    # A star sorts part10 before part2, so numbers are spelled out where the last one is known.
    group = next(group for group, text in match.groupdict().items() if text and group != "base")
    before, after = (shlex.quote(t) if t else "" for t in _around(name, match.span(group)))
    pieces = f"{before}*"
    if total is not None:
        which += f" of {int(total)}"
        first, last = (f"{i:0{len(match['part'])}d}" for i in (1, int(total)))
        numbers = [f"{i:0{len(first)}d}" for i in range(1, min(int(total), 4) + 1)]
        pieces = " ".join(f"{before}{n}{after}" for n in numbers)
        if int(total) > len(numbers):
            pieces = f"{before}{{{first}..{last}}}{after}"
    return Foreign(
        safe(f"{which} of {base}"),
        safe(f"join first: cat {pieces} > {shlex.quote('joined-' + base)}", 600),
    )


def refuse(path: str, what: Foreign) -> InputError:
    """Return the error for a file that is `what` instead of a model file."""
    return InputError(
        "this is no model file that can be checked",
        path=path,
        offset=0,
        expected="GGUF or safetensors",
        found=what.found,
        hint=what.hint,
    )


def _around(text: str, span: tuple[int, int]) -> tuple[str, str]:
    return text[: span[0]], text[span[1] :]
