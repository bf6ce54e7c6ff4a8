"""The page in a browser: nothing complains, and what can be clicked does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

CHECKPOINTS = Path(__file__).resolve().parents[1] / "fixtures" / "checkpoints"
ROWS = "[...document.querySelectorAll('#finding-rows tbody tr')].filter((row) => !row.hidden)"
TENSORS = "[...document.querySelectorAll('#subject-rows tbody tr')].filter((row) => !row.hidden)"
DRAWN = "document.querySelectorAll('#charts svg').length"


def calm(browser, path):
    assert browser.complaints() == []
    assert browser.requests() == [Path(path).resolve().as_uri()]


def type_into(browser, selector, text):
    browser.run(f"document.querySelector('{selector}').focus()")
    browser.ask("Input.insertText", text=text)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    "name", ["check", "full", "compare", "diagnose", "dumps", "fit", "inspect", "rules"]
)
def test_nothing_complains(browser, page, pair, device, dumps, name, dark):
    args = {
        "check": ("check", pair[1]),
        "full": ("check", pair[1], "--stats", "full"),
        "compare": ("compare", *pair),
        "diagnose": device,
        "dumps": dumps,
        "fit": ("fit", CHECKPOINTS / "source-tiny-llama-f16", "--on", "sophgo:bm1684x",
                "--to", "w4bf16"),
        "inspect": ("inspect", pair[1]),
        "rules": ("rules",),
    }[name]  # fmt: skip
    path = page(*args)
    browser.open(path, dark=dark)
    calm(browser, path)
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(21, 25, 29)" if dark else "rgb(255, 255, 255)")
    charts = {
        "check": 0,
        "full": 1,
        "compare": 2,
        "diagnose": 2,
        "dumps": 2,
        "fit": 0,
        "inspect": 0,
        "rules": 0,
    }
    assert browser.run(DRAWN) == charts[name]


def test_filters(browser, page, pair):
    path = page("check", pair[1])
    browser.open(path)
    rows = browser.run(f"{ROWS}.map((row) => [row.dataset.severity, row.dataset.code])")
    assert [one[0] for one in rows] == ["error", "info", "info"]
    browser.press("#filters input[value=info]")
    assert browser.run(f"{ROWS}.length") == 1
    assert browser.run("document.getElementById('shown').value") == "1 of 3 shown"
    browser.press("#filters input[value=info]")
    code = rows[1][1]
    browser.run(
        f"(() => {{ const one = document.querySelector('#filters select'); one.value = '{code}';"
        "one.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    assert browser.run(f"{ROWS}.map((row) => row.dataset.code)") == [code]
    browser.run("document.getElementById('filters').reset()")
    type_into(browser, "#filters input[type=search]", "FFN_DOWN zero")
    assert browser.run(f"{ROWS}.every((row) => row.textContent.includes('ffn_down'))")
    assert browser.run(f"{ROWS}.length") == 2
    type_into(browser, "#filters input[type=search]", " nothing-has-this")
    assert browser.run(f"{ROWS}.length") == 0
    type_into(browser, "#subject-text", "attn_q")
    assert browser.run(f"{TENSORS}.length") == 3
    calm(browser, path)


def test_sorting(browser, page, pair):
    path = page("compare", *pair)
    browser.open(path)
    heads = browser.run(
        "[...document.querySelectorAll('#subject-rows th')].map((one) => one.textContent)"
    )
    at = heads.index("times expected") + 1
    cells = (
        f"[...document.querySelectorAll('#subject-rows td:nth-child({at})')]"
        ".map((one) => Number(one.dataset.key))"
    )
    browser.press(f"#subject-rows th:nth-child({at}) button")
    seen = browser.run(cells)
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) > 5
    browser.press(f"#subject-rows th:nth-child({at}) button")
    assert browser.run(cells) == sorted(seen)
    sort = browser.run(
        f"document.querySelector('#subject-rows th:nth-child({at})').getAttribute('aria-sort')"
    )
    assert sort == "ascending"
    browser.press("#finding-rows th:nth-child(2) button")
    codes = browser.run(f"{ROWS}.map((row) => row.dataset.code)")
    assert codes == sorted(codes, reverse=True)
    calm(browser, path)


def test_a_click_on_a_name_and_on_a_cell(browser, page, pair):
    path = page("compare", *pair)
    browser.open(path)
    browser.press("#finding-rows button.name")
    name = browser.run("document.querySelector('#finding-rows button.name').textContent")
    browser.wait(f"document.getElementById('detail-name').textContent === '{name}'")
    assert browser.run("document.activeElement.id") == "detail-name"
    browser.wait(f"{DRAWN} === 2")
    cell = "#map svg .mark-rect path[aria-label*='blk.2.attn_k.weight']"
    browser.press(cell)
    browser.wait("document.getElementById('detail-name').textContent === 'blk.2.attn_k.weight'")
    browser.wait(f"{DRAWN} === 2")
    words = browser.run("document.getElementById('numbers').textContent")
    assert "SNR in dB" in words
    assert "times expected, due to codes" in words
    tiles = browser.run("document.getElementById('tiles').textContent")
    assert tiles.startswith("times expected0.9")
    assert browser.run("document.querySelector('tr.picked button').textContent") == (
        "blk.2.attn_k.weight"
    )
    before = browser.run(f"document.querySelector(\"{cell}\").getAttribute('fill')")
    browser.run(
        "(() => { const one = document.getElementById('metric'); one.value ="
        "[...one.options].find((each) => each.text === 'largest error, steps').value;"
        "one.dispatchEvent(new Event('change')); })()"
    )
    browser.wait(f"document.querySelector(\"{cell}\").getAttribute('fill') !== '{before}'")
    calm(browser, path)


def test_keys(browser, page, pair):
    path = page("compare", *pair)
    browser.open(path)
    browser.run("document.querySelector('#subject-rows tr[data-at=\"5\"] button').focus()")
    for kind in ("rawKeyDown", "char", "keyUp"):
        browser.ask("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r",
                    windowsVirtualKeyCode=13)  # fmt: skip
    browser.wait("document.documentElement.dataset.picked === '5'")
    seen = browser.run(
        "[...document.querySelectorAll('button, input, select, [tabindex=\"0\"]')]"
        ".filter((one) => !one.textContent.trim() && !one.getAttribute('aria-label')"
        " && !(one.labels && one.labels.length)).length"
    )
    assert seen == 0
    calm(browser, path)


def test_light_and_dark_by_hand(browser, page, pair):
    path = page("compare", *pair)
    browser.open(path, dark=True)
    browser.run("localStorage.clear()")
    ground = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for word in ("light", "dark", "system"):
        browser.press("#theme")
        assert browser.run("document.getElementById('theme').textContent") == f"Theme: {word}"
        seen.append(browser.run(ground))
    assert seen == ["rgb(255, 255, 255)", "rgb(21, 25, 29)", "rgb(21, 25, 29)"]
    browser.wait(f"{DRAWN} === 2")
    calm(browser, path)


def test_hostile_names_do_nothing(browser, page, hostile):
    for args in (("check", hostile[1]), ("compare", *hostile)):
        path = page(*args)
        browser.open(path)
        title = browser.run("document.title")
        for at in range(browser.run(f"{TENSORS}.length")):
            browser.run(f"document.querySelector('[data-at=\"{at}\"] button').click()")
            browser.wait(f"document.documentElement.dataset.picked === '{at}'")
        assert browser.run("document.title") == title
        assert title.startswith("findings: ")
        calm(browser, path)


@pytest.mark.parametrize("name", ["compare", "check"])
def test_a_phone(browser, page, pair, name):
    path = page("compare", *pair) if name == "compare" else page("check", pair[1])
    browser.open(path, width=360, height=740)
    assert browser.run("document.documentElement.scrollWidth") <= 360
    wide = (
        "[...document.querySelectorAll('#finding-rows td')]"
        ".map((one) => one.getBoundingClientRect().right)"
    )
    assert max(browser.run(wide)) <= 360
    calm(browser, path)


def test_a_finding_is_told_with_its_tensor(browser, page, pair):
    path = page("compare", *pair)
    browser.open(path)
    browser.press("#finding-rows button.name")
    told = "document.getElementById('detail-findings')"
    browser.wait(f"!{told}.hidden && {told}.textContent.includes('Q603 channels-permuted')")
    assert "swapped" in browser.run(f"{told}.textContent")
    browser.run("document.querySelector('[data-subject=\"5\"]').click()")
    browser.wait("document.documentElement.dataset.picked === '5'")
    assert browser.run(f"{told}.hidden")
    assert browser.run("document.getElementById('detail-said').textContent") == "quantized"
    calm(browser, path)


def test_a_code_in_the_verdict_filters(browser, page, pair):
    path = page("check", pair[1])
    browser.open(path)
    code = browser.run("document.querySelector('.kinds button:last-child').dataset.code")
    browser.press(".kinds button")
    shown = browser.run(f"{ROWS}.map((row) => row.dataset.code)")
    assert set(shown) == {code}
    assert browser.run("document.getElementById('filters').elements.code.value") == code
    assert browser.run("document.activeElement.id") == "findings"
    calm(browser, path)


CONTRAST = """
(() => {
  const numbers = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((one) => one / 255)
    .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const rgb = numbers(getComputedStyle(each).backgroundColor);
      if (rgb.length === 3 || rgb[3] > 0) return rgb;
    }
    return [255, 255, 255];
  };
  const low = [];
  let seen = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || node.closest("script, option") ||
      !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const ink = numbers(node.closest("svg") ? style.fill : style.color);
    const [one, two] = [light(ink), light(ground(node))];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    seen += 1;
    if (!(ratio >= 4.5)) low.push([walker.currentNode.textContent.trim().slice(0, 40), ratio]);
  }
  return [seen, low.slice(0, 5)];
})()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["compare", "check", "incomplete"])
def test_every_word_can_be_read(browser, page, pair, name, dark):
    """WCAG 2, level AA: text has a contrast of at least 4.5 against what is behind it."""
    args = {"compare": ("compare", *pair), "check": ("check", pair[1], "--stats", "full"),
            "incomplete": ("check", CHECKPOINTS / "bnb-nf4")}[name]  # fmt: skip
    path = page(*args)
    browser.open(path, dark=dark)
    seen, low = browser.run(CONTRAST)
    assert seen > 100
    assert low == []
    browser.run("document.documentElement.style.setProperty('--quiet', '#777')")
    assert browser.run(CONTRAST)[1] != []


def test_the_policy_stops_what_would_be_loaded(browser, page, pair):
    """Not only does the page ask for nothing: it could not."""
    path = page("check", pair[1])
    browser.open(path)
    stopped = browser.run(
        "new Promise((done) => { const seen = []; document.addEventListener("
        "'securitypolicyviolation', (event) => { seen.push(event.effectiveDirective);"
        "if (seen.length === 3) done(seen.sort()); });"
        "new Image().src = 'http://127.0.0.1:9/a.png';"
        "fetch('http://127.0.0.1:9/b').catch(() => 0);"
        "const one = document.createElement('script'); one.textContent = 'window.ran = 1';"
        "document.body.append(one); })"
    )
    assert stopped == ["connect-src", "img-src", "script-src-elem"]
    assert browser.run("window.ran === undefined")
    failed = [one["params"] for one in browser.events if one["method"] == "Network.loadingFailed"]
    assert {one["blockedReason"] for one in failed} == {"csp"}
    assert len(failed) == len(browser.requests()) - 1  # all but the page itself


def test_paper(browser, page, pair):
    """Printed from a dark screen, it is dark on white, and nothing scrolls."""
    path = page("compare", *pair)
    browser.open(path, dark=True)
    browser.run(
        "(() => { const one = document.getElementById('metric'); one.value ="
        "[...one.options].find((each) => each.text === 'SNR, dB').value;"
        "one.dispatchEvent(new Event('change')); })()"
    )
    cell = "document.querySelector(\"#map .mark-rect path[aria-label*='blk.2.attn_k']\")"
    browser.wait(f"{cell}.getAttribute('fill') === 'rgb(35, 43, 51)'")
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    browser.wait(f"{cell}.getAttribute('fill') === 'rgb(238, 242, 246)'")
    browser.ask("Emulation.setEmulatedMedia", media="print",
                features=[{"name": "prefers-color-scheme", "value": "dark"}])  # fmt: skip
    style = "getComputedStyle(document.{}).{}"
    assert browser.run(style.format("body", "backgroundColor")) == "rgb(255, 255, 255)"
    assert browser.run(style.format("body", "color")) == "rgb(0, 0, 0)"
    assert browser.run(
        style.format("querySelector('#subject-rows').parentElement", "maxHeight")
    ) == ("none")
    axis = "document.querySelector('#charts svg .role-axis-title text')"
    assert browser.run(f"getComputedStyle({axis}).fill") == "rgb(68, 76, 84)"
    assert len(browser.ask("Page.printToPDF")["data"]) > 20_000
    browser.ask("Emulation.setEmulatedMedia", media="", features=[])
    calm(browser, path)


def test_what_was_not_checked_has_a_colour_of_its_own(browser, page):
    path = page("check", CHECKPOINTS / "bnb-nf4")
    browser.open(path)
    fills = browser.run(
        "Object.fromEntries([...document.querySelectorAll('#map .mark-rect path')].map((one) =>"
        "[one.getAttribute('aria-label').split('worst finding: ')[1].split(';')[0],"
        "one.getAttribute('fill')]))"
    )
    assert set(fills) == {"no finding", "not checked"}
    assert fills["no finding"] != fills["not checked"]
    calm(browser, path)


def test_no_page_is_wider_than_the_screen(browser, page, hostile):
    path = page("compare", *hostile)
    for width in (1280, 400):
        browser.open(path, width=width)
        assert browser.run("document.documentElement.scrollWidth") <= width
        wide = "document.querySelector('#subject-rows').offsetWidth"
        assert browser.run(wide) < 2200  # a name of 10,000 letters is cut and wrapped
