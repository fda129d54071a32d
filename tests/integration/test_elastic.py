"""Nodes that join and leave a real Ray cluster while it is used."""

import ast
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch.local_ray import NODE_ADDRESS, LocalRay
from rl_system.tracking.json_lines import read_lines
from rl_system.training.checkpoint_directory import latest_checkpoint, open_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
SLOTS = 2
NODE_S = 300
SWITCH_S = 400
FINISH_S = 600
ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def joined(cluster: LocalRay) -> Iterator[subprocess.Popen]:
    """Another node with one slot, on this machine. It is killed in the end, if it was not before."""
    command = [
        cluster.ray, "start", f"--address={NODE_ADDRESS}:{cluster.port}", "--block", "--disable-usage-stats",
        f"--node-ip-address={NODE_ADDRESS}", "--num-cpus=1", f"--resources={json.dumps({'accelerator_slots': 1})}",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, env=cluster.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(NODE_S)


def drain(cluster: LocalRay, node: str) -> None:
    """Announce that the node will leave, as a cloud does before it takes a machine back."""
    command = [
        cluster.ray, "drain-node", f"--address={NODE_ADDRESS}:{cluster.port}", f"--node-id={node}",
        "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=taken back", "--deadline-remaining-seconds=3600",
    ]  # fmt: skip
    subprocess.run(command, env=cluster.environment, check=True, timeout=NODE_S)


SCENARIO = """
import asyncio, sys, time
import ray
from actors.cluster import Accelerators
from rl_system.allocation.switch import Side
from rl_system.config.load import build_config

@ray.remote
class Member:
    def where(self):
        return ray.get_runtime_context().get_node_id()

async def scenario():
    accelerators = await Accelerators.reserve(build_config({"name": "run", "allocation": {"elastic": True}}))

    async def looked(until):
        deadline = time.monotonic() + 300
        while not until():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
            await accelerators.look()

    await accelerators.look()
    assert sorted(accelerators.placed) == [0, 1] and not any(map(accelerators.is_leaving, (0, 1)))
    print("ready", flush=True)
    await looked(lambda: 2 in accelerators.placed)
    try:
        accelerators.options(2, Side.ROLLOUT)
    except RuntimeError as error:
        assert "device 2 is nobody's" in str(error)
    accelerators.devices.claim(2, Side.ROLLOUT)
    member = Member.options(**accelerators.options(2, Side.ROLLOUT)).remote()
    node = await member.where.remote()
    assert node == accelerators.placed[2] and node != accelerators.placed[0]
    print(node, flush=True)
    await looked(lambda: accelerators.is_leaving(2))
    assert not any(map(accelerators.is_leaving, (0, 1)))
    print("leaves", flush=True)
    await looked(lambda: node not in [each["NodeID"] for each in ray.nodes() if each["Alive"]])
    assert accelerators.is_leaving(2) and not any(map(accelerators.is_leaving, (0, 1)))
    accelerators.release()

ray.init(address=sys.argv[1], log_to_driver=False)
asyncio.run(scenario())
print("done", flush=True)
"""


def test_a_node_that_joins_brings_a_device_and_takes_it_along_when_it_drains_and_when_it_is_gone(cluster):
    command = [sys.executable, "-c", SCENARIO, f"{NODE_ADDRESS}:{cluster.port}"]
    with subprocess.Popen(
        command, env=cluster.environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as script:
        try:
            assert script.stdout.readline() == "ready\n", script.stderr.read()
            with joined(cluster):
                node = script.stdout.readline().strip()
                assert node, script.stderr.read()
                drain(cluster, node)
                assert script.stdout.readline() == "leaves\n", script.stderr.read()
            output, errors = script.communicate(timeout=NODE_S)
            assert output == "done\n", errors
        finally:
            script.kill()


def wait_for(run: Path, following: subprocess.Popen, kind: str, count: int) -> dict:
    """The event of a kind with that number, counted from 1."""
    deadline = time.monotonic() + SWITCH_S
    while len(events := [e for e in read_lines(run / "events.jsonl") if e["event"] == kind]) < count:
        assert following.poll() is None, following.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return events[count - 1]


def test_a_run_takes_in_the_accelerator_of_a_node_that_joins_and_gives_it_up_when_that_drains(
    cluster, submit: Callable[..., subprocess.Popen], command, tmp_path
):
    run, steps = tmp_path / "tau2_mock_cpu", 250
    line = command(
        steps=steps, allocation__elastic="true", evaluation__before="false", evaluation__after="false",
        checkpoint__every=0, tracking__dump_trees="false",
    )  # fmt: skip
    following = submit("elastic", line)
    wait_for(run, following, "allocation", 1)
    with joined(cluster):
        wait_for(run, following, "switch_finished", 1)
        drain(cluster, wait_for(run, following, "switch_began", 1)["node"])
        wait_for(run, following, "switch_finished", 2)
        output, _ = following.communicate(timeout=FINISH_S)
    assert f"done: {run}" in output, output
    came, went = [event for event in read_lines(run / "events.jsonl") if event["event"] == "switch_finished"]
    assert came["change"].startswith("new to ") and came["outcome"] == "moved" and sum(came["split"]) == 3
    assert went["change"].startswith("away from ") and went["outcome"] == "left" and went["split"] == [1, 1]
    lines = read_lines(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert {line["controller/rollout"] + line["controller/trainer"] for line in lines} == {2, 3}
    ledger = open_checkpoint(latest_checkpoint(run / "checkpoints")).state["controller"]["ledger"]
    assert ledger["next_group_id"] == 2 * steps + sum(ledger["dropped"].values()) + len(ledger["finished"])


NODES = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); print([n['NodeID'] for n in ray.nodes() if n['Alive']])"


def nodes(cluster: LocalRay) -> set[str]:
    command = [sys.executable, "-c", NODES, f"{NODE_ADDRESS}:{cluster.port}"]
    printed = subprocess.run(command, env=cluster.environment, check=True, capture_output=True, text=True, timeout=NODE_S)
    return set(ast.literal_eval(printed.stdout.splitlines()[-1]))


def test_the_trainer_that_published_drains_and_the_run_goes_on_with_the_parameters_of_the_others(
    cluster, submit: Callable[..., subprocess.Popen], command, tmp_path
):
    """The first trainer is on a node of its own; a second one joins it from the rollout side, and then that node leaves."""
    run, steps, before = tmp_path / "tau2_mock_cpu", 250, nodes(cluster)
    with joined(cluster):
        deadline = time.monotonic() + NODE_S
        while not (new := nodes(cluster) - before):
            assert time.monotonic() < deadline
        following = submit("first_leaves", command(
            steps=steps, allocation__elastic="true", allocation__rollout=2, evaluation__before="false",
            evaluation__after="false", checkpoint__every=0, tracking__dump_trees="false",
        ))  # fmt: skip
        wait_for(run, following, "allocation", 1)
        ask = [sys.executable, "-m", "launch.rebalance", "--run", str(run), "--wait", "120", "--to-trainer", "1"]
        subprocess.run(ask, check=True, timeout=180)
        assert wait_for(run, following, "switch_finished", 1)["split"] == [1, 2]
        drain(cluster, new.pop())
        wait_for(run, following, "switch_finished", 2)
        output, _ = following.communicate(timeout=FINISH_S)
    assert f"done: {run}" in output, output
    came, went = [event for event in read_lines(run / "events.jsonl") if event["event"] == "switch_finished"]
    assert (came["change"], came["device"]) != (went["change"], went["device"])
    assert (went["change"], went["device"], went["outcome"], went["split"]) == ("away from trainer", 2, "left", [1, 1])
    lines = read_lines(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert all(line.get("rollout/logprob_gap", 0) < 1e-4 for line in lines)  # the engines serve what the other trainer has
