#!/usr/bin/env bash
# From a fresh clone: the environment, the small model, the whole test suite. Arguments go to pytest (`--slow`, `-k …`, a path).
# Files of tests run on two cores side by side, as most of them compute on one, or wait; `-n 0` is one after the other.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash launch/setup.sh
.venv/bin/python -m launch.prepare_model
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec .venv/bin/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder "$@"
