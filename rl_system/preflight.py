"""What can be known to be wrong before anything expensive starts: no Ray, no engine, no weights are loaded here.

Every check raises a `UserError` of one paragraph. What passes here can still fail later, but not for a reason that was already
visible in the configuration, on the disk or in the size of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from envs.host import EnvironmentHost
from envs.registry import is_agent, list_tasks
from envs.trial import Opening, open_all, trial_config, try_playing
from rl_system.algorithms.gae import needs_critic
from rl_system.algorithms.task_sampler import TaskSampler
from rl_system.algorithms.trial import check_algorithm
from rl_system.chat.rehearsal import rehearse
from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.executor.models import check_supported
from rl_system.machine.needs import GIB, NodeNeeds, RunNeeds
from rl_system.output_place import require_lasting, require_space, require_writable
from rl_system.records import Task
from rl_system.start import Start, find_start
from rl_system.this_machine import all_here, check_memory, notes_on_this_machine, run_needs
from rl_system.training.architecture import checked_shapes, empty_model
from rl_system.training.checkpoint_directory import MODEL, list_checkpoints
from rl_system.training.hub_cache import ModelNotCached
from rl_system.training.identity import contents
from rl_system.training.loading import check_context, check_vocabulary, load_renderer, load_tokenizer
from rl_system.training.model_files import check_saving
from rl_system.training.parameter_files import count_parameters
from rl_system.training.prepared import model_directory
from rl_system.training.run_state import RunState
from rl_system.training.tensor_parallel import check_divisible
from rl_system.user_model import UserUnreachable, check_user

OPENINGS_CHECKED = 16
"""Tasks of each split whose first prompt is measured. The tasks of a domain share nearly all of it."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """parameters: how many. vocabulary: size, in tokens. prompt_tokens: longest first prompt that was measured.
    needs: of the run, wherever its actors are placed. here: of this machine, as far as it is known what it gets.
    """

    directory: Path
    parameters: int
    vocabulary: int
    prompt_tokens: int
    needs: RunNeeds
    here: NodeNeeds


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found on the way. unchecked: what could not be looked at here, in words. notes: what else is good to know.

    model: None only in a dry run on a machine without it, and where the run is complete: then nothing else was looked at.
    contents: see `rl_system.training.identity`.
    """

    start: Start
    model: ModelFacts | None = None
    train_tasks: int = 0
    evaluation_tasks: int = 0
    contents: Mapping[str, str | None] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What is wrong with single tasks, in words. The run goes on without them."""

    @property
    def resumed(self) -> RunState | None:
        """The state to go on from; None for a run that starts from nothing."""
        return self.start.state


def preflight(
    config: RunConfig, *, resume: bool = False, dry_run: bool = False, begins_with: Path | None = None
) -> Preflight:
    """Check `config` against this machine and its files.

    begins_with: directory of the model that the run begins with, where that is not the one of `model.path`.

    dry_run: a model that is not in this machine's cache, and a server of the user's model that is not up, are no
    mistakes; what could not be checked without them is said in `unchecked`. Either way nothing is left on the disk.
    """
    unchecked: list[str] = []
    require_lasting(config.directory.resolve(), "output")
    require_writable(config.directory, "output")
    behind: Mapping[str, str | None] = {}
    with contextlib.suppress(ModelNotCached):  # said below, with what else there is to say about it
        behind = contents(config)
    start = find_start(config, resume, behind)
    if start.complete:
        return Preflight(start)
    splits = [config.environment.split]
    if config.evaluation.before or config.evaluation.after or config.evaluation.every:
        splits.append(config.evaluation.split)
    tasks = {split: list_tasks(config.environment, split) for split in splits}
    for split, found in tasks.items():
        if not found:
            raise UserError(f"environment {config.environment.label} has no task in split {split!r}; choose another split")
    if is_agent(config.environment):
        if config.warm_start.enabled:
            raise UserError(
                f"warm_start.enabled is true, but environment.name {config.environment.name!r} is an agent that plays by itself, "
                "of which there are no demonstrations; set it to false"
            )
        unchecked.append("the first prompts, which the agent writes itself")
    try:
        check_user(config.environment.user, config.model.device)
    except (UserUnreachable, ModelNotCached) as absent:
        if not dry_run:
            raise
        unchecked.append(str(absent))
    check_algorithm(config.algorithm, config.rollout.group_size)
    openings, warnings = asyncio.run(try_environment(config, tasks))
    model = None
    try:
        model = check_model(config if begins_with is None else _with_model(config, begins_with), openings)
    except ModelNotCached as absent:
        if not dry_run:
            raise
        unchecked.append(f"architecture, context, first prompts, K/V cache and memory of the model: {absent}")
    if model is not None and not all_here(config):
        alone = model.needs.most_on_node(config.allocation.accelerators, driver=False).memory / GIB
        unchecked.append(
            f"memory of the nodes that get the accelerators, of which one with all {config.allocation.accelerators} needs "
            f"about {alone:.1f} GiB: each is asked before anything starts there"
        )
    if start.state is not None:
        TaskSampler.of(tasks[splits[0]], config.seed, config.environment).restore(start.state.sampler)
        if model is not None:
            model = replace(model, directory=start.state.path / MODEL)
    if model is not None:
        check_disk(config, model.parameters, start.step)
    return Preflight(
        start=start,
        model=model,
        train_tasks=len(tasks[splits[0]]),
        evaluation_tasks=len(tasks[splits[-1]]) if len(splits) > 1 else 0,
        contents=behind,
        unchecked=tuple(unchecked),
        notes=tuple(notes_on_this_machine(config, model and model.here)),
        warnings=tuple(warnings),
    )


def _with_model(config: RunConfig, directory: Path) -> RunConfig:
    return config.model_copy(update={"model": config.model.model_copy(update={"path": str(directory)})})


async def try_environment(config: RunConfig, tasks: dict[str, list[Task]]) -> tuple[list[Opening], list[str]]:
    """Play a task of each split, and open some more; what failed, in words. tasks: by split.

    Agents that call the model themselves have no openings, and cannot be tried without one.
    """
    openings, warnings = [], []
    if is_agent(config.environment):
        return openings, warnings
    async with EnvironmentHost(trial_config(config.environment)) as host:
        for found in tasks.values():
            warnings += await try_playing(host, found)
            opened, failed = await open_all(host, found[:OPENINGS_CHECKED])
            openings += opened
            warnings += failed
    return openings, warnings


def check_model(config: RunConfig, openings: list[Opening]) -> ModelFacts:
    """What depends on the model's files: that they are whole, that it can be run and saved, that the first prompts of
    `openings` fit, and memory."""
    directory = model_directory(config.model.path)
    check_context(config.model, directory)
    model = empty_model(directory)
    check_supported(model)
    checked_shapes(directory)
    if config.allocation.tensor_parallel > 1:
        check_divisible(model.config, config.allocation.tensor_parallel)
    tokenizer, vocabulary = load_tokenizer(config.model), model.config.get_text_config().vocab_size
    check_vocabulary(tokenizer, vocabulary, directory)
    check_saving(model, tokenizer)
    needs = run_needs(config, count_parameters(directory))
    return ModelFacts(
        directory=directory,
        parameters=needs.parameters,
        vocabulary=vocabulary,
        prompt_tokens=check_prompts(config, openings),
        needs=needs,
        here=check_memory(needs),
    )


def check_prompts(config: RunConfig, openings: list[Opening]) -> int:
    """Longest first prompt of `openings`, in tokens. UserError where it leaves no room for an answer, or where the model's
    chat template refuses dialogues like these."""
    renderer = load_renderer(config.model)
    longest = 0
    for opening in openings:
        spoken = config.environment.user.kind != "solo" or any(each["role"] == "user" for each in opening.messages)
        dialogue = rehearse(renderer, opening.messages, opening.tools, user=spoken)
        longest = max(longest, len(dialogue.prompt_ids))
    if longest >= config.model.max_model_len:
        raise UserError(
            f"model.max_model_len is {config.model.max_model_len}, but the first prompt of a task of "
            f"{config.environment.label} has {longest} tokens; use at least "
            f"{longest + config.rollout.sampling.max_new_tokens} (prompt and rollout.sampling.max_new_tokens)"
        )
    return longest


def check_disk(config: RunConfig, parameters: int, done: int) -> None:
    """UserError where what the updates after `done` write does not fit on the disk: in a checkpoint parameters, two AdamW
    moments, float32 masters where there are any, and the same for a critic; one checkpoint more than are kept while it is
    written; parameters alone where workers fetch them from files.
    """
    width, states = {"float64": (8, 2 * 8), "float32": (4, 2 * 4), "bfloat16": (2, 3 * 4)}[config.model.dtype]
    checkpoint = (width + states) * parameters * (1 + needs_critic(config.algorithm))
    published = 3 * width * parameters if config.weights.transport == "directory" else 0
    every, keep, there = config.checkpoint.every, config.checkpoint.keep, len(list_checkpoints(config.directory / "checkpoints"))
    written = -(-(config.steps - done) // every) if every else 1
    most = min(there + written, keep + 1)
    needed = max(most - there, 1) * checkpoint + published
    require_space(config.directory, needed, "output", f"the run's checkpoints (checkpoint.keep {keep})")
