"""Every metric that a run writes, in one place, with what it means.

Groups: reward/ train/ off_policy/ rollout/ queue/ perf/ time/ tree/ controller/ eval/. A name is interface: charts,
reports and scripts rely on it. A name that ends with `/*` stands for a family whose last part comes from data. Shares
lie in [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterable

METRICS: dict[str, str] = {
    "step": "Policy update that the line belongs to, counted from 1.",
    # What the policy earns
    "reward/mean": "Mean reward, before shaping, of the episodes scored since the last step, dropped groups included.",
    "reward/std": "Deviation of the same rewards.",
    "reward/max": "Largest of the same rewards.",
    "reward/success_rate": "Share of the same episodes with the full reward of 1.",
    "reward/trained_mean": "Mean reward of the same episodes, without the groups that were dropped.",
    "reward/shaped_mean": "Mean reward after scale, offset, penalties and the treatment of truncated episodes.",
    "reward/penalty_mean": "Mean of what length and malformed calls cost an episode; part of the shaped reward.",
    "reward/group_std": "Mean over groups of the deviation of rewards inside a group: what there is to learn from.",
    "reward/groups": "Groups scored since the step before.",
    "reward/dropped_groups": "Groups without signal that were dropped: all members earned the same.",
    "reward/dropped_share": "Dropped groups, as a share of the scored ones.",
    "reward/part/*": "Mean of one part of the reward, by the environment's name for it.",
    # The update
    "train/loss": "Loss of the step, mean over its updates.",
    "train/grad_norm": "Gradient norm before clipping, mean over the step's updates.",
    "train/learning_rate": "Learning rate of the step's last update.",
    "train/updates": "Optimizer steps taken on the step's batch.",
    "train/empty_updates": "Updates of the step left out because no token had a gradient: masked, rejected or of advantage 0.",
    "train/bad_steps": "Updates skipped so far because loss or gradient was not finite.",
    "train/sequences": "Training sequences in the batch.",
    "train/trained_tokens": "(sequence, token) pairs with a loss.",
    "train/advantage_mean": "Mean advantage of trained tokens. Far from 0: length and success go together.",
    "train/advantage_size": "Mean absolute advantage of trained tokens. About 0.8 where the batch is normalised.",
    "train/clip_fraction": "Share of trained tokens whose ratio was clipped. Above 0.2: steps too large or too stale.",
    "train/dual_clip_fraction": "Share of trained tokens held by the dual clip (negative advantage, large ratio).",
    "train/ratio_mean": "Mean ratio of the current policy to the one the objective compares it with.",
    "train/ratio_max": "Largest such ratio.",
    "train/approx_kl": "k3 estimate of the KL divergence behind that ratio.",
    "train/entropy": "Mean entropy of the next-token distribution at trained tokens, nats. Falling to 0: collapse.",
    "train/reference_kl": "Estimated KL divergence from the reference policy at trained tokens, nats.",
    "train/value_loss": "Mean squared error of the critic at trained tokens, halved and clipped.",
    "train/value_clip_fraction": "Share of trained tokens whose value change was clipped.",
    "train/value_mean": "Mean value that the critic gave trained tokens before the update.",
    "train/return_mean": "Mean return that the critic is trained towards: advantage before normalisation, plus value.",
    "train/value_explained_variance": "1 - Var(return - value) / Var(return) before the update. 1: the critic "
    "foretells returns; 0 or less: no better than a constant.",
    "train/critic_grad_norm": "Norm of the critic's gradient before clipping, mean over the step's updates.",
    "train/critic_learning_rate": "Learning rate of the critic's last update of the step.",
    "train/critic_empty_updates": "Updates of the critic left out because no token had a gradient.",
    "train/critic_bad_steps": "Updates of the critic skipped so far because loss or gradient was not finite.",
    # How far what is trained on is from the policy that is trained
    "off_policy/staleness_mean": "Mean over trained tokens of the policy updates between sampling and training.",
    "off_policy/staleness_max": "Largest of the same; never above rollout.max_staleness.",
    "off_policy/behaviour_ratio_mean": "Mean ratio of proximal to behaviour policy at trained tokens; 1 on-policy.",
    "off_policy/behaviour_ratio_max": "Largest such ratio.",
    "off_policy/behaviour_kl": "k3 estimate of the KL divergence of the proximal from the behaviour policy.",
    "off_policy/capped_fraction": "Share of trained tokens whose ratio lies above algorithm.behaviour_cap.",
    "off_policy/below_floor_fraction": "Share of trained tokens whose ratio lies below algorithm.behaviour_floor.",
    "off_policy/rejected_fraction": "Share of trained tokens in sequences that were rejected as a whole.",
    "off_policy/sequence_ratio_max": "Largest geometric mean of a sequence's ratios.",
    "off_policy/masked_fraction": "Share of trained tokens that the correction left without a loss.",
    "off_policy/stale_fraction": "Share of trained tokens in sequences above algorithm.mask_staleness_above.",
    "off_policy/effective_sample_size": "Effective sample size of the correction's weights, by trained token.",
    # Generation
    "rollout/episodes": "Episodes scored since the step before, dropped groups included.",
    "rollout/tokens_per_s": "Tokens sampled per second since the last step, all workers together.",
    "rollout/turns_mean": "Calls of the sampler per episode.",
    "rollout/response_tokens_mean": "Sampled tokens per turn.",
    "rollout/episode_tokens_mean": "Sampled tokens per episode.",
    "rollout/sequence_tokens_max": "Longest prompt with its response, tokens.",
    "rollout/episode_s_mean": "Seconds from an episode's start to its end.",
    "rollout/episode_s_max": "The same for the slowest episode.",
    "rollout/tool_calls_mean": "Tool calls per episode.",
    "rollout/tool_errors_mean": "Tool calls per episode that the environment answered with an error.",
    "rollout/malformed_calls_mean": "Tool calls per episode that could not be parsed.",
    "rollout/cut_observations_mean": "Tool results per episode that were cut for their length.",
    "rollout/evaluator_errors_mean": "Judgements per episode that raised on what the agent left behind; they count as not "
    "met.",
    "rollout/user_requests_mean": "Messages per episode that the user's model was asked for.",
    "rollout/user_retries_mean": "Requests per episode that the user's model failed and that were made again.",
    "rollout/user_prompt_tokens_mean": "Tokens per episode that the user's model read.",
    "rollout/user_completion_tokens_mean": "Tokens per episode that the user's model wrote.",
    "rollout/truncated_share": "Episodes cut short by a budget.",
    "rollout/environment_failures": "Episodes so far whose environment broke, those that were played again included.",
    "rollout/failed_share": "Episodes lost to a broken environment or worker; never scored.",
    "rollout/environments_abandoned": "Environments given up so far: a call exceeded its limit, or their process died.",
    "rollout/environment_processes_replaced": "Worker processes of environments replaced so far.",
    "rollout/cancelled_episodes": "Episodes cancelled since the step before: rollout.over_sample's stragglers, and "
    "members of groups that could not be completed.",
    "rollout/slow_turns": "Times so far that an engine took longer than rollout.request_timeout_s for a turn, which then "
    "went on elsewhere.",
    "rollout/epoch": "Epochs of the training tasks given out so far, where tasks come in epochs.",
    "rollout/curriculum_seen_share": "Share of the training tasks that the curriculum has an outcome of.",
    "rollout/curriculum_effective_tasks": "Tasks that the next draw is spread over (perplexity). Falling: few "
    "tasks are worth drawing.",
    "rollout/curriculum_success_mean": "Mean estimated success rate of the tasks with an outcome, each counted once.",
    "rollout/curriculum_success_next": "Expected success rate of the next task drawn. Near 0.5 the curriculum works.",
    "rollout/ended/*": "Share of episodes that ended so.",
    "rollout/logprob_gap": "Largest difference of any engine's and the trainer's logprobs of sampled tokens after an update, "
    "at temperature 1 on both sides whatever is sampled at.",
    "rollout/prefix_hit_share": "Prompt tokens that the engines found in their prefix cache.",
    "rollout/worker_replacements": "Rollout workers that broke and were replaced so far.",
    "rollout/tool_share": "Share of the running episodes' time spent outside the engines.",
    # Between the two sides
    "queue/ready_groups": "Scored groups that wait for a trainer.",
    "queue/running_groups": "Groups being generated.",
    "queue/permits": "Groups that may be started before staleness would exceed its bound.",
    # Where time and hardware go
    "perf/train_s": "Seconds the update took, from batch in hand to the optimizer step done.",
    "perf/reduce_s": "Part of it spent on reducing gradients and stepping the optimizer, without waiting for slower trainers.",
    "perf/critic_s": "Part of it spent on training the critic.",
    "perf/train_tokens_per_s": "Sequence tokens per second of the update; shared prefixes count in each.",
    "perf/train_unique_tokens_per_s": "Unique tokens trained per second of the update.",
    "perf/train_imbalance": "Slowest trainer's time over the mean of all; 1 is balanced.",
    "perf/groups_per_s": "Groups trained on per second of the run: its end-to-end rate.",
    "perf/rollout_idle_share": "Share of the generation side's time in which an engine had nothing to do.",
    "perf/permit_wait_share": "Share of the episode slots that stood empty because staleness forbade to start more.",
    "perf/train_wait_share": "Share of the training side's time spent waiting for a batch.",
    "time/wall_clock_s": "Seconds since the run started; goes on over a resume without the time in between.",
    "time/step_s": "Seconds since the step before.",
    "time/wait_s": "Seconds of the step spent waiting for a batch.",
    "time/build_s": "Seconds spent building and cutting the prefix tree.",
    "time/update_s": "Seconds spent in the trainers.",
    "time/overhead_s": "Part of it that more trainers would not shorten: calls, reducing gradients, stepping the optimizer.",
    "time/publish_s": "Seconds from the update to the last worker running the new weights.",
    "time/publish_paused_s": "Part of it in which the slowest engine made no token.",
    "perf/published_mib": "MiB of parameters that a rollout worker fetched for it: what had changed since the one before.",
    "time/evaluate_s": "Seconds spent in an evaluation.",
    # The prefix tree
    "tree/sequence_tokens": "Tokens of all sequences of the batch.",
    "tree/used": "Share of the trainers' steps that ran over the prefix tree; the others ran each sequence by itself.",
    "tree/unique_tokens": "Tokens that the tree computes.",
    "tree/compression": "Sequence tokens per unique token.",
    "tree/recomputed_tokens": "Unique tokens that were run a second time to save memory.",
    "tree/blocks": "Blocks executed.",
    "tree/peak_live_tokens": "Most tokens whose activations were held at once.",
    "tree/shareable": "Sequence tokens per unique token of the whole batch, before it is cut and whether or not a tree is run.",
    "tree/sharing_kept": "Share of the prefix sharing that the partition over trainers kept.",
    "tree/imbalance": "Predicted cost of the most expensive part over the mean of all.",
    "tree/repeated": "Predicted share of the batch's work that the part of every trainer repeats (of one: if there were two).",
    # The split of the accelerators
    "controller/rollout": "Accelerators that generate.",
    "controller/trainer": "Accelerators that train.",
    "controller/advised_rollout": "Accelerators that would generate under the split the controller would choose.",
    "controller/advised_trainer": "Accelerators that would train under that split.",
    "controller/predicted_gain": "Relative gain in groups per second that it predicts for that split.",
    "controller/refused_moves": "Windows so far in which another split was predicted faster and none was moved to; "
    "events.jsonl says why.",
    "controller/switching": "1 while an accelerator is on its way from one side to the other, into the run or out of it.",
    "controller/switches": "Accelerators moved, taken in or given up so far.",
    "controller/failed_switches": "Moves so far that came to nothing; events.jsonl says why.",
    "controller/refused_requests": "Requests of a person to move accelerators that were refused so far.",
    "controller/switch_cost_s": "What the move that just ended cost, in seconds of the whole run's production.",
    "controller/standstill_s": "Part of it in which the trainers stood still.",
    # Success on held-out tasks
    "eval/success_rate": "Share of evaluation episodes with the full reward.",
    "eval/reward_mean": "Mean reward of the evaluation episodes.",
    "eval/pass/*": "pass^k: the probability that k episodes of a task all succeed, by k.",
    "eval/episodes": "Episodes evaluated.",
    "eval/failed_share": "Evaluation episodes lost to a broken environment or worker; they count as unsolved.",
}


def describe(name: str) -> str | None:
    """What `name` means; None for a name that is not listed."""
    if name in METRICS:
        return METRICS[name]
    return METRICS.get(name.rpartition("/")[0] + "/*")


def unlisted(names: Iterable[str]) -> list[str]:
    """Those of `names` that are no metric of this list, sorted."""
    return sorted(name for name in names if describe(name) is None)
