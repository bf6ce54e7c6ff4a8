"""The page as a file: self-contained, escaped, the same twice, small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from html_models import HOSTILE, models

from qassay.cli.invocation import invocation
from qassay.cli.main import cli
from qassay.cli.options import output_options
from qassay.core.text import safe
from qassay.report.document import Report
from qassay.report.html_kinds import subjects_of
from qassay.report.html_subjects import Metric, attach, part_stems, placed, subject
from qassay.report.look import Look
from qassay.report.page import Column, Lines, Pairs, Table
from qassay.report.registry import renderer
from qassay.testing.faulty_devices import faults, random_linear, run

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = Path(__file__).resolve().parents[1] / "fixtures" / "checkpoints"
LOADING = {"src", "href", "action", "data", "poster", "srcset", "background", "formaction"}


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.scripts, self.words = [], [], [], []
        self._inside = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag in ("script", "style"):
            self._inside.append([tag, dict(attrs), ""])

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self.scripts.append(self._inside.pop())

    def handle_data(self, data):
        if self._inside:
            self._inside[-1][2] += data
        elif data.strip():
            self.words.append(data.strip())

    @property
    def data(self):
        [text] = [text for _, held, text in self.scripts if held.get("id") == "data"]
        return json.loads(text)


@pytest.fixture(params=["check", "check -v --stats full", "compare", "diagnose", "fit", "inspect"])
def any_page(request, page, pair, device):
    name, *more = request.param.split()
    args = {
        "check": ("check", pair[1], *more),
        "compare": ("compare", *pair),
        "diagnose": device,
        "fit": ("fit", CHECKPOINTS / "source-tiny-llama-f16", "--on", "sophgo:bm1684x",
                "--to", "w4bf16"),
        "inspect": ("inspect", pair[1]),
    }[name]  # fmt: skip
    return page(*args)


def test_nothing_is_loaded_from_anywhere(any_page):
    text = any_page.read_text(encoding="ascii")
    found = Page(text)
    assert not [one for one in found.attributes if one[1] in LOADING and one[2] != "#findings"]
    assert not {"link", "iframe", "img", "object", "embed", "base"} & set(found.tags)
    assert not [one for one in found.attributes if one[1].startswith("on") or one[1] == "style"]
    addresses = set(re.findall(r"\b(?:https?|ftp|wss?)://[^\s\"'`<>\\)]*", text, re.IGNORECASE))
    assert {one for one in addresses if not re.match(r"http://www\.w3\.org/\d", one)} == set()
    assert not re.search(r"@import|url\(", text.partition("</style>")[0])
    assert not re.search(r"\bimportScripts|new Worker\(", text)


def test_only_its_own_scripts_may_run(any_page):
    found = Page(any_page.read_text(encoding="ascii"))
    [policy] = [
        value
        for tag, name, value in found.attributes
        if (tag, name) == ("meta", "content") and value.startswith("default-src")
    ]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, held, text in found.scripts:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert (f"'sha256-{digest}'" in policy) == (held.get("type") != "application/json"), tag


def test_what_comes_first(page, pair):
    words = Page(page("compare", *pair, code=1).read_text()).words
    at = [words.index(word) for word in ("findings", "How complete", "Findings", "severity",
                                         "Layers and modules", "How to reproduce")]  # fmt: skip
    assert at == sorted(at)
    assert words[words.index("findings") + 1] == "3 errors"
    assert "qassay compare --output-format html ref.gguf bad.gguf" in words
    assert {"Q603", "channels-permuted", "Relation", "step"} <= set(words)


def test_names_out_of_files_are_text(page, hostile):
    for args in (("check", hostile[1]), ("compare", *hostile), ("inspect", hostile[1])):
        text = page(*args).read_text(encoding="ascii")
        found = Page(text)
        assert set(found.tags) <= {
            "html", "head", "meta", "title", "style", "body", "a", "header", "main", "section",
            "p", "b", "button", "h1", "h2", "h3", "span", "dl", "dt", "dd", "div", "form",
            "fieldset", "legend", "label", "input", "select", "option", "output", "table",
            "thead", "tbody", "tr", "th", "td", "small", "pre", "code", "script", "details",
            "summary", "strong", "ul", "li", "wbr",
        }  # fmt: skip
        assert not [one for one in found.attributes if one[1].startswith("on")]
        assert found.tags.count("script") == 3
        raw = next(text for _, held, text in found.scripts if held.get("id") == "data")
        assert not set("<>&\u2028\u2029") & set(raw)
        names = {one["name"] for one in found.data["subjects"]}
        for name in HOSTILE:
            assert safe(name) in names
            assert safe(name) in found.words


def test_the_same_wherever_it_runs(page, pair, tmp_path, monkeypatch):
    first = page("compare", *pair).read_bytes()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for path in pair:
            shutil.copy(path, tmp_path / name)
        monkeypatch.chdir(tmp_path / name)
        assert page("compare", "ref.gguf", "bad.gguf").read_bytes() == first
    assert str(tmp_path).encode() not in first


def test_without_the_extra(pair, monkeypatch):
    from qassay.report import render_html

    for missing in ("jinja2", "vl_convert"):
        render_html._library.cache_clear()
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            done = CliRunner().invoke(cli, ["check", str(pair[1]), "-f", "html"])
        assert done.exit_code == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert "pip install 'qassay[html]'" in done.stderr
    render_html._library.cache_clear()


def test_help_loads_no_library():
    script = (
        "import sys; from qassay.cli.main import cli\n"
        "try: cli.main(['check', '--help'])\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          check=True)  # fmt: skip
    assert not {"jinja2", "vl_convert"} & set(done.stderr.split())
    assert "html" in done.stdout


def test_size_with_300_tensors(page, tmp_path):
    one, two = models(tmp_path, 75)
    (tmp_path / "all").mkdir()
    permuted = models(tmp_path / "all", 75, all_permuted=True)
    for args in (("compare", one, two), ("check", two, "--stats", "full"), ("compare", *permuted)):
        path = page(*args)
        held = Page(path.read_text()).data["subjects"]
        assert len(held) == 300
        assert all(each["numbers"] for each in held)
        assert path.stat().st_size < 2_500_000


def test_a_huge_report_stays_bounded(pair):
    from dataclasses import replace

    from qassay.report.of_check import report_of
    from qassay.run.check import check
    from qassay.run.options import CheckOptions

    small = report_of([check(pair[1], CheckOptions())])
    long = Table("Long", (Column("a"),), tuple((str(at),) for at in range(9999)))
    report = replace(
        small,
        findings=small.findings * 3000,
        tensors=small.tensors * 500,
        sections=(long,),
    )
    text = "".join(renderer("html")(report, Look()))
    assert len(text) < 6_000_000
    for words in ("and 4,000 more, in the JSON report", "and 9,499 more, in the JSON report"):
        assert words in Page(text).words
    told = Page(text).data["subjects"]
    assert len(told) == 2000
    assert sum("numbers" in one for one in told) <= 400
    assert (
        all("numbers" in one for one in told if one["severity"] == 3)
        or sum(one["severity"] == 3 for one in told) > 400
    )


def test_sections_of_every_kind_are_escaped():
    parts = (
        Table("<t>", (Column("<c>", right=True),), (("<cell>",),), note="<note>"),
        Pairs("<p>", (("<name>", "<value>"),)),
        Lines("<l>", ("<line>",)),
        Lines("", ("<bare>",), bare=True),
    )
    text = "".join(renderer("html")(Report("explain", sections=parts, judged=False), Look()))
    words = Page(text).words
    for word in ("<t>", "<c>", "<cell>", "<note>", "<p>", "<name>", "<value>", "<l>", "<line>",
                 "<bare>"):  # fmt: skip
        assert word in words
    assert len(text) < 60_000  # without tensors, no library of plots


@pytest.mark.parametrize(
    ("name", "stem", "layer", "module"),
    [
        ("model.layers.3.mlp.down_proj.weight", "model.layers", "3", "mlp.down_proj"),
        ("model.layers.03.mlp.down_proj.qweight", "model.layers", "3", "mlp.down_proj"),
        ("blk.12.attn_q.weight", "blk", "12", "attn_q"),
        ("blk.12.attn_q.bias", "blk", "12", "attn_q.bias"),
        ("model.layers.*.mlp.down_proj", "model.layers", "all", "mlp.down_proj"),
        ("model.layers.7.mlp.experts.31.up_proj.weight", "model.layers", "7",
         "mlp.experts.*.up_proj"),
        ("model.layers.7.mlp.experts.2.up_proj", "model.layers", "7", "mlp.experts.*.up_proj"),
        ("token_embd.weight", "", "", "token_embd"),
        ("h.0", "h", "0", "h"),
        ("transformer/h/4/attn", "transformer/h", "4", "attn"),
        ("layer_7/Add_f32", "", "7", "Add_f32"),
        ("layer_7", "", "7", "layer_7"),
        ("w.123456789.x", "", "", "w.123456789.x"),
        ("", "", "", ""),
    ],
)  # fmt: skip
def test_layer_and_module(name, stem, layer, module):
    assert placed(name) == (stem, layer, module)


def test_a_vision_tower_has_its_own_rows():
    names = ("model.layers.0.attn.q", "model.layers.1.attn.q", "visual.blocks.0.attn.q", "lm_head")
    found = [subject(name) for name in names]
    part_stems(found)
    assert [one.module for one in found] == ["attn.q", "attn.q", "visual.blocks: attn.q", "lm_head"]
    assert [one.layers for one in found] == [("0",), ("1",), ("0",), ()]


def test_findings_know_their_tensor():
    document = {
        "command": "check",
        "tensors": [
            {"name": name, "path": path, "type": "F32", "encoding": "f32", "shape": [1, 2],
             "bytes": 8, "checked": True}
            for name, path in (("a", "x"), ("b", "x"), ("a", "y"))
        ],
    }  # fmt: skip
    _, _, found = subjects_of(document)
    finding = {"field": None, "path": "y", "tensor": "a", "severity": "warning"}
    lost = {"field": None, "path": "y", "tensor": None, "severity": "error", "data": {"tensors": 3}}
    worse = {**finding, "severity": "error"}
    several = {**lost, "path": "x", "severity": "info", "data": {"names": ["b", "z", "a", 7]}}
    assert attach(found, [finding, lost, worse, several]) == [(2,), (), (2,), (1, 0)]
    assert [one.severity for one in found] == [1, 1, 3]
    assert found[2].findings == [0, 2]


def test_fit_lists_a_linear_once_and_on_every_layer_it_is_in(page):
    path = page("fit", ROOT / "examples/qwen3.5-2b/config.json", "--on", "sophgo:bm1684x",
                "--to", "w4bf16")  # fmt: skip
    found = Page(path.read_text())
    name = "model.language_model.layers.*.linear_attn.in_proj_b"
    assert found.words.count(name) == 1
    assert found.words.count("Linears") == 1
    told = {one["name"]: one for one in found.data["subjects"]}
    layers = [int(layer) for layer in told[name]["layers"]]
    assert layers == [at for at in range(24) if at % 4 != 3]  # every fourth layer has softmax
    assert told[name]["severity"] == 2
    assert told[name]["findings"] == [0]
    other = told["model.language_model.layers.*.self_attn.q_proj"]
    assert [int(layer) for layer in other["layers"]] == list(range(3, 24, 4))
    assert "is changed: lanes-fall-back" in found.words
    assert 'class="verdict incomplete"' in path.read_text()  # a warning is not painted as an error


def test_what_was_not_checked_is_never_without_a_finding(page):
    found = Page(page("check", CHECKPOINTS / "bnb-nf4", code=3).read_text())
    told = {one["name"]: one.get("unchecked") for one in found.data["subjects"]}
    weight = "model.layers.0.self_attn.k_proj.weight"
    assert told[weight] == 1
    assert told["model.norm.weight"] is None
    assert found.words.count("not checked") > sum(one == 1 for one in told.values())
    assert "Nothing is known about it. It is not the same as no finding." in found.words


def test_dumps_show_every_bad_tensor(page, dumps):
    """One finding is about many bad tensors; the map shows all of them."""
    folder = dumps[2].parent
    right = dict(np.load(dumps[2]))
    wrong = {name: value * np.float32(3) for name, value in right.items()}
    np.savez(folder / "all.npz", **wrong)
    found = Page(page("diagnose", "--float", dumps[2], "--device", folder / "all.npz").read_text())
    assert [one["severity"] for one in found.data["subjects"]] == [3] * len(right)
    assert "Tensors, in order" not in found.words


def test_outputs_have_the_findings_that_are_theirs(page, device):
    """Prefill and decode are of one layer; a fault of one is none of the other."""
    folder = device[2].parent
    x = np.load(folder / "x.npz")["x"]
    linear = random_linear(1, 64, 128, 32)
    known = {one.name: one for one in faults(linear, random_linear(2, 64, 128, 32))}
    kept = run(known["scale not rounded"].plant(linear), x, "dev")
    np.savez(folder / "xx.npz", prefill=x, decode=x)
    np.savez(folder / "yy.npz", prefill=kept, decode=np.load(folder / "y.npz")["y"])
    more = ("--inputs", folder / "xx.npz", "--device", folder / "yy.npz", "--no-pairs")
    found = Page(page("diagnose", "--weights", device[2], *more).read_text())
    told = [(one["name"], one["severity"]) for one in found.data["subjects"]]
    assert told == [("prefill", 1), ("decode", 3)]
    assert found.words.count("no fault by itself") == 1  # in the table of outputs


def test_metrics_are_written_as_people_write_them():
    assert Metric("a", percent=True).shown(0.005366) == "0.537%"
    assert Metric("a", text=".6f").shown(0.9999864) == "0.999986"
    assert Metric("a").shown(131072.0) == "131,072"
    assert Metric("a").shown(None) == "-"
    assert Metric("a", percent=True).shown(float("inf")) == "inf"


def test_a_cell_left_blank_is_that_of_the_row_above():
    part = Table("t", (Column("kind"), Column("v")), (("q4", "1"), ("", "2"), ("q5", "3")))
    text = "".join(renderer("html")(Report("scales", sections=(part,), judged=False), Look()))
    assert Page(text).words.count("q4") == 2


def test_the_command_line_can_be_typed_again(tmp_path):
    seen = []

    @click.command("check")
    @click.argument("models", nargs=-1, type=click.Path())
    @click.option("--to", multiple=True)
    @click.option("--size", type=int, default=3)
    @click.option("--exit-zero", is_flag=True, envvar="QASSAY_TEST_ZERO")
    @output_options
    def command(**given):
        seen.append(invocation())

    top = click.Group("qassay", commands=[command])
    a, b = tmp_path / "a" / "m.gguf", tmp_path / "b" / "m.gguf"
    args = ["check", str(a), str(b), "it's.gguf", "--to", "Q8_0", "--to", "Q4 K", "-o",
            str(tmp_path / "r.html"), "-f", "html", "-q"]  # fmt: skip
    done = CliRunner().invoke(top, args, env={"QASSAY_TEST_ZERO": "1"}, prog_name="qassay")
    assert done.exit_code == 0, done.output
    assert seen == [
        "qassay check --to Q8_0 --to 'Q4 K' --exit-zero --output-format html a/m.gguf b/m.gguf "
        "'it'\"'\"'s.gguf'"
    ]
    assert invocation() == ""


def test_the_commands_of_its_page_run(tmp_path):
    text = (ROOT / "docs" / "html.md").read_text()
    lines = re.findall(r"^\$ qassay (.*)$", text, re.M)
    assert len(lines) >= 3
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for line in lines:
        done = subprocess.run([sys.executable, "-m", "qassay", *line.split()], cwd=tmp_path,
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode in (0, 1), done.stderr
        path = tmp_path / line.split()[-1]
        assert "<h1>findings</h1>" in path.read_text()


def test_its_page_knows_every_number(page, pair, device, dumps):
    """What the map can be coloured by is explained in docs/html.md."""
    told = " ".join((ROOT / "docs" / "html.md").read_text().lower().split())
    for args in (("check", pair[1]), ("compare", *pair), dumps):
        for metric in Page(page(*args).read_text()).data["metrics"]:
            if metric["mapped"]:
                title = metric["title"].replace("SNR, dB", "SNR in dB")
                assert title.replace(", ", " in ").lower() in told, metric["title"]
