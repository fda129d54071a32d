from pathlib import Path

import pytest

from tests.models import save_tiny_chat_model


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_chat_model(tmp_path_factory.mktemp("chat_model"))
