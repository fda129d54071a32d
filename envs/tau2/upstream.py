"""The one place that imports τ²-bench, quietly and without reaching for the network.

τ²-bench pulls in litellm, which fetches a price list over the network on import unless told not to, and both log a
lot. Everything of τ²-bench that this package uses is re-exported here.
"""

import os
import warnings

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from loguru import logger

logger.disable("tau2")
# An agent may write a value of the wrong type into a database; hashing it then warns, and the score says it all.
warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning)

from tau2.agent.llm_agent import (
    AGENT_INSTRUCTION,
    AGENT_SOLO_INSTRUCTION,
    SYSTEM_PROMPT,
    SYSTEM_PROMPT_SOLO,
    LLMAgent,
    LLMSoloAgent,
)
from tau2.data_model.message import AssistantMessage, MultiToolMessage, ToolMessage, UserMessage
from tau2.data_model.message import Message as UpstreamMessage
from tau2.data_model.message import ToolCall as UpstreamToolCall
from tau2.data_model.tasks import Action as GoldAction
from tau2.data_model.tasks import EnvAssertion, RewardType, StructuredUserInstructions
from tau2.data_model.tasks import Task as UpstreamTask
from tau2.domains.airline.data_model import FlightDB
from tau2.domains.airline.utils import AIRLINE_DB_PATH, AIRLINE_TASK_SET_PATH
from tau2.domains.mock.data_model import MockDB
from tau2.domains.mock.utils import MOCK_DB_PATH, MOCK_TASK_SET_PATH
from tau2.domains.retail.data_model import RetailDB
from tau2.domains.retail.utils import RETAIL_DB_PATH, RETAIL_TASK_SET_PATH
from tau2.domains.telecom.data_model import TelecomDB
from tau2.domains.telecom.user_data_model import TelecomUserDB
from tau2.domains.telecom.utils import TELECOM_DB_PATH, TELECOM_TASK_SET_PATH, TELECOM_USER_DB_PATH
from tau2.environment.db import DB
from tau2.environment.environment import Environment as World
from tau2.environment.tool import as_tool
from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
from tau2.evaluator.evaluator_action import ActionEvaluator
from tau2.evaluator.evaluator_communicate import CommunicateEvaluator
from tau2.orchestrator.orchestrator import DEFAULT_FIRST_AGENT_MESSAGE, Orchestrator
from tau2.registry import registry
from tau2.user.base import is_valid_user_history_message
from tau2.user.user_simulator import DummyUser, UserSimulator
from tau2.utils import load_file

__all__ = [
    "AGENT_INSTRUCTION",
    "AGENT_SOLO_INSTRUCTION",
    "AIRLINE_DB_PATH",
    "AIRLINE_TASK_SET_PATH",
    "ActionEvaluator",
    "AssistantMessage",
    "CommunicateEvaluator",
    "DB",
    "DEFAULT_FIRST_AGENT_MESSAGE",
    "DummyUser",
    "EnvAssertion",
    "EvaluationType",
    "FlightDB",
    "GoldAction",
    "LLMAgent",
    "LLMSoloAgent",
    "MOCK_DB_PATH",
    "MOCK_TASK_SET_PATH",
    "MockDB",
    "MultiToolMessage",
    "Orchestrator",
    "RETAIL_DB_PATH",
    "RETAIL_TASK_SET_PATH",
    "RetailDB",
    "RewardType",
    "SYSTEM_PROMPT",
    "SYSTEM_PROMPT_SOLO",
    "StructuredUserInstructions",
    "TELECOM_DB_PATH",
    "TELECOM_TASK_SET_PATH",
    "TELECOM_USER_DB_PATH",
    "TelecomDB",
    "TelecomUserDB",
    "ToolMessage",
    "UpstreamMessage",
    "UpstreamTask",
    "UpstreamToolCall",
    "UserMessage",
    "UserSimulator",
    "World",
    "as_tool",
    "evaluate_simulation",
    "is_valid_user_history_message",
    "load_file",
    "registry",
]
