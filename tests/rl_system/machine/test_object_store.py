from dataclasses import replace

from rl_system.machine.object_store import LEAST, object_store_bytes
from rl_system.machine.resources import Resources
from tests.rl_system.machine.machines import GIB

NODE = Resources("node", 20 * GIB, None, 64 * GIB, 8, None, None)


def test_rays_own_size_of_the_object_store_stays_where_no_limit_bounds_memory():
    assert object_store_bytes(NODE) is None


def test_the_object_store_grows_to_a_share_of_what_a_job_may_take():
    assert object_store_bytes(replace(NODE, memory_limit=24 * GIB)) == 6 * GIB
    assert object_store_bytes(replace(NODE, memory=GIB // 10, memory_limit=24 * GIB)) == LEAST


def test_an_object_store_beside_too_little_shared_memory_is_of_a_size_that_ray_accepts():
    large = replace(NODE, memory=100 * GIB, memory_limit=200 * GIB, shared_memory=64 << 20)
    assert object_store_bytes(large) == 10 * 10**9
