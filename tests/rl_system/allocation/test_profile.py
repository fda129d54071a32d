from pathlib import Path

import pytest
import yaml

from rl_system.allocation.planner import update_estimate
from rl_system.allocation.profile import Profile, given_numbers, load_profile
from rl_system.errors import UserError

PROFILES = sorted(Path("configs/profiles").glob("*.yaml"))


@pytest.fixture
def values() -> dict:
    return yaml.safe_load(Path("configs/profiles/qwen3-8b-tau2.yaml").read_text())


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_says_of_every_number_where_it_comes_from(path):
    profile = load_profile(path)
    sources = [key for keys in profile.sources.model_dump().values() for key in keys]
    assert sorted(sources) == sorted(given_numbers(profile)) and len(sources) > 10


def write(tmp_path: Path, values: dict) -> Path:
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_a_number_without_a_source_is_refused(tmp_path, values):
    values["workload"]["turns"] = 10
    with pytest.raises(UserError, match=r"missing \['workload.turns'\]"):
        load_profile(write(tmp_path, values))


def test_a_source_of_no_number_is_refused(tmp_path, values):
    values["sources"]["fitted"].append("workload.tool_seconds")
    with pytest.raises(UserError, match=r"unknown \['workload.tool_seconds'\]"):
        load_profile(write(tmp_path, values))


def test_a_misspelt_key_is_refused_by_its_full_name(tmp_path, values):
    values["generation"]["token_per_s"] = 1
    with pytest.raises(UserError, match=r"generation\.token_per_s is 1"):
        load_profile(write(tmp_path, values))


def test_a_profile_without_a_method_to_train_is_refused(tmp_path, values):
    values["training"] = {}
    with pytest.raises(UserError, match="training is {}"):
        load_profile(write(tmp_path, values))


def test_a_larger_cluster_gets_a_larger_batch_and_pool(values):
    scaled = Profile.model_validate(values).scaled(64)
    assert (scaled.accelerators, scaled.workload.groups_per_batch, scaled.workload.concurrency) == (64, 128, 1024)


def test_what_parts_repeat_is_the_same_work_whatever_the_batch(values):
    """n accelerators with n times the batch, cut into n times as many parts: each has its own tokens, as before, and the path."""
    one = Profile.model_validate(values)

    def seconds_of_a_part(profile: Profile, parts: int) -> float:
        training = profile.training["tree"].model_copy(update={"overhead_s": 0.0})
        return update_estimate(profile, training, parts)

    whole = seconds_of_a_part(one, 1)
    path = 0.2 * whole
    assert seconds_of_a_part(one, 4) == pytest.approx(path + 0.8 * whole / 4)
    assert seconds_of_a_part(one.scaled(64), 32) == pytest.approx(path + (8 * whole - path) / 32)
    assert one.scaled(2).training["tree"].repeated == pytest.approx(0.8)
    assert one.scaled(8) == one
