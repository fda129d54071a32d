"""Whether the model that is to play the user can be reached, asked before anything starts.

A wrong address would otherwise show as episodes that fail one after another.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request

from rl_system.config.environment import UserConfig
from rl_system.errors import UserError
from rl_system.training.parameter_files import parameter_files, tensor_shapes
from rl_system.training.prepared import model_directory

ANSWER_TIMEOUT_S = 5.0


class UserUnreachable(UserError):
    """Nothing answers at the address of the user's model: no mistake where the run starts elsewhere, or later."""


def check_user(user: UserConfig, device: str) -> None:
    """Raises UserUnreachable, and UserError where the server answers but does not serve `user.model`, or where there is
    no such model to be served here, on `device`. Does nothing for users that are no models."""
    if user.kind != "llm":
        return
    if user.api_base is None:
        if device == "cuda":
            raise UserError(
                f"environment.user.api_base is missing: with model.device 'cuda' every GPU that is given belongs to "
                f"generation or training, and none to the user's model. Serve it on others (vllm serve {user.model} "
                "--enable-auto-tool-choice --tool-call-parser hermes) and give the address"
            )
        try:
            tensor_shapes(parameter_files(model_directory(user.model)))
        except UserError as error:  # It speaks of the field where a model usually stands.
            raise type(error)(str(error).replace("model.path", "environment.user.model")) from None
        return
    served = served_models(user.api_base)
    if served is not None and user.model not in served:
        raise UserError(
            f"environment.user.model is {user.model!r}, but the server at environment.user.api_base {user.api_base!r} "
            f"serves {', '.join(sorted(served)) or 'no model'}"
        )


def served_models(api_base: str) -> set[str] | None:
    """Names of the models at an OpenAI-compatible address; None where the server keeps no list."""
    request = urllib.request.Request(f"{api_base.rstrip('/')}/models")
    if key := os.environ.get("OPENAI_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
            return {model["id"] for model in json.load(answer)["data"]}
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise UserError(
                f"the server at environment.user.api_base {api_base!r} refuses the key ({error.code}); set "
                "OPENAI_API_KEY to one that it accepts"
            ) from None
        return None
    except (ValueError, KeyError, TypeError):
        return None
    except OSError as error:
        raise UserUnreachable(
            f"no server answers at environment.user.api_base {api_base!r} ({getattr(error, 'reason', error)}); start the "
            "server of the user's model there first, or leave api_base out and give a model directory to be served here"
        ) from None
