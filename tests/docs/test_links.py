"""What the README and the pages of `docs/` point at is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_one(page):
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_every_page_can_be_found_from_the_readme():
    text = PAGES[0].read_text()
    assert not [page.name for page in PAGES[1:] if f"(docs/{page.name})" not in text]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configurations_and_commands_that_a_page_names_exist(page):
    text = page.read_text()
    files = set(re.findall(r"\bconfigs/[\w/.-]+\.yaml", text)) - {"configs/my_run.yaml", "configs/X.yaml"}
    commands = {name.replace(".", "/") for name in re.findall(r"-m (launch\.\w+)", text)}
    assert not [name for name in files if not (ROOT / name).is_file()]
    assert not [name for name in commands if not ((ROOT / f"{name}.py").is_file() or (ROOT / name).is_dir())]
