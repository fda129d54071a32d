import json

import pytest

from launch import plan

PROFILE = "configs/profiles/qwen3-8b-tau2.yaml"


def test_the_plan_is_one_json_object_for_each_method(capsys):
    assert plan.main(["--profile", PROFILE, "--accelerators", "4", "--steps", "20", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["method"] for line in lines] == ["tree", "dense"]
    for line in lines:
        assert line["rollout"] + line["trainer"] == 4
        assert line["step_s"] > 0 and line["groups_per_s"] > 0


def test_the_plan_for_people_names_the_gain(capsys):
    assert plan.main(["--profile", PROFILE, "--accelerators", "4", "--steps", "20"]) == 0
    out = capsys.readouterr().out
    assert "best split" in out and "tree against dense" in out


@pytest.mark.parametrize(
    "arguments, word",
    [
        (["--profile", "configs/profiles/none.yaml"], "none.yaml"),
        (["--profile", PROFILE, "--accelerators", "1"], "is 1;"),
    ],
)
def test_a_mistake_is_one_paragraph_without_a_traceback(capsys, arguments, word):
    assert plan.main(arguments) == 2
    captured = capsys.readouterr()
    assert word in captured.err and "Traceback" not in captured.err and captured.out == ""
