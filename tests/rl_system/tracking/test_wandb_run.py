import re

import pytest

from rl_system.config.load import build_config
from rl_system.tracking.tracker import Tracker
from rl_system.tracking.wandb_run import resolve_mode


@pytest.fixture
def no_login(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return tmp_path / "netrc"


def test_charts_go_online_only_with_a_key(no_login, monkeypatch):
    assert resolve_mode("auto") == "offline"
    no_login.write_text("machine api.wandb.ai login user password key\n")
    assert resolve_mode("auto") == "online"
    no_login.unlink()
    monkeypatch.setenv("WANDB_API_KEY", "key")
    assert resolve_mode("auto") == "online"
    assert resolve_mode("offline") == "offline"


def test_an_offline_run_charts_rewards_against_wall_clock_and_resumes_under_one_id(no_login, tmp_path):
    values = {"name": "run", "output": str(tmp_path), "steps": 2, "tracking": {"progress": False}}
    config = build_config(values)
    for resume_step in (None, 1):
        with Tracker(config, resume_step=resume_step) as tracker:
            tracker.step((resume_step or 0) + 1, {"reward/mean": 0.5})
    files = sorted((config.directory / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len({path.name for path in files}) == 1
    recorded = files[0].read_bytes()
    for pattern in (rb"reward/\*", rb"eval/\*"):
        assert re.search(pattern + rb".{1,8}time/wall_clock_s", recorded, re.DOTALL)
