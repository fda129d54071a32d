import pytest

from rl_system.config.load import build_config, load_config, parse_overrides
from rl_system.errors import UserError


def message(*overrides: str, **values) -> str:
    with pytest.raises(UserError) as error:
        build_config({"name": "run"} | values, list(overrides))
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_misspelt_key_is_refused_with_its_full_name_and_the_key_that_was_meant():
    text = message("--rollout.group_siz", "4")
    assert "rollout.group_siz" in text and "4" in text and "did you mean rollout.group_size?" in text


def test_a_misspelt_key_below_two_sections_is_named_in_full():
    assert "rollout.sampling.temprature" in message("--rollout.sampling.temprature", "1")


def test_a_value_of_the_wrong_kind_is_named_with_what_would_be_right():
    text = message("--model.dtype", "fp8")
    assert "model.dtype" in text and "'fp8'" in text and "'float32'" in text


def test_a_group_of_one_is_refused_where_advantages_compare_the_members_of_a_group():
    text = message("--rollout.group_size", "1")
    assert "rollout.group_size is 1" in text and "at least 2" in text


def test_sampling_that_renormalises_the_distribution_is_refused():
    assert "top_p" in message("--rollout.sampling.top_p", "0.9")


def test_greedy_rollouts_are_refused():
    assert "rollout.sampling.temperature is 0" in message("--rollout.sampling.temperature", "0")


def test_a_response_that_fills_the_whole_context_is_refused():
    text = message("--rollout.sampling.max_new_tokens", "2048")
    assert "rollout.sampling.max_new_tokens is 2048" in text and "model.max_model_len 2048" in text


REPEATABLE = {
    "deterministic": True, "rollout": {"max_staleness": 0}, "executor": {"method": "tree"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rollout.max_staleness", "1"), ("rollout.over_sample", "2"), ("environment.curriculum.enabled", "true"),
        ("executor.method", "auto"), ("allocation.mode", "auto"),
    ],
)  # fmt: skip
def test_what_depends_on_time_is_refused_in_a_deterministic_run(key, value):
    room = ["--allocation.rollout", "2"]
    assert build_config({"name": "run"} | REPEATABLE, room).deterministic
    text = message(f"--{key}", value, *room, **{name: dict(v) if isinstance(v, dict) else v for name, v in REPEATABLE.items()})
    assert "deterministic is true" in text and f"{key} is {value}: " in text


@pytest.mark.parametrize(("transport", "device", "other"), [("nccl", "cpu", "cuda"), ("gloo", "cuda", "cpu")])
def test_a_broadcast_between_other_devices_than_the_models_is_refused(transport, device, other):
    text = message("--weights.transport", transport, "--model.device", device)
    assert f"weights.transport is '{transport}'" in text and f"'{other}'" in text and "'object_store'" in text


def test_a_model_as_user_is_refused_in_a_deterministic_run():
    user = {"user": {"kind": "llm", "model": "m", "api_base": "http://127.0.0.1:1/v1"}}
    assert "environment.user.kind is llm" in message(environment=user, **REPEATABLE)


def test_every_mistake_of_a_file_is_reported_at_once():
    text = message("--steps", "0", "--optimizer.learning_rate", "-1")
    assert "steps" in text and "optimizer.learning_rate" in text


def test_an_option_without_a_value_is_refused():
    with pytest.raises(UserError, match="--steps has no value"):
        parse_overrides(["--steps"])


def test_an_override_below_a_plain_value_is_refused():
    assert "steps is a single value" in message("--steps.more", "1", steps=3)


def test_overrides_are_read_as_yaml_in_both_spellings():
    assert list(parse_overrides(["--a.b", "1e-3", "--c=null"])) == ["a.b", "c"]
    for words in (
        ["--optimizer.learning_rate", "1e-3", "--environment.shuffle_window=null", "--rollout.group_size", "+5"],
        ["--optimizer.learning_rate=1e-3", "--environment.shuffle_window", "null", "--rollout.group_size=5"],
    ):
        config = build_config({"name": "run", "environment": {"shuffle_window": 3}}, words)
        assert config.optimizer.learning_rate == 1e-3
        assert config.environment.shuffle_window is None and config.rollout.group_size == 5
    endings = build_config({"name": "run"}, ["--algorithm.endings", "{timeout: mask}"]).algorithm.endings
    assert {str(ended): treatment for ended, treatment in endings.items()} == {"timeout": "mask"}


def test_a_missing_file_and_broken_yaml_are_one_sentence_each(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        load_config(tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [")
    with pytest.raises(UserError, match="not valid YAML"):
        load_config(broken)


def test_a_resolved_configuration_loads_to_itself(tmp_path):
    import yaml

    config = build_config({"name": "run"}, ["--rollout.group_size", "5"])
    again = build_config(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))))
    assert again == config


def test_more_updates_than_groups_in_a_batch_are_refused():
    text = message("--algorithm.updates_per_batch", "5", "--rollout.groups_per_batch", "4")
    assert "algorithm.updates_per_batch is 5" in text and "rollout.groups_per_batch 4" in text


def test_a_staleness_mask_that_could_mask_nothing_is_refused():
    assert "mask_staleness_above is 2" in message("--algorithm.mask_staleness_above", "2", "--rollout.max_staleness", "2")
