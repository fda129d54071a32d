import pytest

from rl_system.config.load import build_config
from rl_system.config.resumption import RULES, Change, May, changes, leaf_names, refuse_bound
from rl_system.errors import UserError


def config(**overrides) -> dict:
    words = [word for key, value in overrides.items() for word in (f"--{key.replace('__', '.')}", str(value))]
    return build_config({"name": "run"}, words).model_dump(mode="json")


def test_every_key_of_the_configuration_is_said_to_may_change_on_a_resume_or_not():
    """A key that is new: add it to the table, with the reason where it is bound."""
    assert list(RULES) == leaf_names()
    assert all(rule.reason for rule in RULES.values() if rule.may is not May.CHANGE)


def test_what_is_the_same_is_no_change():
    assert changes(config(), config(), {}, {}) == []


@pytest.mark.parametrize(
    ("overrides", "old"),
    [
        ({"seed": 1}, "0"),
        ({"environment__shuffle_window": 4}, "None"),
        ({"environment__split": "test"}, "'train'"),
        ({"environment__user__kind": "scripted"}, "'solo'"),
        ({"model__dtype": "float64"}, "'float32'"),
        ({"model__path": "/other"}, "'smollm2-135m-instruct'"),
        ({"rollout__sampling__temperature": 0.7}, "1.0"),
        ({"rollout__max_staleness": 1}, "2"),
        ({"rollout__groups_per_batch": 2}, "4"),
        ({"algorithm__advantage": "gae"}, "'grpo'"),
        ({"warm_start__steps": 3}, "12"),
    ],
)
def test_what_the_run_is_made_of_is_refused_by_name_with_both_values(overrides, old):
    found = changes(config(), config(**overrides), {}, {})
    ((key, value),) = overrides.items()
    key = key.replace("__", ".")
    with pytest.raises(UserError, match="^--resume: ") as refusal:
        refuse_bound(found, "Start another run.")
    text = str(refusal.value)
    assert f"{key} is {value!r}, but the run has {old}" in text and RULES[key].reason in text
    assert text.endswith("Start another run.") and "\n" not in text


def test_all_that_is_refused_is_named_at_once():
    with pytest.raises(UserError, match="seed is 1.*; environment.split is 'test'"):
        refuse_bound(changes(config(), config(seed=1, environment__split="test", steps=99), {}, {}), "")


@pytest.mark.parametrize(
    "overrides",
    [
        {"steps": 50},
        {"optimizer__learning_rate": 1e-6},
        {"rollout__max_staleness": 3},
        {"rollout__groups_per_batch": 8},
        {"algorithm__objective": "cispo"},
        {"allocation__rollout": 3},
        {"checkpoint__every": 1},
        {"output": "/elsewhere"},
        {"environment__concurrency": 3},
    ],
)
def test_a_knob_may_be_turned_and_the_change_is_told_with_both_values(overrides):
    found = changes(config(), config(**overrides), {}, {})
    ((key, value),) = overrides.items()
    (change,) = found
    assert (change.key, change.new) == (key.replace("__", "."), value) and change.old != value
    refuse_bound(found, "")


def test_a_model_is_known_by_its_contents_and_not_by_where_it_lies():
    moved, same = config(model__path="/moved"), {"model.path": "abc"}
    (change,) = changes(config(), moved, same, same)
    assert change == Change("model.path", "smollm2-135m-instruct", "/moved", True) and change.allowed
    refuse_bound([change], "")
    with pytest.raises(UserError, match="model.path is '/moved', but the run has 'smollm2-135m-instruct'"):
        refuse_bound(changes(config(), moved, same, {"model.path": "other"}), "")
    with pytest.raises(UserError, match="model.path 'smollm2-135m-instruct' holds something else than when"):
        refuse_bound(changes(config(), config(), same, {"model.path": "other"}), "")


def test_a_key_that_was_not_there_yet_did_not_change():
    old = config()
    del old["tracking"]["worker_logs"], old["evaluation"]
    assert changes(old, config(), {}, {}) == []
