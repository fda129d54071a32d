"""Objectives, one file each: `NAME.py` defines `NAME(tokens, config, meter) -> loss of each pair`, declared by
`@surrogate`.

The whole loss around it, with corrections and bonuses, is made by `rl_system.algorithms.policy_objective`.
"""
