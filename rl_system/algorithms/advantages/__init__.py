"""Advantage estimators, one file each: `NAME.py` defines `NAME(rewards) -> advantages`, declared by `@estimator`.

rewards, advantages: float64 [members], of the members of one group that count; an estimator that compares sees at
least two.
"""
