"""The tools of an MCP server (stdio) as an environment: one server process an episode, so that no two share a state.

    # examples/notes.py
    from envs.adapters.mcp import adapt
    def tasks(split): return [{"id": "milk", "prompt": "Note that I need milk."}, …]
    def score(task, episode): return float("milk" in episode.call("list_notes", {}))
    list_tasks, make_environment = adapt(__name__, ["python", "notes_server.py"], tasks=tasks, score=score)

The episode ends when the agent answers in words alone. Needs the extra `mcp`.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from envs.adapters.unseen import Unseen
from envs.protocol import Action, Environment, Score, ToolCall
from rl_system.config.environment import EnvironmentConfig
from rl_system.errors import UserError
from rl_system.records import Ending, Task

INSTRUCTIONS = "Do what the user asks, with your tools. When it is done, answer the user in words."


@dataclass(slots=True)
class ToolEpisode:
    """What a scoring function sees. answer: the agent's last words; empty where it never stopped calling tools. calls: name,
    arguments, result and whether it was an error, in order. call: asks the server something the agent does not see.
    """

    call: Callable[[str, dict[str, Any]], str]
    answer: str = ""
    calls: list[tuple[str, dict[str, Any], str, bool]] = field(default_factory=list)


def adapt(
    module: str,
    command: Sequence[str],
    *,
    tasks: Callable[[str], list[dict[str, Any]]],
    score: Callable[[dict[str, Any], ToolEpisode], float],
    instructions: str = INSTRUCTIONS,
    tools: Collection[str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> tuple[Callable[[EnvironmentConfig, str], list[Task]], Callable[[EnvironmentConfig, Task], Environment]]:
    """`(list_tasks, make_environment)` of the module named `module`.

    command: starts the server. tasks: by split; each has `id` and `prompt`, and whatever `score` looks at. tools: names of
    those that the agent may use; None: all. variables: of the server's process, beside the few that MCP passes on.
    """

    def list_tasks(config: EnvironmentConfig, split: str) -> list[Task]:
        return [Task(module, "mcp", str(task["id"]), split) for task in _of(split)]

    def make_environment(config: EnvironmentConfig, task: Task) -> Environment:
        found = next((each for each in _of(task.split) if str(each["id"]) == task.task_id), None)
        if found is None:
            raise UserError(f"task {task.task_id!r} does not exist in split {task.split!r} of {module}")
        return McpEnvironment(list(command), found, score, instructions, tools, variables)

    def _of(split: str) -> list[dict[str, Any]]:
        for task in (found := tasks(split)):
            if not {"id", "prompt"} <= task.keys():
                raise UserError(f"{module}: a task of split {split!r} has the keys {', '.join(task)}; id and prompt are needed")
        return found

    return list_tasks, make_environment


class McpEnvironment(Unseen):
    """Protocol and threading rules as in `envs.protocol.Environment`."""

    def __init__(
        self,
        command: list[str],
        task: dict[str, Any],
        score: Callable[[dict[str, Any], ToolEpisode], float],
        instructions: str,
        tools: Collection[str] | None,
        variables: Mapping[str, str] | None,
    ) -> None:
        super().__init__()
        self._command, self._task, self._score = command, task, score
        self._instructions, self._allowed, self._variables = instructions, tools, variables
        self._server = contextlib.ExitStack()
        self._episode = ToolEpisode(self._ask)
        self._tools: list[dict[str, Any]] = []

    def reset(self) -> None:
        from mcp import ClientSession, StdioServerParameters, stdio_client

        # The client is asynchronous, an environment is not: its event loop runs in a thread of the portal.
        self._portal: BlockingPortal = self._server.enter_context(start_blocking_portal())
        parameters = StdioServerParameters(
            command=self._command[0], args=self._command[1:], env=dict(self._variables) if self._variables else None
        )
        self._log = self._server.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
        streams = self._enter(stdio_client(parameters, errlog=self._log))
        self._session = self._enter(ClientSession(*streams))
        with self._last_words():
            self._portal.call(self._session.initialize)
            listed = self._portal.call(self._session.list_tools).tools
        self._tools = [_schema(tool) for tool in listed if self._allowed is None or tool.name in self._allowed]
        if missing := sorted(set(self._allowed or ()) - {tool.name for tool in listed}):
            raise UserError(f"the MCP server {' '.join(self._command)} has no tool {missing[0]!r}, which `tools` names")
        self._unseen = [
            {"role": "system", "content": self._instructions},
            {"role": "user", "content": str(self._task["prompt"])},
        ]

    def tools(self) -> list[dict[str, Any]]:
        return self._tools

    def step(self, action: Action) -> None:
        if not action.tool_calls:
            self._episode.answer, self._ended = action.text, Ending.AGENT_STOP
        for call in action.tool_calls:
            result, failed = self._carry_out(call)
            self._errors += failed
            self._episode.calls.append((call.name, call.arguments, result, failed))
            self._unseen.append({"role": "tool", "tool_call_id": call.call_id, "content": result})

    def score(self, ended: Ending) -> Score:
        return Score(float(self._score(self._task, self._episode)), {}, {"mcp_calls": len(self._episode.calls)})

    def demonstration(self) -> list[Action]:
        """None is known, unless the task holds one: `demonstration`, a list of `[tool, arguments]`, then `answer`."""
        calls = [Action(tool_calls=(ToolCall(name, arguments),)) for name, arguments in self._task.get("demonstration", ())]
        return [*calls, Action(text=str(self._task.get("answer", "Done.")))] if calls else []

    def close(self) -> None:
        self._server.close()

    def _enter(self, manager: Any) -> Any:
        return self._server.enter_context(self._portal.wrap_async_context_manager(manager))

    @contextlib.contextmanager
    def _last_words(self) -> Iterator[None]:
        """Where the server's end goes away, what it wrote last is the reason."""
        from mcp import MCPError

        try:
            yield
        except MCPError as error:
            if error.error.code != CONNECTION_CLOSED:
                raise
            self._log.seek(0)
            words = " ".join(self._log.read().split())[-500:] or "it said nothing"
            raise RuntimeError(f"the MCP server {' '.join(self._command)} ended: {words}") from error

    def _carry_out(self, call: ToolCall) -> tuple[str, bool]:
        if call.name not in {tool["function"]["name"] for tool in self._tools}:
            return f"Error: there is no tool {call.name!r}.", True
        return self._request(call.name, call.arguments)

    def _ask(self, name: str, arguments: dict[str, Any]) -> str:
        return self._request(name, arguments)[0]

    def _request(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """The result as text, and whether it is an error. What the server refuses is for the agent; that the server is gone
        is the environment's failure and raises."""
        from mcp import MCPError

        try:
            with self._last_words():
                result = self._portal.call(self._session.call_tool, name, arguments)
        except MCPError as refused:
            return f"Error: {refused}", True
        return "\n".join(_text(block) for block in result.content), bool(result.is_error)


CONNECTION_CLOSED = -32000
"""JSON-RPC's code with which the client says that the server's end is gone."""


def _schema(tool: Any) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _text(block: Any) -> str:
    """A block of a result as a model reads it; of images and the like only what they are."""
    if block.type == "text":
        return block.text
    resource = getattr(block, "resource", None)
    return getattr(resource, "text", None) or f"[{block.type}]"
