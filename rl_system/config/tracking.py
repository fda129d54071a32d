from typing import Literal

from rl_system.config.section import Section


class TrackingConfig(Section):
    wandb: Literal["auto", "online", "offline", "disabled"] = "auto"
    """auto: online where an API key is set, else offline."""
    project: str = "rl-system"
    dump_trees: bool = False
    """Write each step's sequences as a tree file that `launch.bench` reads."""
    dump_batches: bool = False
    """Write each step's batch, advantages and loss weights included, so that the update can be done again elsewhere."""
    save_episodes: bool = True
    progress: bool = True
    worker_logs: bool = False
    """Mix the actors' own output into that of the run. Otherwise it stays in Ray's session directory."""
