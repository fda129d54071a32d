import math
from pathlib import Path

import pytest

from rl_system.machine.control_groups import Limit, memory_limit, process_limit, processor_limit
from rl_system.machine.resources import Resources, available_memory, usable_processors
from tests.rl_system.machine.machines import GIB, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def left(machine: Machine) -> float | None:
    limit = memory_limit(machine.root)
    return None if limit is None else limit.left / GIB


def test_without_control_groups_there_is_no_limit(machine, tmp_path):
    assert memory_limit(tmp_path) is None and process_limit(tmp_path) is None and processor_limit(tmp_path) == math.inf
    assert memory_limit(tmp_path / "no such root") is None
    looked = Resources.look(machine.root)
    assert looked.memory == 64 * GIB and looked.memory_limit is None and looked.processes is None
    assert "64.0 GiB are available" == looked.memory_in_words


def test_a_containers_limit_counts_and_not_the_machines_memory(machine):
    machine.v2("/").memory("", limit=8, used=3)
    assert left(machine) == 5
    looked = Resources.look(machine.root)
    assert looked.memory == 5 * GIB and looked.memory_limit == 8 * GIB
    assert looked.memory_in_words == "5.0 GiB are available (the container or job may take 8.0 GiB in all)"


def test_the_machines_memory_counts_where_the_container_may_take_more_than_is_left(tmp_path):
    machine = Machine(tmp_path, available=2).v2("/").memory("", limit=8)
    looked = Resources.look(machine.root)
    assert looked.memory == 2 * GIB == available_memory(machine.root) and looked.memory_limit is None


def test_file_cache_that_the_kernel_gives_back_counts_as_available(machine):
    machine.v2("/").memory("", limit=8, used=7.5, cache=6)
    assert left(machine) == 6.5


def test_max_is_no_limit(machine):
    assert left(machine.v2("/a").memory("a", limit="max", used=50)) is None


def test_the_tightest_limit_of_all_groups_above_counts(machine):
    machine.v2("/pod/container/job").memory("pod/container/job", limit="max", used=1)
    machine.memory("pod/container", limit=30, used=2).memory("pod", limit=10, used=7)
    assert left(machine) == 3
    assert memory_limit(machine.root).limit == 10 * GIB


def test_a_limit_that_slows_a_group_down_counts_as_one_that_ends_it(machine):
    assert left(machine.v2("/slice").memory("slice", limit=32, high="16", used=1)) == 15


def test_more_taken_than_allowed_leaves_nothing(machine):
    assert left(machine.v2("/").memory("", limit=1, used=2)) == 0


def test_version_1_is_read_and_its_way_to_write_no_limit(machine):
    machine.v1("memory", "/docker/abc").memory_v1("docker/abc", limit=4, used=3, cache=1).memory_v1("", limit=None, used=40)
    assert left(machine) == 2
    assert left(machine.memory_v1("docker/abc", limit=None, used=3)) is None


def test_a_limit_above_what_version_1_shows_in_a_container_counts_too(machine):
    machine.v1("memory", "/kubepods/pod/abc", root="/kubepods/pod/abc").memory_v1("", limit=None, used=3, above=6)
    assert left(machine) == 3


def test_a_container_that_keeps_its_hosts_names_finds_its_group_at_the_top_of_the_mount(machine):
    machine.v1("memory", "/docker/abc", root="/docker/abc").memory_v1("", limit=4, used=1)
    assert left(machine) == 3


def test_a_group_outside_of_this_namespace_is_looked_for_at_the_top_of_the_mount(machine):
    assert left(machine.v2("/../../other").memory("", limit=4, used=1)) == 3


def test_both_versions_at_once_are_both_read(machine):
    machine.v1("memory", "/job").memory_v1("job", limit=9, used=1).v2("/init", point="/sys/fs/cgroup/unified")
    machine.v1("cpu,cpuacct", "/job", number=3)
    machine.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", 250000)
    machine.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", 100000)
    assert left(machine) == 8 and processor_limit(machine.root) == 2.5


def test_a_mount_point_with_a_space_is_found(machine):
    machine.v2("/job", point="/mnt/my groups")
    machine.write("mnt/my groups/job/memory.max", 2 * GIB)
    assert left(machine) == 2


def test_the_tightest_quota_bounds_the_processors_that_may_be_used(machine, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)))
    machine.v2("/pod/container")
    machine.write("sys/fs/cgroup/pod/container/cpu.max", "max 100000")
    assert usable_processors(machine.root) == 16
    machine.write("sys/fs/cgroup/pod/cpu.max", "350000 100000")
    assert processor_limit(machine.root) == 3.5 and usable_processors(machine.root) == 3
    machine.write("sys/fs/cgroup/pod/container/cpu.max", "50000 100000")
    assert usable_processors(machine.root) == 1


def test_processors_that_this_process_may_not_run_on_do_not_count(machine, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 5})
    assert usable_processors(machine.root) == 2


def test_version_1_writes_no_quota_as_minus_one(machine):
    machine.v1("cpu", "/")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", -1)
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", 100000)
    assert processor_limit(machine.root) == math.inf


def test_the_processes_that_a_container_may_still_start_are_known(machine):
    machine.v2("/job")
    machine.write("sys/fs/cgroup/job/pids.max", 1024)
    machine.write("sys/fs/cgroup/job/pids.current", 24)
    assert process_limit(machine.root) == Limit(1024, 1000)
    assert Resources.look(machine.root).processes == 1000


def test_this_machine_can_be_read():
    looked = Resources.look()
    assert 0 < looked.memory and looked.processors >= 1 and looked.host
