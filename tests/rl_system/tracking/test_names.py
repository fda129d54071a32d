import re
from pathlib import Path

import rl_system
from rl_system.tracking.names import METRICS, describe, unlisted

ROOT = Path(rl_system.__file__).parents[1]
GROUPS = ("reward", "train", "off_policy", "rollout", "queue", "perf", "time", "tree", "controller", "eval")
WRITTEN = re.compile(rf"""f?"((?:{"|".join(GROUPS)})/[^"\s]+)\"""")


def test_every_metric_name_in_the_source_is_listed_with_its_meaning():
    found = {}
    for package in ("rl_system", "actors", "launch"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in WRITTEN.findall(path.read_text()):
                found[re.sub(r"\{.*?\}", "part", name)] = path.relative_to(ROOT)
    assert "train/loss" in found
    assert {name: str(found[name]) for name in unlisted(found) if not name.endswith("*")} == {}


def test_every_listed_metric_belongs_to_a_group_and_says_what_it_means():
    for name, meaning in METRICS.items():
        assert name == "step" or name.split("/")[0] in GROUPS
        assert meaning.endswith(".")


def test_a_family_covers_its_members_only():
    assert describe("reward/part/db") == METRICS["reward/part/*"]
    assert describe("reward/parts") is None
    assert unlisted(["train/loss", "train/lost"]) == ["train/lost"]
