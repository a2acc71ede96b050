"""docs/architecture.md names modules that exist, all packages, and their order in the import contract."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = REPOSITORY / "src" / "saturnmq"
PAGE: Final = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
SUBJECTS: Final = (
    "frame layout", "rebalance strategies", "election", "group commit", "long polling", "retry", "half messages", "recovery",
    "tag filter", "transactional sink",
)  # fmt: skip
PATH: Final = re.compile(r"(?<![\w/.-])([a-z_]+/(?:[a-z_]+/)*(?:[a-z_]+\.(?:py|md))?|[a-z_]+\.py)(?![\w-])")


def exists(name: str) -> bool:
    """Whether a path is one of the sources, of the repository, or below a package, of which the text says which one."""
    packages = [path for path in SOURCE.iterdir() if (path / "__init__.py").exists()]
    return any((root / name).exists() for root in (SOURCE, REPOSITORY, *packages))


def test_named_paths_exist() -> None:
    names = set(PATH.findall(PAGE))
    assert len(names) > 60
    assert sorted(name for name in names if not exists(name)) == []


def test_every_package_has_a_row_in_the_order_of_the_import_contract() -> None:
    rows = dict(re.findall(r"^\| \d+ \| `([a-z_]+)(?:/|\.py)` \| (.+) \|$", PAGE, re.MULTILINE))
    packages = {path.stem for path in SOURCE.glob("[a-z]*") if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(rows) == packages
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["name"] == "imports point downward")
    order = [name for layer in layers for name in re.findall(r"saturnmq\.(\w+)", layer)]
    assert list(rows) == order


def test_each_subject_is_found_from_the_page() -> None:
    subjects = re.findall(r"^\| ([^|]+) \| `[a-z_]+/", PAGE, re.MULTILINE)
    for subject in SUBJECTS:
        assert any(each.startswith(subject) for each in subjects), subject


def test_functions_and_tests_named_in_the_steps_exist() -> None:
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in [*SOURCE.rglob("*.py"), *(REPOSITORY / "tests").rglob("*.py")]
    )
    for name in ("REQUEST_HEADERS", "RESPONSE_HEADERS", "NOT_SERVED", "ROUTES", "ADMIN", "_STREAM_ONLY", "_BATCH_ONLY"):
        assert re.search(rf"^{name}(: Final.*)? ?=|^{name}: ", sources, re.MULTILINE), name
    for name in (*re.findall(r"`(test_[a-z0-9_]+)`", PAGE), "_check_together", "key", "emit", "show_rows"):
        assert f"def {name}(" in sources, name
    for name in ("SourceOptions", "SinkOptions", "RequestCode", "NoFields", "AdminContext", "Route", "ConfigError"):
        assert f"class {name}" in sources, name
