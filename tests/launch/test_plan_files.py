"""Files and sizes that a plan cannot have."""

import pytest

from launch import plan

PROFILE = ["--profile", "configs/profiles/qwen3-8b-tau2.yaml"]


@pytest.mark.parametrize("place", ["/proc/x/y.yaml", "/etc/passwd/y.yaml"])
def test_a_profile_that_cannot_be_written_is_one_paragraph(place, capsys):
    assert plan.main([*PROFILE, "--write", place]) == 2
    assert f"--write {place} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--accelerators", "--steps"])
def test_a_simulation_that_would_never_end_is_refused(option, capsys):
    assert plan.main([*PROFILE, option, "1000000000000"]) == 2
    assert f"{option} is 1000000000000; give a whole number from" in capsys.readouterr().err
