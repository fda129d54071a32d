"""Environments that people have already, as environments of this system: Gymnasium, OpenEnv, MCP tool servers, verifiers.

Each adapter is a function `adapt`, called in a module of one's own that then is an environment by its dotted path:

    # examples/lake.py
    from envs.adapters.gymnasium import adapt
    list_tasks, make_environment = adapt(__name__, "FrozenLake-v1", is_slippery=False)

An adapter imports what it adapts when it is called, and nothing else of the system does.
"""
