"""A run: the actors wired together, and the loop that trains.

`train` is the whole algorithm at one level of detail. `Run` holds the actors and says what each of its verbs means. Generation
goes on beside the loop all the time; it is held back only by the controller's permits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray

from actors.answers import Gone, NoAnswer, answer_to
from actors.cluster import Accelerators
from actors.controller import Controller
from actors.dispatcher import DispatchedBatch, Dispatcher
from actors.environment_pool import EnvironmentPool
from actors.fleet import RolloutFleet
from actors.losses import Parts, loss_behind, watch
from actors.nodes import driver_node, on_node
from actors.rebalancer import Rebalancer
from actors.reward import Reward
from actors.side import last_line
from actors.trainers import TrainerGroup
from rl_system.algorithms.batching import probe_of
from rl_system.allocation.pacing import pace_at
from rl_system.allocation.resumed import start_split
from rl_system.allocation.switch import Side
from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.records import TrainBatch, Weights
from rl_system.tracking.batches import write_batch
from rl_system.tracking.episodes import write_episodes
from rl_system.tracking.evaluation import evaluation_metrics
from rl_system.tracking.events import TRAINED
from rl_system.tracking.failure_book import told
from rl_system.tracking.remarks import StepRemarks
from rl_system.tracking.tracker import FINISHED, Tracker
from rl_system.tracking.trees import write_tree
from rl_system.training.run_state import RunState

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 30.0
FAILURE_INTERVAL_S = 1.0
"""How often the pool is asked for failures of episodes."""
MIB = 1 << 20


async def train(run: Run) -> None:
    """The main loop of a run."""
    config = run.config
    await run.start()
    if config.evaluation.due(run.step, config.steps) and not run.evaluated:
        await run.evaluate()
    if run.step < config.steps:
        await run.start_rollouts()
    while run.step < config.steps:
        await run.rebalance()
        batch = await run.next_batch()
        await run.update(batch)
        await run.publish()
        await run.finish_step()
        if run.step == config.steps:
            await run.stop_rollouts()
        if config.checkpoint.due(run.step, config.steps):
            await run.checkpoint()
        if config.evaluation.due(run.step, config.steps):
            await run.evaluate()
    run.finish()


class Run:
    """`step` counts the policy updates done, which is also the trainers' policy version."""

    def __init__(
        self,
        config: RunConfig,
        model_directory: Path,
        vocabulary: int,
        accelerators: Accelerators,
        tracker: Tracker,
        resumed: RunState | None = None,
        configured: dict[str, Any] | None = None,
    ) -> None:
        """configured: what its checkpoints say the run was configured with, see `RunState`."""
        self.config, self.tracker, self.accelerators, self.resumed = config, tracker, accelerators, resumed
        self.vocabulary, self.configured = vocabulary, configured or {}
        self.step = resumed.step if resumed else 0
        self.begun = False
        """Whether all that it needs came up once."""
        self.started_from = model_directory
        """The model that the run began with, also after a resume. Unlike a checkpoint it stays where it is: workers and
        trainers that come later start from it, and get the parameters of now."""
        # Beside the driver, where preflight looked at memory and environments, and where the user's model may be served.
        here = on_node(driver_node())
        self.controller = Controller.options(**here).remote(config, resumed.controller if resumed else None)
        self.dispatcher = Dispatcher.options(**here).remote(config)
        episodes = config.directory / "episodes"
        self.reward = Reward.options(**here).remote(config, self.controller, self.dispatcher, episodes)
        sampler_state = resumed.sampler if resumed else None
        self.pool = EnvironmentPool.options(**here).remote(
            config, model_directory, self.controller, self.reward, sampler_state
        )
        self.fleet = RolloutFleet(config, model_directory, accelerators, self.pool, self._note_replacement)
        self.trainers = TrainerGroup(config, model_directory, accelerators, self._renew_weights)
        sides = {Side.ROLLOUT: self.fleet, Side.TRAINER: self.trainers}
        self.rebalancer = Rebalancer(config, self.controller, accelerators, sides, tracker)
        self.background: set[asyncio.Future[Any]] = set()
        """What goes on beside the main loop; `supervise` ends the run when one of these fails."""
        self._pushing: asyncio.Task[None] | None = None
        self._remarks = StepRemarks(config.model.dtype)
        self._metrics: dict[str, float] = {}
        self._push_metrics: dict[str, float] = {}
        self._pool_came_up = False
        self._last_totals: dict[str, float] = {}
        self._step_began = time.monotonic()
        self._updated_on: DispatchedBatch | None = None

    # -- verbs of the main loop ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start trainers, rollout workers and environments side by side."""
        await self.rebalancer.discard_requests()
        devices = self.accelerators.devices
        self.tracker.progress.note(f"starting {devices.split.rollout} rollout worker(s) and "
                                   f"{devices.split.trainer} trainer(s)")  # fmt: skip
        if self.resumed is not None:
            split, reason = start_split(self.config.allocation, self.resumed.controller)
            self.tracker.event("start_split", split=list(split), reason=reason)
            self.tracker.progress.note(f"the split is {split}, {reason}")
        await asyncio.gather(
            self._start_trainers(devices.of(Side.TRAINER)),
            self.fleet.start(devices.of(Side.ROLLOUT), self.step),
            self._start_pool(),
            *(actor.__ray_ready__.remote() for actor in (self.controller, self.dispatcher, self.reward)),
        )
        self.background.add(asyncio.create_task(self.fleet.watch()))
        self.background.add(asyncio.create_task(watch(self.parts)))
        self.background.add(asyncio.create_task(self._watch_failures()))
        self._last_totals = await self.fleet.totals()
        self.begun = True

    @property
    def evaluated(self) -> bool:
        """Whether the policy of now was evaluated already: before a kill that came after the checkpoint."""
        return self.step in self.tracker.evaluated

    async def start_rollouts(self) -> None:
        self._step_began = time.monotonic()
        await self.controller.open_window.remote()
        await self._set_pace()
        self.background.add(asyncio.ensure_future(_result_of(self.pool.run.remote())))

    async def stop_rollouts(self) -> None:
        await self.rebalancer.settle()
        await self.pool.stop.remote()
        await self._pushed()

    async def rebalance(self) -> None:
        """Move an accelerator where that was decided: what stops the trainers here, the rest beside the next steps."""
        if self.config.allocation.elastic:
            await self._pushed()  # the rank that holds the newest weights may be the one that leaves
        beside = await self.rebalancer.at_boundary()
        if beside is not None:
            self.background.add(beside)

    async def next_batch(self) -> DispatchedBatch:
        """Wait until the controller admits the groups of a batch, and have them cut into parts."""
        began = time.monotonic()
        await self.controller.trainer_state.remote("waiting")
        self.tracker.progress.status(trainer="waits for groups")
        group_ids = await self.controller.next_batch.remote()
        built = time.monotonic()
        batch = await self.dispatcher.build.remote(
            group_ids, self.trainers.copies, self.step, await self.trainers.cost_model()
        )
        await self.controller.trainer_state.remote("updating")
        self._metrics = dict(batch.metrics)
        self._metrics |= {"time/wait_s": built - began, "time/build_s": time.monotonic() - built}
        if self.config.tracking.dump_batches:
            write_batch(await batch.whole, self.config.directory / "batches" / f"step_{self.step + 1:06}.npz")
        if self.config.tracking.dump_trees:
            name = f"{self.config.name}_step_{self.step + 1}"
            whole = await batch.whole
            write_tree(whole, self.config.directory / "trees" / f"{name}.json", name=name, vocab_size=self.vocabulary)
        return batch

    async def update(self, batch: DispatchedBatch) -> None:
        """One policy update on all trainers."""
        began = time.monotonic()
        self.tracker.progress.status(trainer=f"updates on {len(batch.group_ids)} groups")
        self._metrics |= await self.trainers.update(batch.parts)
        calls_s = time.monotonic() - began - self._metrics["perf/train_s"]
        self._metrics["time/overhead_s"] = max(calls_s, 0.0) + self._metrics["perf/reduce_s"]
        if (pace := pace_at(self.config.allocation.pace, self.step)) is not None:
            seconds = self._metrics["tree/unique_tokens"] / (pace.trained_tokens_per_s * self.trainers.size)
            await asyncio.sleep(max(began + seconds - time.monotonic(), 0.0))
        self.step += 1
        await self._set_pace()
        self._metrics["time/update_s"] = time.monotonic() - began
        self._updated_on = batch
        await self.controller.update_finished.remote(
            self._metrics["time/update_s"],
            len(batch.group_ids),
            self._metrics["tree/sequence_tokens"],
            self._metrics["tree/sequence_tokens"] / batch.metrics["tree/shareable"],
            batch.metrics.get("off_policy/staleness_mean", 0.0),
            batch.metrics["tree/repeated"],
            self._metrics["time/overhead_s"],
        )

    async def publish(self) -> None:
        """Copy the new parameters out of the trainer; they travel to the rollout workers beside the next step."""
        await self._pushed()
        probe = probe_of(await self._updated_on.whole)
        # Engines score at temperature 1, whatever they sample at.
        expected = await self.trainers.logprobs(probe, 1.0)
        weights = await self.trainers.publish()
        self._pushing = asyncio.create_task(self._push(weights, probe, expected))
        self.background.add(self._pushing)
        if weights.sender is not None:
            await self._pushed()  # the trainer's own parameters travel: it may not change them meanwhile

    async def finish_step(self) -> None:
        """Measure the step that ended, hear the controller's advice, and write both down."""
        totals, status = await self.fleet.totals(), await self.controller.status.remote()
        now = time.monotonic()
        seconds, self._step_began = now - self._step_began, now
        spent = {name: totals[name] - self._last_totals.get(name, 0.0) for name in totals}
        self._last_totals = totals
        self._metrics |= await self.reward.take_metrics.remote(self._updated_on.group_ids)
        self._metrics |= await self.pool.take_metrics.remote()
        self._metrics |= self._push_metrics
        self._metrics |= {
            "time/step_s": seconds,
            "rollout/tokens_per_s": spent["generated_tokens"] / seconds,
            "rollout/prefix_hit_share": spent["cached_prompt_tokens"] / max(spent["prompt_tokens"], 1.0),
            "rollout/worker_replacements": float(self.fleet.replaced),
            "queue/ready_groups": float(status["finished"]),
            "queue/running_groups": float(status["running"]),
            "queue/permits": float(status["permits"]),
        }
        method = "tree" if self._metrics["tree/used"] >= 0.5 else "dense"
        self._metrics |= await self.rebalancer.consult(spent["generated_tokens"], method)
        self.tracker.step(self.step, self._metrics)
        self.tracker.event(TRAINED, groups=self._updated_on.group_ids)
        for remark in self._remarks.of(self.step, self._metrics):
            self.tracker.event("remark", text=remark)
            self.tracker.progress.note(remark)

    async def evaluate(self) -> None:
        """Play the evaluation tasks with the newest policy, which stays the same throughout."""
        await self._pushed()
        began, settings = time.monotonic(), self.config.evaluation
        self.tracker.progress.status(rollout=f"evaluates on {settings.split}")
        episodes = await self.pool.evaluate.remote(
            settings.split, settings.episodes_per_task, settings.max_tasks, settings.temperature
        )
        metrics = evaluation_metrics(episodes)
        metrics["time/evaluate_s"] = time.monotonic() - began
        if self.config.tracking.save_episodes:
            write_episodes(self.config.directory / "episodes" / f"evaluation_step_{self.step}.jsonl", episodes)
        self.tracker.evaluation(metrics)
        self.tracker.progress.note(
            f"evaluation after {self.step} updates: success rate {metrics['eval/success_rate']:.1%} on "
            f"{len(episodes)} episodes of {settings.split} ({metrics['time/evaluate_s']:.0f} s)"
        )
        self._step_began = time.monotonic()
        await self.controller.disturb.remote()

    async def checkpoint(self) -> None:
        """Save everything that a resumed run needs; complete or absent."""
        began = time.monotonic()
        self.tracker.flush()  # no checkpoint without the metrics of its steps
        state, blobs = (await self._state()).parts()
        path = await self.trainers.save_checkpoint(
            self.config.directory / "checkpoints", self.step, state, blobs
        )
        self.tracker.event("checkpoint", path=str(path), seconds=time.monotonic() - began)

    def finish(self) -> None:
        """Note that nothing is left to do, so that whoever starts this run again need not."""
        self.tracker.event(FINISHED, steps=self.step)

    # -- the life of a run -----------------------------------------------------------------------------------------

    def parts(self) -> Parts:
        """All that has nobody to take its place."""
        actors = {
            "the controller": self.controller,
            "the environment pool": self.pool,
            "the reward actor": self.reward,
            "the dispatcher": self.dispatcher,
        }
        return actors | {f"the trainer of rank {rank}": actor for rank, actor in enumerate(self.trainers.ranks)}

    async def supervise(self) -> None:
        """Run the main loop; fail at once when anything beside it fails, so that no error is ever waited out. PartLost where
        that comes of an actor that is no more.
        """
        main = asyncio.create_task(train(self))
        try:
            while not main.done():
                await asyncio.wait({main, *self.background}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in self.background if task.done()]:
                    self.background.discard(task)
                    await task
            await main
        except Exception as error:
            if (lost := await loss_behind(error, self.parts())) is not None:
                raise lost from error
            raise
        finally:
            # However this ends, nothing may go on using the actors that `close` is about to stop.
            main.cancel()
            await asyncio.gather(main, return_exceptions=True)

    async def close(self) -> None:
        """End every actor, whatever state the run is in, and give the accelerators back."""
        for task in self.background:
            task.cancel()
        await asyncio.gather(*self.background, return_exceptions=True)
        await asyncio.gather(self.fleet.close(), self.trainers.close(), self._close_pool())
        for actor in (self.pool, self.reward, self.dispatcher, self.controller):
            ray.kill(actor)
        self.accelerators.release()

    async def _close_pool(self) -> None:
        if not self._pool_came_up:  # it hears nothing before it did, and its processes end with it
            return
        try:
            await answer_to(self.pool.close.remote(), CLOSE_TIMEOUT_S)
        except (Gone, NoAnswer) as error:
            logger.warning("the environment pool did not close: %s", last_line(error))

    # -- pieces ----------------------------------------------------------------------------------------------------

    async def _set_pace(self) -> None:
        if (pace := pace_at(self.config.allocation.pace, self.step)) is not None:
            await self.pool.set_pace.remote(pace.sampled_tokens_per_s)

    async def _start_pool(self) -> None:
        await self.pool.start.remote()
        self._pool_came_up = True

    async def _start_trainers(self, devices: list[int]) -> None:
        await self.trainers.start(devices)
        if self.resumed is not None:
            await self.trainers.load_checkpoint(self.resumed.path, self.resumed.started_from)
            await self.dispatcher.restore.remote(self.resumed.groups)
        self.trainers.model_directory = self.started_from = await self.trainers.started_from()

    async def _note_replacement(self) -> None:
        await self.controller.disturb.remote()
        self.tracker.event("worker_replaced", replaced=self.fleet.replaced)

    async def _watch_failures(self) -> None:
        """Tell of failures of a kind that was not seen before. UserError once nearly all episodes fail."""
        while True:
            await asyncio.sleep(FAILURE_INTERVAL_S)
            news, verdict = await self.pool.take_failures.remote()
            for sighting in news:
                task, failure = sighting.task, sighting.failure
                self.tracker.event(f"{failure.of}_failed", task=task.task_id, split=task.split, what=failure.what)
                self.tracker.progress.note(told(sighting))
            if verdict is not None:
                raise UserError(verdict)

    async def _push(self, weights: Weights, probe: TrainBatch, expected: np.ndarray) -> None:
        began = time.monotonic()
        report = await self.fleet.push(weights)
        self.fleet.model_directory = self.started_from
        await self.controller.serve.remote(weights.version)
        self._push_metrics = {
            "time/publish_s": time.monotonic() - began,
            "time/publish_paused_s": report["paused_s"],
            "perf/published_mib": report["bytes"] / MIB,
        }
        scores = await self.fleet.prompt_logprobs(probe.token_ids)
        gaps = [np.abs(scored - expected)[probe.trained].max() for scored in scores]
        if gaps:
            self._push_metrics["rollout/logprob_gap"] = float(max(gaps))

    async def _renew_weights(self) -> None:
        """Weights are gone with the trainer that published them: have those that stay hold the same ones."""
        await self.fleet.renew(await self.trainers.publish())

    async def _pushed(self) -> None:
        """Wait until the workers serve what was published last."""
        if self._pushing is not None:
            await self._pushing

    async def _state(self) -> RunState:
        # The pool is asked first: a group that ends in between is then in the ledger, and is not started again.
        pool = await self.pool.state.remote()
        controller = await self.controller.state.remote()
        groups = await self.dispatcher.waiting_groups.remote()
        return RunState.collect(self.step, pool, controller, groups, self.configured)


async def _result_of(reference: ray.ObjectRef) -> Any:
    return await reference
