"""Agents to start from: each a module with `run` and `tasks`, named by its dotted path in `environment.name`."""
