"""Off-policy corrections, one file each: `NAME.py` defines `NAME(log_ratio, sequence, config, meter) -> factor`.

log_ratio [P]: `log π_proximal − log π_behave`; sequence [P]: index of the sequence that a pair belongs to; factor
[P]: what the pair's loss is multiplied by, 0 where it is masked. No gradient flows through it. `@correction` declares
whether a pair's factor depends on the rest of its sequence.
"""
