from dataclasses import replace

import pytest

from rl_system.config.load import build_config
from rl_system.errors import UserError
from rl_system.machine.fit import Room, check_fit, settings_of, tight_spots
from rl_system.machine.needs import GIB, RunNeeds
from rl_system.machine.resources import Resources

ROOMY = Resources("node-a", 64 * GIB, None, 32 * GIB, 8, 1 << 20, None)


def run(*changes: str):
    config = build_config({"name": "run"}, list(changes))
    return config, RunNeeds(config, 1 << 28).most_on_node(2, driver=True)


def test_a_run_that_fits_is_let_through():
    config, needs = run()
    check_fit(needs, ROOMY, "on this machine", settings_of(config))


def test_too_little_memory_is_refused_with_what_takes_it_where_and_under_which_limit():
    config, needs = run()
    tight = replace(ROOMY, memory=4 * GIB, memory_limit=6 * GIB)
    with pytest.raises(UserError) as refused:
        check_fit(needs, tight, "on node 10.0.0.2 (node-a)", settings_of(config))
    text = str(refused.value)
    assert f"about {needs.memory / GIB:.1f} GiB of memory are needed on node 10.0.0.2 (node-a), and 4.0 GiB are available" in text
    assert "may take 6.0 GiB in all" in text and "trainer: process 0.50, parameters 1.00, gradients 1.00" in text
    assert "allocation.rollout 1" in text and "\n" not in text


def test_dockers_64_mib_of_shared_memory_are_refused_with_the_way_out():
    config, needs = run()
    with pytest.raises(UserError, match=r"1024 MiB of shared memory on this machine.*64 MiB left.*--shm-size.*'directory'"):
        check_fit(needs, replace(ROOMY, shared_memory=64 << 20), "on this machine", settings_of(config))
    with pytest.raises(UserError, match="/dev/shm has 0 MiB left"):
        check_fit(needs, replace(ROOMY, shared_memory=None), "on this machine", settings_of(config))
    config, needs = run("--weights.transport", "directory")
    check_fit(needs, replace(ROOMY, shared_memory=64 << 20), "on this machine", settings_of(config))


def test_limits_that_a_run_may_come_up_against_are_told_and_refuse_nothing():
    config, _ = run("--environment.processes", "64")
    assert tight_spots(2, ROOMY, config) == []
    files, processes, threads = tight_spots(2, replace(ROOMY, open_files=1024, processes=512, processors=1), config)
    assert "1024 files open" in files and "ulimit -n" in files
    assert "512 more processes and threads" in processes and "--pids-limit" in processes
    assert "1 processors may be used here" in threads and "2 threads" in threads


def test_threads_of_accelerators_that_may_be_elsewhere_are_not_counted_here():
    config, _ = run()
    assert tight_spots(0, replace(ROOMY, processors=1), config) == []


def test_a_node_tells_what_it_lacks_as_the_rest_of_a_sentence(monkeypatch):
    config, needs = run()
    monkeypatch.setattr(Resources, "look", classmethod(lambda cls: ROOMY))
    assert Room(needs, settings_of(config)).missing() is None
    monkeypatch.setattr(Resources, "look", classmethod(lambda cls: replace(ROOMY, memory=GIB)))
    assert "has not enough room: about" in Room(needs, settings_of(config)).missing()
