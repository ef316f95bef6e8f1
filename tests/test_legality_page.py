"""docs/legality.md says what the rules say, and its links lead somewhere."""

import importlib.util
import itertools
import re
from pathlib import Path

import pytest

from tools import legality_page, support
from tuner.search_spaces.architecture import ARCHITECTURES, reference_target
from tuner.search_spaces.family import families

TYPES = ("int8", "int32", "float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")


@pytest.fixture(scope="module")
def page() -> str:
    return legality_page.page()


def test_page_is_up_to_date(page: str) -> None:
    written = legality_page.PAGE.read_text() if legality_page.PAGE.exists() else ""
    assert written == page, f"docs/legality.md is stale: {legality_page.RENEW}"


def test_every_rule_field_and_quantity_is_told(page: str) -> None:
    for family in families().values():
        section = page.partition(f"\n## {family.name}\n")[2].partition("\n## ")[0]
        assert all(f"`{name}`" in section for name in family.config_class.__dataclass_fields__)
        assert all(f"`{name}`" in section for name in family.derived)
        for rule in family.rules:
            assert f'<a id="{family.name}.{rule.id}">' in section or f"(#everywhere.{rule.id})" in section


def test_links_lead_to_one_place(page: str) -> None:
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    anchors = re.findall(r'<a id="([^"]+)">', page) + [h.lower().replace(" ", "-") for h in headings]
    assert len(set(anchors)) == len(anchors)
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= set(anchors)


def test_tables_are_rectangles(page: str) -> None:
    lines = page.splitlines()
    for is_table, rows in itertools.groupby(lines, key=lambda line: line.startswith("|")):
        if is_table:
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


def test_cited_files_of_jax_exist(page: str) -> None:
    spec = importlib.util.find_spec("jax")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent.parent
    cited = set(re.findall(r"\[(jax/[\w/]+\.py)\]", page))
    assert cited
    assert not [name for name in cited if not (root / name).is_file()]


def test_placeholders_become_code() -> None:
    assert legality_page._text("m={m}") == "`m`"
    assert legality_page._text("a multiple of tile_k={tile_k}") == "a multiple of `tile_k`"
    assert legality_page._text("set width={extent}") == "set `width` = `extent`"
    assert legality_page._text("set tile_m=1 | <b>") == r"set `tile_m=1` \| &lt;b>"


@pytest.mark.parametrize("name", families())
def test_support_is_what_the_family_says(name: str) -> None:
    """Every combination of common types, where the page asks only along lines that lead on."""
    family = families()[name]
    asked = support._choices(family.problem_class)
    asked |= {field: TYPES for field in asked if field.endswith("dtype")}
    problems = [
        family.problem_class.from_dict(dict(zip(asked, values, strict=True)))
        for values in itertools.product(*asked.values())
    ]
    for arch in ARCHITECTURES:
        target, found = reference_target(arch), support.supported(name, arch)
        assert not [p for p in problems if (not family.supports(p, target)) != (p in found)]


def test_boxes_cover_their_rows_once() -> None:
    rows = (("a", 1, "x"), ("a", 2, "x"), ("b", 1, "x"), ("b", 2, "x"), ("c", 1, "y"))
    boxes = list(support._boxes(rows))
    assert boxes == [(("a", "b"), (1, 2), ("x",)), (("c",), (1,), ("y",))]
    assert sorted(row for box in boxes for row in itertools.product(*box)) == sorted(rows)
