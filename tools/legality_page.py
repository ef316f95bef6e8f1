"""docs/legality.md: what makes a configuration legal, written from the rules themselves.

`python -m tools.legality_page --write` brings the page up to date, `--check` says whether it is; without
either the page goes to stdout.
"""

import argparse
import ast
import dataclasses
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.support import support_table, supported
from tuner.search_spaces import architecture
from tuner.search_spaces.architecture import ARCHITECTURES, KIB, Architecture
from tuner.search_spaces.family import KernelFamily, families
from tuner.search_spaces.rule import Rule, parameters

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/legality.md"
RENEW = "python -m tools.legality_page --write"

EVERYWHERE = "everywhere"
_SHORT = 76

_NOTICED = {
    "lowered": "JAX, lowering",
    "compiled": "ptxas, compiling",
    "ran": "the driver, running",
    "never": "nobody",
}

_INTRODUCTION = f"""\
# What makes a configuration legal

Generated from the rules in `search_spaces/`, which decide: `{RENEW}` renews it.

A rule is one predicate over named columns: the fields of the problem and of the configuration, and what is
derived from them. `have` is what it looks at and `need` what must hold. *Noticed by* is who would refuse a
configuration that breaks it: *{_NOTICED["lowered"]}* (a Python error) and *{_NOTICED["compiled"]}* (no
program) cost a compilation; *{_NOTICED["ran"]}* costs the CUDA context; *{_NOTICED["never"]}* is a wrong
result or a hang that nothing reports. *Own kernel* marks what the structure of our kernel asks for, not JAX
or the hardware.

`tuner explain KERNEL ... --config name=value,...` tells which rules a configuration breaks, and the nearest
legal one; `tuner space KERNEL ...` how many points each rule removed.
"""

_CANONICAL = """\
Where several configurations generate the same program, one of them is canonical: it alone is counted and
searched. The others are legal, and run.
"""


# Words


def _text(template: str) -> str:
    """A rule's template with its placeholders, and every other name with an underscore, shown as code."""
    text = re.sub(r"\b(\w+)=\{\1\}", r"{\1}", template)
    text = re.sub(r"\b(\w+)=\{(\w+)\}", r"{\1} = {\2}", text)
    text = re.sub(r"\{(\w+)\}|(?<![\w.`/])([a-z]+(?:_[a-z]+)+(?:=\w+)?)(?![\w.`/(])", r"`\1\2`", text)
    return _cell(text)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;")


@functools.cache
def _jax_tree() -> str:
    """Where JAX's files of the oldest version that we allow can be read."""
    oldest = re.search(r'"jax>=([\d.]+)', (ROOT / "pyproject.toml").read_text())
    return f"https://github.com/jax-ml/jax/blob/jax-v{oldest[1]}" if oldest else ""


def _source(text: str) -> str:
    """A source, each JAX file in it a link."""
    return re.sub(r"jax/[\w/]+\.py", lambda found: f"[{found[0]}]({_jax_tree()}/{found[0]})", _cell(text))


def _noticed(rule: Rule) -> str:
    own = "; own kernel" if rule.source.startswith("own kernel") else ""
    return _NOTICED[rule.noticed] + own


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (header, ("---",) * len(header), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _meanings(documented: type[Any]) -> list[tuple[tuple[str, ...], str]]:
    """What a dataclass's docstring says of its fields, in their order: `name, name: meaning.`"""
    names = [field.name for field in dataclasses.fields(documented)]
    known = "|".join(names)
    told = " ".join((inspect.getdoc(documented) or "").split())
    parts = re.split(rf"\b((?:{known})(?:, (?:{known}))*): ", told)
    found = [(tuple(given.split(", ")), text.strip(" ;.")) for given, text in itertools.batched(parts[1:], 2)]
    for name in names:
        if not any(name in given for given, _ in found):
            # Told along with another field, or not at all.
            others = (given[0] for given, text in found if f"`{name}`" in text)
            found.append(((name,), next((f"see `{other}`" for other in others), "")))
    return sorted(found, key=lambda meaning: names.index(meaning[0][0]))


# Families


def _owners() -> dict[tuple[str, ...], list[str]]:
    """The families that have a rule, by all that is told of it."""
    owners: dict[tuple[str, ...], list[str]] = {}
    for family in families().values():
        for rule in family.rules:
            owners.setdefault(_told(rule), []).append(family.name)
    return owners


def _told(rule: Rule) -> tuple[str, ...]:
    return tuple(getattr(rule, f.name) for f in dataclasses.fields(rule) if f.name != "holds")


def _places() -> dict[str, list[Rule]]:
    """Rules by the section that tells them: one of several families stands under EVERYWHERE, once."""
    owners = _owners()
    places: dict[str, dict[tuple[str, ...], Rule]] = {EVERYWHERE: {}, **{name: {} for name in families()}}
    for family in families().values():
        for rule in family.rules:
            place = EVERYWHERE if len(owners[_told(rule)]) > 1 else family.name
            places[place].setdefault(_told(rule), rule)
    return {place: list(rules.values()) for place, rules in places.items()}


def _anchor(place: str, rule: Rule) -> str:
    return f"{place}.{rule.id}"


def _rule_tables(place: str, rules: list[Rule]) -> Iterator[str]:
    kinds: tuple[tuple[str, str, dict[str, Callable[[Rule], str]]], ...] = (
        (
            "illegal",
            "### Rules\n",
            {
                "Have": lambda rule: _text(rule.have),
                "Need": lambda rule: _text(rule.need),
                "Noticed by": _noticed,
                "Remedy": lambda rule: _text(rule.remedy),
                "Source": lambda rule: _source(rule.source),
            },
        ),
        (
            "canonical",
            f"### Canonical spellings\n\n{_CANONICAL}",
            {
                "Have": lambda rule: _text(rule.have),
                "Canonical": lambda rule: _text(rule.need),
                "Spelt so": lambda rule: _text(rule.remedy),
                "Because": lambda rule: _source(rule.source),
            },
        ),
    )
    for kind, title, columns in kinds:
        if found := [rule for rule in rules if rule.kind == kind]:
            if place == EVERYWHERE:
                columns["Families"] = _sharers
            yield title
            yield _table(
                ("Rule", *columns),
                (
                    (f'<a id="{_anchor(place, rule)}"></a>`{rule.id}`', *(c(rule) for c in columns.values()))
                    for rule in found
                ),
            )


def _sharers(rule: Rule) -> str:
    names = _owners()[_told(rule)]
    return "all" if len(names) == len(families()) else ", ".join(f"[{name}](#{name})" for name in names)


def _family_section(family: KernelFamily, rules: list[Rule]) -> Iterator[str]:
    module = sys.modules[family.config_class.__module__]
    yield f"## {family.name}\n\n{_first_line(module)}\n"
    yield f"### What it runs: `{family.kernel}`\n"
    yield _table(*support_table(family))
    yield "### Configuration\n"
    yield _table(("Field", "Takes", "Default", "Meaning"), _field_rows(family.config_class))
    yield from _rule_tables(family.name, rules)
    elsewhere = [rule for rule in family.rules if rule not in rules]
    if elsewhere:
        links = ", ".join(f"[`{rule.id}`](#{_anchor(EVERYWHERE, rule)})" for rule in elsewhere)
        yield f"And [everywhere](#{EVERYWHERE}): {links}.\n"
    yield "### Derived\n"
    yield "Pure functions of the above; those in bold are what `tuner explain` shows.\n"
    yield _table(("Quantity", "Is"), _derived_rows(family))


def _field_rows(config_class: type[Any]) -> Iterator[tuple[str, ...]]:
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    for names, meaning in _meanings(config_class):
        choices = [fields[name].metadata.get("choices") for name in names]
        taken = dict.fromkeys(
            "an integer" if c is None else ", ".join(f"`{str(v).lower() if v is None else v}`" for v in c)
            for c in choices
        )
        defaults = (str(fields[name].default) for name in names)
        yield (
            ", ".join(f"`{name}`" for name in names),
            "; ".join(taken),
            ", ".join(f"`{d.lower() if d == 'None' else d}`" for d in defaults),
            _cell(meaning),
        )


def _derived_rows(family: KernelFamily) -> Iterator[tuple[str, ...]]:
    for name, function in family.derived.items():
        formula = _formula(function)
        shown = f"`{formula}`" if formula else f"of {', '.join(f'`{p}`' for p in parameters(function))}"
        yield f"**`{name}`**" if name in family.reported else f"`{name}`", shown.replace("|", r"\|")


def _formula(function: Callable[..., Any]) -> str:
    """What a lambda computes, as it stands in the source; "" for a long one and for a function."""
    file = inspect.getsourcefile(function)
    for node in ast.walk(_parsed(file)) if file else ():
        if (
            isinstance(node, ast.Lambda)
            and node.lineno == function.__code__.co_firstlineno
            and tuple(a.arg for a in node.args.args) == parameters(function)
        ):
            source = ast.get_source_segment(Path(file or "").read_text(), node.body) or ""
            text = " ".join(source.split()).replace("( ", "(").replace(" )", ")")
            return text if len(text) <= _SHORT else ""
    return ""


@functools.cache
def _parsed(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text())


# The page


def _architectures() -> Iterator[str]:
    told = ("smem_optin_bytes", "max_cluster_blocks", "synchronisation")
    abilities = [name for name in vars(Architecture) if name.startswith("has_")]

    def cells(row: Architecture) -> Iterator[str]:
        yield row.name
        yield f"{row.smem_optin_bytes} ({row.smem_optin_bytes // KIB} KiB)"
        yield str(row.max_cluster_blocks)
        yield ", ".join(f"`{kind}`" for kind in row.synchronisation)
        yield from ("yes" if getattr(row, name) else "no" for name in abilities)
        yield row.reference_device
        yield ", ".join(f"[{name}](#{name})" for name in families() if supported(name, row.name)) or "none"

    yield "## Architectures\n"
    header = ("Architecture", *(f"`{name}`" for name in (*told, *abilities)), "Stands for it", "Families")
    yield _table(header, map(tuple, map(cells, ARCHITECTURES.values())))
    for names, meaning in _meanings(Architecture):
        if meaning and set(names) & set(told):
            yield f"- {', '.join(f'`{name}`' for name in names)}: {_cell(meaning)}"
    yield from (f"- `{name}`: {_first_line(getattr(Architecture, name))}" for name in abilities)
    yield f"\n{(inspect.getdoc(architecture) or '').partition('\n\n')[2]}\n"


def _silent(places: Mapping[str, list[Rule]]) -> Iterator[str]:
    yield "## What JAX accepts and must not run\n"
    yield "It compiles, and then faults, hangs, or returns wrong numbers that pass for a fast kernel.\n"
    yield _table(
        ("Rule", "Of", "Have", "Need", "Noticed by", "Source"),
        (
            (
                f"[`{r.id}`](#{_anchor(place, r)})",
                place,
                _text(r.have),
                _text(r.need),
                _noticed(r),
                _source(r.source),
            )
            for noticed in ("ran", "never")
            for place, rules in places.items()
            for r in rules
            if r.kind == "illegal" and r.noticed == noticed
        ),
    )


def _index(places: Mapping[str, list[Rule]]) -> Iterator[str]:
    told: dict[str, list[str]] = {}
    for place, rules in places.items():
        for rule in rules:
            told.setdefault(rule.id, []).append(f"[{place}](#{_anchor(place, rule)})")
    yield "## Rules by id\n"
    yield _table(("Rule", "Told under"), ((f"`{name}`", ", ".join(told[name])) for name in sorted(told)))


def page() -> str:
    """The whole page."""
    places = _places()
    parts = [_INTRODUCTION]
    contents = [
        "Rules by id",
        "Architectures",
        "What JAX accepts and must not run",
        "Everywhere",
        *families(),
    ]
    parts.append("\n".join(f"- [{title}](#{title.lower().replace(' ', '-')})" for title in contents) + "\n")
    parts += [*_index(places), *_architectures(), *_silent(places)]
    parts.append("## Everywhere\n\nRules that several families share, told once.\n")
    parts += _rule_tables(EVERYWHERE, places[EVERYWHERE])
    for family in families().values():
        parts += _family_section(family, places[family.name])
    return "\n".join(parts)


def main() -> None:
    """Prints, checks or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    what.add_argument("--check", action="store_true", help="exit 1 if it is not up to date")
    options = parser.parse_args()
    if options.write:
        PAGE.write_text(page())
    elif options.check:
        if not PAGE.exists() or PAGE.read_text() != page():
            sys.exit(f"{PAGE.relative_to(ROOT)} is stale: {RENEW}")
    else:
        sys.stdout.write(page())


if __name__ == "__main__":
    main()
