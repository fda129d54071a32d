"""The README's way to a run on a cluster, as it stands there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def submission() -> str:
    """The block that submits a run."""
    section = re.search(r"## On a Ray cluster\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    (block,) = [text for text in re.findall(r"```bash\n(.*?)```", section, re.DOTALL) if "job submit" in text]
    return block.strip()


def from_another_folder(folder: Path) -> str:
    """The same, where its first line alone is typed in the checkout."""
    assignment, command = submission().split("\n", 1)
    assert assignment == "checkout=$PWD"
    return f"{assignment}\ncd {folder}\n{command}"
