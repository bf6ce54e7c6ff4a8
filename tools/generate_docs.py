"""Writes the pages of docs/ that follow from code: rules, encodings, command line, report schema.

python tools/generate_docs.py            # write them
python tools/generate_docs.py --check    # write nothing; exit 1 when a page is out of date
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from qassay.cli.config import KEYS
from qassay.cli.main import cli
from qassay.cli.subjects import schema
from qassay.core.pages import page
from qassay.encodings.base import BlockEncoding, Encoding
from qassay.encodings.layers.base import LayerEncoding
from qassay.encodings.registry import all_encodings
from qassay.report.manual import (
    drawing,
    examples,
    fields_of,
    manual_parts,
    part_names,
    part_rows,
    row,
    what,
)
from qassay.rules.base import Rule
from qassay.rules.registry import all_rules

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
NOTE = "<!-- Written by tools/generate_docs.py from the code: change that, and run it again. -->"


def pages() -> dict[str, str]:
    """Return every generated page by its path under docs/."""
    made = {
        "rules/index.md": _rules_index(),
        "encodings.md": _encodings(),
        "cli.md": _command_line(),
        "report-schema.json": schema(),
    }
    for rule in all_rules():
        made[f"rules/{rule.code}.md"] = _rule(rule)
    return made


def _page(*blocks: str) -> str:
    return "\n\n".join([NOTE, *blocks]) + "\n"


def _table(titles: list[str], rows: Iterator[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def _rules_index() -> str:
    rows = (
        [
            f"[{rule.code}]({rule.code}.md)",
            rule.name,
            rule.severity.label,
            rule.certainty.value,
            rule.title(),
        ]
        for rule in all_rules()
    )
    return _page(
        "# Rules",
        "Severity says how bad it is if it is true, certainty how sure it is. A policy can change "
        'the severity: `[tool.qassay]` with `severity = { Q203 = "warning" }`.',
        _table(["code", "name", "severity", "certainty", "what it finds"], rows),
    )


def _rule(rule: type[Rule]) -> str:
    parts = manual_parts(rule)
    facts = f"*{rule.severity.label}, {rule.certainty.value}, since {rule.since}*"
    blocks = [f"# {rule.code} {rule.name}", facts, parts[0][1]]
    for heading, text in parts[1:]:
        blocks += [f"## {heading}", text]
    return _page(*blocks)


def _encodings() -> str:
    every = list(all_encodings().values())
    layers = [one for one in every if issubclass(one, LayerEncoding)]
    titles = ["encoding", "block", "bytes", "bits/weight", "weight", "stored as", "what"]
    families = ["encoding", "tensors", "weight", "what"]
    blocks = [
        "# Encodings",
        "Everything here follows from one declaration an encoding; see `src/qassay/encodings/`.",
        _table(titles, (_row(one) for one in every if not issubclass(one, LayerEncoding))),
        "Weights that are kept in several tensors: bits a weight vary with the width of a code and "
        "the groups. Of `a or b` one is there; tensors in brackets may be left out.",
        _table(families, (_layer_row(one) for one in layers)),
    ]
    for one in every:
        if issubclass(one, BlockEncoding):
            blocks += _encoding(one)
    for layer in layers:
        blocks += _layer(layer)
    return _page(*blocks)


def _row(encoding: type[Encoding]) -> list[str]:
    name, block, size, bits, _, formula, labels = row(encoding)
    linked = f"[{name}](#{_anchor(name)})" if issubclass(encoding, BlockEncoding) else name
    return [linked, block, size, bits, f"`{formula}`", labels, encoding.title()]


def _layer_row(encoding: type[LayerEncoding]) -> list[str]:
    names = ", ".join(part_names(encoding))
    link = f"[{encoding.id}](#{_anchor(encoding.id)})"
    return [link, names, f"`{encoding.formula}`", encoding.title()]


def _layer(encoding: type[LayerEncoding]) -> list[str]:
    return [
        f"## {encoding.id}",
        _markdown(page(encoding)),
        f"`weight = {encoding.formula}`",
        _table(["tensor", "holds", "dtype", "needed"], (list(one) for one in part_rows(encoding))),
        "Sources: " + "; ".join(encoding.sources) + ".",
    ]


def _markdown(text: str) -> str:
    """Return a docstring with its `::` drawings as fenced blocks."""
    pieces: list[str] = []
    drawn = False
    for block in text.split("\n\n"):
        if block.strip() == "::":
            drawn = True
        elif drawn:
            pieces.append(f"```text\n{inspect.cleandoc(block)}\n```")
            drawn = False
        else:
            pieces.append(block.replace("\n", " "))
    return "\n\n".join(pieces)


def _anchor(heading: str) -> str:
    return "".join(char for char in heading.lower() if char.isalnum() or char in "_-")


def _encoding(encoding: type[BlockEncoding]) -> list[str]:
    rows = (
        [field.name, str(field.offset), str(field.nbytes), what(field)]
        for field in fields_of(encoding)
    )
    return [
        f"## {encoding.id}",
        _markdown(page(encoding)),
        f"`weight = {encoding.formula}`",
        "```text\n" + "\n".join(drawing(encoding)) + "\n```",
        _table(["field", "byte", "bytes", "holds"], rows),
        "Where integers lie, low bits first:",
        "```text\n" + "\n".join(examples(encoding)) + "\n```",
        "Sources: " + "; ".join(encoding.sources) + ".",
    ]


def _command_line() -> str:
    context = click.Context(cli, info_name="qassay")
    names = cli.list_commands(context)
    commands = {name: cli.get_command(context, name) for name in names}
    rows = (
        [f"[{name}](#qassay-{name})", _summary(each)] for name, each in commands.items() if each
    )
    blocks = [
        "# Command line",
        _help(cli),
        _table(["command", "what"], rows),
        "Exit codes, the same for every command and output format: 0 clean and complete; 1 "
        "findings at or above `--fail-on`; 2 usage, configuration or internal fault; 3 input "
        "unreadable or not fully checked. Of several, the first of 2, 1, 3, 0 that applies.",
        "The command line wins over the environment, and that over `[tool.qassay]` in "
        "pyproject.toml:",
        _table(["setting", "allowed"], ([f"`{name}`", key.allowed] for name, key in KEYS.items())),
    ]
    for name, command in commands.items():
        if command is not None:
            blocks += _command(name, command)
    return _page(*blocks)


def _summary(command: click.Command) -> str:
    return _help(command).partition("\n\n")[0]


def _help(command: click.Command) -> str:
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)


def _command(name: str, command: click.Command) -> list[str]:
    arguments = [
        param.metavar or param.human_readable_name
        for param in command.params
        if isinstance(param, click.Argument)
    ]
    options = [param for param in command.params if isinstance(param, click.Option)]
    rows = (
        [
            "`" + "`, `".join(sorted(option.opts, key=len)) + "`",
            _values(option),
            f"`{option.envvar}`" if option.envvar else "",
            option.help or "",
        ]
        for option in options
    )
    return [
        f"## qassay {name}",
        "```text\n" + " ".join(["qassay", name, "[OPTIONS]", *arguments]) + "\n```",
        _help(command),
        _table(["option", "values", "environment", "what"], rows),
    ]


def _values(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return ", ".join(
            f"**{choice}**" if choice == option.default else str(choice)
            for choice in option.type.choices
        )
    return "" if option.is_flag else (option.metavar or option.type.name.split()[0].upper())


def _stale(made: dict[str, str]) -> list[Path]:
    """Return generated pages on disk whose subject is gone."""
    found = (DOCS / "rules").glob("Q*.md")
    return [path for path in found if f"rules/{path.name}" not in made]


def check(made: dict[str, str]) -> int:
    """Print how the pages on disk differ from what they should be; return the exit code."""
    differs = False
    for name, text in made.items():
        path = DOCS / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old != text:
            differs = True
            diff = difflib.unified_diff(
                old.splitlines(),
                text.splitlines(),
                f"docs/{name}",
                f"docs/{name} (from code)",
                lineterm="",
            )
            print("\n".join(list(diff)[:40]))
    for path in _stale(made):
        differs = True
        print(f"docs/rules/{path.name} is about a rule that is gone")
    if differs:
        print("\ndocs are out of date; run: python tools/generate_docs.py", file=sys.stderr)
    return int(differs)


def write(made: dict[str, str]) -> None:
    """Write every page, and remove those whose subject is gone."""
    for name, text in made.items():
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    for path in _stale(made):
        path.unlink()


def main() -> int:
    """Write or check the pages."""
    made = pages()
    if "--check" in sys.argv[1:]:
        return check(made)
    write(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
