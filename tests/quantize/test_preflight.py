"""What `check --to` calls an error, `quantize` does not write; and nothing else is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qassay
from qassay.core.finding import Severity
from qassay.encodings.registry import by_id
from qassay.run.model import Model
from qassay.run.quantize import QuantizeOptions, QuantizeResult, quantize
from qassay.run.quantize_plan import Wish, gguf_number
from qassay.runtimes.registry import all_engines
from qassay.runtimes.targets import FALLBACKS
from qassay.runtimes.targets_recipes import RECIPES, TYPES
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.safetensors_writer import write_safetensors

OUT = Path("out.gguf")
WRITTEN = sorted(
    name for name in all_engines()["ggml"].routes if gguf_number(by_id(name)) is not None
)
TARGETS = [*WRITTEN, "F32", "Q4_K_M", "Q2_K_S"]


def planted(place: tuple[int, int] | int, value: float) -> np.ndarray:
    values = normal()
    values[place] = value
    return values


def normal(scale: float = 0.02, seed: int = 0, columns: int = 256) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal((6, columns)) * scale
    return made.astype(np.float32)


def any_size(seed: int) -> np.ndarray:
    """Return rows of any size, with zero blocks and planted extremes."""
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        values = rng.standard_normal((6, 256)) * 2.0 ** rng.integers(-60, 40, (6, 1))
        values.reshape(-1, 32)[rng.random(48) < 0.3] *= 1e-7
        values.reshape(-1, 32)[rng.random(48) < 0.1] = 0
        values[rng.random((6, 256)) < 0.002] = rng.choice([6e6, 1e30, 1e-44, 8e4])
    return values.astype(np.float32)


NASTY = {
    "healthy": normal(),
    "zero": np.zeros((6, 256), np.float32),
    "a zero row": planted(2, 0),
    "nan": planted((3, 70), np.nan),
    "inf": planted((3, 70), np.inf),
    "-inf": planted((0, 0), -np.inf),
    "past f16": planted((1, 1), 7e4),
    "past Q4_0": planted((1, 1), 6e5),
    "past Q8_0": planted((1, 1), 1e7),
    "largest float": planted((5, 255), np.finfo(np.float32).max),
    "outlier": planted((5, 255), 6e6),
    "sd 1e-5": normal(1e-5),
    "sd 1e-6": normal(1e-6),
    "sd 1e-8": normal(1e-8),
    "denormal": normal(1e-41),
    "a tiny row": planted(4, 1e-9),
    "a lost block": np.where(np.arange(256) < 32, np.float32(1e-9), normal()),
    "coarse": normal(2e-5, 3),
    "rows of 96": normal(1e-6, 4, 96),
    "rows of 33": planted((2, 2), 1e6)[:, :33],
    "any 1": any_size(1),
    "any 2": any_size(2),
    "any 3": any_size(3),
}


def errors(findings: Any) -> list[str]:
    return sorted({each.code for each in findings if each.severity >= Severity.ERROR})


def told(findings: Any) -> list[str]:
    return [f"{each.code} {each.field} {each.locations}" for each in findings]


def attempt(source: Path, to: str, allow: tuple[str, ...] = ()) -> QuantizeResult:
    return quantize(source, OUT, QuantizeOptions(Wish.parse("ggml", to), allow=allow))


@pytest.mark.parametrize("to", TARGETS)
def test_refuses_exactly_what_check_calls_an_error(one_tensor, to):
    refused = set()
    for name, values in NASTY.items():
        source = one_tensor(values)
        report = qassay.check(source, to=to)
        done = attempt(source, to)
        assert list(done.refused) == errors(report.findings), name
        assert repr(done.source.findings) == repr(list(report.findings)), name  # NaN is not NaN
        assert done.written == (not done.refused), name
        assert OUT.exists() == done.written, name
        assert sorted(path.suffix for path in Path().iterdir()) == (
            [".gguf", ".safetensors"] if done.written else [".safetensors"]
        ), name
        if done.refused:
            refused.update(done.refused)
            done = attempt(source, to, done.refused)
            assert done.written, name
            assert list(done.allowed) == errors(report.findings), name
            assert told(done.source.findings) == told(report.findings), name
            assert not errors(done.source.findings), name
        OUT.unlink()
    assert "Q401" in refused
    assert {"Q501", "Q502"} <= refused or to in ("F32", "bf16", "ggml.mxfp4")


@pytest.mark.parametrize("dtype", ["<f2", "<f8"])
@pytest.mark.parametrize("to", ["Q8_0", "Q6_K", "F16"])
def test_floats_of_other_widths(to, dtype, tmp_path):
    for name in ("sd 1e-6", "any 1", "outlier", "nan"):
        with np.errstate(over="ignore"):
            values = NASTY[name].astype(dtype)
        if dtype == "<f8" and name == "outlier":
            values[5, 255] = 1e200
        tensor = ("a.weight", "F16" if dtype == "<f2" else "F64", [6, 256], values.tobytes())
        source = tmp_path / "one.safetensors"
        source.write_bytes(write_safetensors([tensor], align=64))
        report = qassay.check(source, to=to)
        done = attempt(source, to)
        assert list(done.refused) == errors(report.findings), name
        OUT.unlink(missing_ok=True)


def test_the_report_names_tensor_row_and_block(run, document, one_tensor):
    source = one_tensor(planted((3, 70), 1e7))
    made = document(source, OUT, "--to", "Q8_0", code=1)
    assert made["result"]["quantize"]["refused"] == ["Q501"]
    assert made["result"]["quantize"]["written"] is False
    [found] = [each for each in made["findings"] if each["code"] == "Q501"]
    assert found["tensor"] == "a.weight"
    assert (found["location"]["row"], found["location"]["block"]) == (3, 26)
    assert found["data"]["target"] == "ggml.q8_0"
    text = run(source, OUT, "--to", "Q8_0", code=1).stdout
    assert "at row 3, column 64, block 26" in text
    assert "--allow Q501" in text
    assert "--type-for" in text
    assert not OUT.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--allow", "Q502,Q401,Q504"],
        ["--allow", "q502", "--allow", "Q401", "--allow", "nan-would-vanish"],
        ["--allow", "Q50,Q4"],
        ["--allow", "Q"],
    ],
)
def test_ways_to_allow(run, one_tensor, words):
    values = normal(2e-7)
    values[3, 70] = np.nan
    source = one_tensor(values)
    run(source, OUT, "--to", "Q8_0", code=1)
    run(source, OUT, "--to", "Q8_0", "--allow", "Q502,Q401", code=1)
    assert not OUT.exists()
    run(source, OUT, "--to", "Q8_0", *words, code=None)
    with Model.open(OUT) as new:
        allowed = set(new.metadata["qassay.allowed"])
        assert {"Q401", "Q502", "Q504"} <= allowed
        assert {"Q501", "Q502", "Q503", "Q504"} <= set(new.metadata["qassay.checks"])
        assert new.metadata["qassay.engine"] == "ggml"


@pytest.mark.parametrize("word", ["Q999", "Q51", "503", "coarse"])
def test_a_wrong_code_is_a_usage_error(run, one_tensor, word):
    told = run(one_tensor(normal()), OUT, "--to", "Q8_0", "--allow", word, code=2).stderr
    assert f"--allow: no rule is called {word}" in told
    assert not OUT.exists()


def test_the_beginning_of_a_code_does_not_allow_what_cannot_be_allowed(run):
    tensors = [("a.weight", 0, (64, 4), normal(seed=seed)[:4, :64].tobytes()) for seed in (0, 1)]
    Path("twice.gguf").write_bytes(write_gguf({}, tensors))
    run("twice.gguf", OUT, "--to", "Q8_0", "--allow", "Q0", code=1)
    assert not OUT.exists()


def test_the_environment_allows_too(run, one_tensor, monkeypatch):
    monkeypatch.setenv("QASSAY_ALLOW", "Q502")
    run(one_tensor(normal(2e-7)), OUT, "--to", "Q8_0")
    assert OUT.exists()


def test_warnings_and_notes_do_not_refuse(document, one_tensor):
    made = document(one_tensor(NASTY["a lost block"]), OUT, "--to", "Q8_0")
    assert ("Q502", "warning") in {(each["code"], each["severity"]) for each in made["findings"]}
    made = document(one_tensor(NASTY["rows of 33"]), OUT, "--to", "Q8_0", "--force", code=1)
    assert "Q501" in made["result"]["quantize"]["refused"]  # of F16, which the rows get instead
    made = document(one_tensor(normal(columns=33)), OUT, "--to", "Q8_0", "--force")
    assert ("Q505", "warning") in {(each["code"], each["severity"]) for each in made["findings"]}


def test_severities_of_the_configuration_count(run, one_tensor):
    source = one_tensor(normal(2e-7))
    Path("pyproject.toml").write_text('[tool.qassay]\nseverity = { Q502 = "warning" }\n')
    run(source, OUT, "--to", "Q8_0")
    Path("pyproject.toml").write_text('[tool.qassay]\nseverity = { Q505 = "error" }\n')
    run(one_tensor(normal(columns=96)), OUT, "--to", "Q4_K", "--force", code=1)


def test_each_tensor_is_judged_for_the_type_that_it_gets(run, document, tmp_path):
    small = normal(1e-5)
    tensors = [(name, "F32", [6, 256], small.tobytes()) for name in ("a.weight", "b.weight")]
    source = tmp_path / "two.safetensors"
    source.write_bytes(write_safetensors(tensors, align=64))
    run(source, OUT, "--to", "Q4_0")
    made = document(source, OUT, "--to", "Q4_0", "--type-for", "b.*=Q6_K", "--force", code=1)
    assert {(each["tensor"], each["field"]) for each in made["findings"]} == {
        ("b.weight", "ggml.q6_k")
    }
    words = ["--type-for", "*=Q6_K", "--type-for", "?.weight=Q4_0"]
    run(source, OUT, "--to", "Q6_K", *words, "--force")


def test_what_stays_float_is_judged_as_float(document, tmp_path):
    """Norms and their like are not quantized, so their size does not matter."""
    names = ("blk.0.ffn_gate_inp.weight", "position_embd.weight", "blk.0.attn_norm.weight")
    tensors = [(name, "F32", [6, 256], normal(1e-8).tobytes()) for name in names]
    source = tmp_path / "kept.safetensors"
    source.write_bytes(write_safetensors(tensors, align=64))
    made = document(source, OUT, "--to", "Q6_K")
    assert {each["to"] for each in made["result"]["quantize"]["tensors"]} == {"f32"}
    assert len({each["reason"] for each in made["result"]["quantize"]["tensors"]}) == 3
    document(source, OUT, "--to", "Q6_K", "--type-for", "position*=Q6_K", "--force", code=1)


@pytest.mark.parametrize("columns", [33, 48, 96, 256, 384])
def test_the_plan_and_check_fall_back_alike(document, one_tensor, columns):
    source = one_tensor(normal(columns=columns))
    for to in WRITTEN:
        report = qassay.check(source, to=to)
        instead = [each.data["instead"] for each in report.findings if each.code == "Q505"]
        made = document(source, OUT, "--to", to, "--force")
        [tensor] = made["result"]["quantize"]["tensors"]
        assert [tensor["to"]] == (instead or [to])
        assert ("no whole number" in tensor["reason"]) == bool(instead)
        mine = [each for each in made["findings"] if each["code"] == "Q505"]
        assert [each["data"]["instead"] for each in mine] == instead


def test_fall_backs_are_those_of_llama_quantize():
    """llama.cpp 007dbbf3, src/llama-quant.cpp, tensor_type_fallback."""
    short = {name.removeprefix("ggml."): to.removeprefix("ggml.") for name, to in FALLBACKS.items()}
    assert short == {
        "q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
        "iq4_xs": "iq4_nl",
    }  # fmt: skip


LAYERS = 8
MODEL = {
    "token_embd.weight": (64, 256),
    "output.weight": (64, 256),
    "output_norm.weight": (256,),
    **{
        f"blk.{layer}.{part}.weight": shape
        for layer in range(LAYERS)
        for part, shape in {
            "attn_norm": (256,),
            "attn_q": (256, 256),
            "attn_k": (64, 256),
            "attn_v": (64, 256),
            "attn_output": (256, 256),
            "ffn_up": (96, 256),
            "ffn_down": (256, 96),
        }.items()
    },
}


@pytest.fixture
def model(tmp_path) -> Path:
    """A GGUF model of eight layers whose `ffn_down` has rows that K-quants do not fit."""
    rng = np.random.default_rng(1)
    tensors = [
        (name, 0, shape[::-1], (rng.standard_normal(shape) * 0.02).astype(np.float32).tobytes())
        for name, shape in MODEL.items()
    ]
    path = tmp_path / "model.gguf"
    path.write_bytes(write_gguf({"general.architecture": "llama"}, tensors))
    return path


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes(document, model, recipe):
    told = qassay.check(model, to=recipe).to_dict()["result"]["targets"][recipe]
    made = document(model, OUT, "--to", recipe.lower())["result"]["quantize"]
    assert made["to"] == recipe
    types = {name: each["tensors"] for name, each in made["totals"]["types"].items()}
    assert types.pop("f32") == sum(told["stays"].values()) == LAYERS + 1
    assert types == {name: each["tensors"] for name, each in told["becomes"].items()}
    assert {name for name in types if by_id(name).block == 256} <= set(TYPES)
    with Model.open(OUT) as new:
        assert new.tensors["output.weight"].encoding == "ggml.q6_k"
        assert new.metadata["general.file_type"]


def test_a_recipe_and_a_type_for_some(document, model):
    made = document(model, OUT, "--to", "Q4_K_M", "--type-for", "blk.*.attn_v.*=Q8_0")
    types = {each["name"]: each["to"] for each in made["result"]["quantize"]["tensors"]}
    assert {types[f"blk.{layer}.attn_v.weight"] for layer in range(LAYERS)} == {"ggml.q8_0"}
    assert types["blk.0.attn_q.weight"] == "ggml.q4_k"
    assert types["blk.1.ffn_down.weight"] == "ggml.q5_0"
    assert types["blk.7.ffn_down.weight"] == "ggml.q8_0"


def test_recipes_where_they_do_not_count(run, model):
    told = run(model, OUT, "--to", "Q4_K_M", "--engine", "candle", code=2).stderr
    assert "engine candle does not write the types of recipe Q4_K_M" in told
    told = run(model, OUT, "--to", "Q8_0", "--type-for", "*=Q4_K_M", code=2).stderr
    assert "no type called Q4_K_M" in told
    told = run(model, OUT, "--to", "sophgo.w4bf16", code=2).stderr
    assert "no type called sophgo.w4bf16" in told
    assert "Q4_K_M" in told


def test_a_recipe_refuses_by_tensor(document, tmp_path):
    """Q6_K, which the recipe gives to the output, cannot hold what Q4_K in the layers could."""
    tensors = [
        (name, 0, (256, 64), (normal(2e-5, 5, 256)[:1] * np.ones((64, 1), "f4")).tobytes())
        for name in ("token_embd.weight", "output.weight")
    ]
    source = tmp_path / "small.gguf"
    source.write_bytes(write_gguf({}, tensors))
    report = qassay.check(source, to="Q4_K_M")
    made = document(source, OUT, "--to", "Q4_K_M", code=1)
    found = {(each["tensor"], each["code"], each["severity"]) for each in made["findings"]}
    assert found == {(each.tensor, each.code, each.severity.label) for each in report.findings}
    assert ("output.weight", "Q502", "error") in found
    assert json.dumps(made).count("ggml.q6_k")


@pytest.mark.parametrize("to", ["F32", "F16", "Q8_0"])
def test_doubles_that_would_become_infinite_are_refused(document, tmp_path, weights, to):
    values = weights(4, 64).astype("<f8")
    values[1, 3] = 1e300
    (tmp_path / "wide.safetensors").write_bytes(
        write_safetensors([("a.weight", "F64", [4, 64], values.tobytes())], align=64)
    )
    made = document("wide.safetensors", "out.gguf", "--to", to, code=1)
    assert made["result"]["quantize"]["refused"] == ["Q501"]
    assert not Path("out.gguf").exists()
