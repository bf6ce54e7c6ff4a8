"""No rule has anything to say about healthy content, in any encoding that is registered."""

from __future__ import annotations

import pytest

from qassay.encodings import all_encodings
from qassay.run.check import check
from qassay.run.options import CheckOptions
from qassay.testing.content import FILLS, healthy
from qassay.testing.recipes import in_memory

NAMES = [name for name, encoding in all_encodings().items() if encoding.kind != "layer"]


def recipe(name, fill):
    block = all_encodings()[name].block
    return {"tensor": {"encoding": name, "shape": [160, 2 * block], "fill": fill, "seed": 7}}


@pytest.mark.parametrize("fill", [fill for fill in FILLS if fill != "zeros"])
@pytest.mark.parametrize("name", NAMES)
def test_sound_weights_give_nothing(name, fill):
    result = check(in_memory(recipe(name, fill)), CheckOptions(full_stats=True))
    assert [finding.message for finding in result.findings] == []
    assert result.complete


@pytest.mark.parametrize("name", NAMES)
def test_zeros_are_dead_and_nothing_worse(name):
    result = check(in_memory(recipe(name, "zeros")), CheckOptions())
    kind = all_encodings()[name].kind
    wanted = {"block": {"Q301", "Q402"}, "float": {"Q402"}, "integer": set()}[kind]
    assert {finding.code for finding in result.findings} == wanted


@pytest.mark.parametrize("name", NAMES)
def test_content_is_the_same_every_time(name):
    encoding = all_encodings()[name]
    for fill in FILLS:
        assert (healthy(encoding, 9, fill, 3) == healthy(encoding, 9, fill, 3)).all()
