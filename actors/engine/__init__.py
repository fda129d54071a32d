"""Everything that knows vLLM: how its engine is built, fed with weights and read.

Modules here import vLLM when they are imported. `environment.prepare_process` has to run before, so the rollout
worker imports them inside its constructor.
"""
