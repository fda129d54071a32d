"""What of a run is known to be placed on this machine, and whether it fits there.

Other nodes are asked once it is known what they get (`actors.node_memory`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rl_system.config.run import RunConfig
from rl_system.executor.attention.cuda import describe_cuda_kernels
from rl_system.machine.fit import check_fit, settings_of, tight_spots
from rl_system.machine.needs import GIB, NodeNeeds, RunNeeds
from rl_system.machine.resources import Resources
from rl_system.training.hub_cache import ModelNotCached
from rl_system.training.parameter_files import count_parameters
from rl_system.training.prepared import model_directory


def all_here(config: RunConfig) -> bool:
    """Whether the run is known to have this machine for itself and no other: a private Ray cluster, whose accelerators are
    slots. GPUs may belong to other nodes, and so may everything where there is a cluster to join."""
    return config.model.device == "cpu" and os.environ.get("RAY_ADDRESS", "").strip() in ("", "local")


def run_needs(config: RunConfig, parameters: int) -> RunNeeds:
    """What the run needs of nodes with a model of so many parameters."""
    user, users = config.environment.user, 0
    if user.kind == "llm" and user.api_base is None and config.model.device == "cpu":  # then it is served here
        with suppress(ModelNotCached):  # which a dry run has said by now
            users = count_parameters(model_directory(user.model))
    return RunNeeds(config, parameters, users)


def needs_of_this_machine(needs: RunNeeds) -> NodeNeeds:
    """Of what it is known to get: everything where the run is `all_here`, else the driver."""
    allocation = needs.config.allocation
    if all_here(needs.config):
        return needs.most_on_node(allocation.accelerators, driver=True)
    return needs.on_node(0, 0, all_trainers=allocation.trainer, driver=True)


def check_memory(needs: RunNeeds) -> NodeNeeds:
    """What the run needs of this machine. UserError where that is more than this process may still use of it."""
    here = needs_of_this_machine(needs)
    check_fit(here, Resources.look(), "on this machine", settings_of(needs.config))
    return here


def notes_on_this_machine(config: RunConfig, here: NodeNeeds | None) -> list[str]:
    """What a person would want to know of this machine before the run starts on it, a line each. here: what the run needs of
    it, None where that is not known."""
    node, notes = Resources.look(), []
    if here is not None:
        who = "everything is taken to be here" if all_here(config) else "the driver alone"
        needed = f"about {here.memory / GIB:.1f} GiB ({who})"
        notes.append(f"memory of this machine: {needed}, {node.memory_in_words}; in GiB, {here.in_words}")
    if config.model.device == "cuda":
        notes.append(f"attention on GPUs, as of this environment: {describe_cuda_kernels()}")
    return notes + tight_spots(config.allocation.accelerators if all_here(config) else 0, node, config)
