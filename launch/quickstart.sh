#!/usr/bin/env bash
# From a fresh clone to a trained model: environment, model, warm start, local Ray, `ray job submit` of the default run, report.
# Options: --steps N, --seed N, --name X, any --section.key value. Ctrl-C ends the run cleanly.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash launch/setup.sh
exec .venv/bin/python -m launch.quickstart "$@"
