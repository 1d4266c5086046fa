"""`llm`, the program: prompts, chats, schemas and tools at an endpoint, and its Python API."""

import json
import os
import subprocess
from pathlib import Path

import llm
import pytest

NAME = os.environ["SUITE_MODEL"]
URL = os.environ["OPENAI_BASE_URL"]
KEY = os.environ["OPENAI_API_KEY"]
PROGRAM = str(Path("venv/bin/llm").absolute())
ALIAS = "partywall"


@pytest.fixture(scope="module", autouse=True)
def configured(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A folder of its own, with the model as its guide on other models says."""
    folder = tmp_path_factory.mktemp("llm")
    os.environ["LLM_USER_PATH"] = str(folder)
    entry = {"model_id": ALIAS, "model_name": NAME, "api_base": URL, "api_key_name": ALIAS}
    entry |= {"supports_tools": True, "supports_schema": True}
    (folder / "extra-openai-models.yaml").write_text(json.dumps([entry]))
    run("keys", "set", ALIAS, "--value", KEY)


def run(*arguments: str, text: str = "") -> str:
    done = subprocess.run(
        [PROGRAM, *arguments], input=text, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_endpoint() -> None:
    asked = "What is the capital of France?"
    assert run("openai", "endpoint", URL, "--key", KEY, "-m", NAME, asked)


def test_prompt_and_its_continuation() -> None:
    assert run("-m", ALIAS, "Ten fun names for a pet pelican")
    assert run("-c", "Now for a walrus")


def test_system_prompt_and_options() -> None:
    program = "print('hello')"
    options = ["-o", "temperature", "0", "-o", "max_tokens", "20", "-s", "Explain this code"]
    assert run("-m", ALIAS, *options, text=program)
    assert run("-m", ALIAS, "--no-stream", "-o", "max_tokens", "20", "Say hello")


def test_chat() -> None:
    assert run("chat", "-m", ALIAS, text="Tell me a joke\nAnother\nquit\n")


def test_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    said = run("-m", ALIAS, "--schema", json.dumps(schema), "invent a dog")
    assert set(json.loads(said)) == {"name", "age"}


def test_tool() -> None:
    said = run("-m", ALIAS, "-T", "llm_version", "What version of LLM is this?", "--td")
    assert said


def test_python_api_with_tools() -> None:
    called = []

    def upper(text: str) -> str:
        """Convert text to uppercase."""
        called.append(text)
        return text.upper()

    model = llm.get_model(ALIAS)
    assert model.chain("Convert panda to upper", tools=[upper]).text()
    assert called


def test_python_conversation() -> None:
    conversation = llm.get_model(ALIAS).conversation()
    assert conversation.prompt("Five fun facts about pelicans").text()
    assert "".join(conversation.prompt("Now do skunks"))


async def test_python_async() -> None:
    response = llm.get_async_model(ALIAS).prompt("Say hello")
    assert "".join([chunk async for chunk in response])
    assert (await response.usage()).output
