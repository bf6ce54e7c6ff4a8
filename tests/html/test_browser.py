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
    assert "cost: snr db" in words
    assert browser.run("document.querySelector('tr.picked button').textContent") == (
        "blk.2.attn_k.weight"
    )
    before = browser.run(f"document.querySelector(\"{cell}\").getAttribute('fill')")
    browser.run(
        "(() => { const one = document.getElementById('metric'); one.value ="
        "[...one.options].find((each) => each.text === 'max steps').value;"
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
