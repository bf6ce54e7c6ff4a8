"""Q005."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.base import ContainerRule


class MissingShard(ContainerRule, code="Q005", name="missing-shard"):
    """A part of a sharded model is not there.

    ## What it does
    Looks for every file that the index of a checkpoint names, for every tensor that the index puts
    into a shard, and for gaps in files numbered `-00001-of-00003`.

    ## Why it is bad
    The tensors of the missing part do not exist. Some loaders fill them with random numbers and
    only print a warning.

    ## How to fix it
    Download the missing file, of the same revision as the others, into the same folder. If the
    index is stale, take the index of that revision, too.

    ## Example
    `shard 'model-00002-of-00003.safetensors', which holds 87 tensors by the index (the first is
    'model.layers.10.input_layernorm.weight'), cannot be read: no such file`
    """

    severity = Severity.ERROR
    help = "download the missing file into the same folder"
    since = "0.1"
