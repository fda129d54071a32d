"""The list of models, of which there is one, in the shapes of both protocols at once."""

from __future__ import annotations

import json

from rl_system.endpoint.parameters import Serving
from rl_system.endpoint.refusals import Refused

PATH = "/v1/models"


def answer(path: str, serving: Serving) -> bytes:
    """Raises Refused for a model that is not there. Clients of OpenAI's and of Anthropic's protocol each find their fields."""
    entry = {
        "id": serving.model, "object": "model", "created": 0, "owned_by": "rl-system",
        "type": "model", "display_name": serving.model, "created_at": "1970-01-01T00:00:00Z",
    }  # fmt: skip
    if path == PATH:
        listed = {"object": "list", "data": [entry], "first_id": serving.model, "last_id": serving.model, "has_more": False}
        return json.dumps(listed).encode()
    name = path.removeprefix(PATH + "/")
    if name != serving.model:
        raise Refused(f"the model {name!r} is not served here; there is {serving.model!r}", 404, "model_not_found", "model")
    return json.dumps(entry).encode()
