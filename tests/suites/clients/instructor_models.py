"""instructor: the examples of its README, in each mode that it has for such a service."""

import os
from collections.abc import Iterable

import instructor
import pytest
from instructor import Mode, Partial
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

NAME = os.environ["SUITE_MODEL"]


class User(BaseModel):
    name: str = Field(max_length=30)
    age: int = Field(ge=0, le=150)


class Address(BaseModel):
    street: str = Field(max_length=30)
    city: str = Field(max_length=30)


class Household(BaseModel):
    name: str = Field(max_length=30)
    addresses: list[Address] = Field(max_length=2)


JOHN = [{"role": "user", "content": "John is 25 years old"}]


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON, Mode.JSON_SCHEMA])
def test_extraction(mode: Mode) -> None:
    client = instructor.from_openai(OpenAI(), mode=mode)
    user = client.chat.completions.create(model=NAME, response_model=User, messages=JOHN)
    assert isinstance(user, User)


def test_extraction_by_responses() -> None:
    client = instructor.from_openai(OpenAI(), mode=Mode.RESPONSES_TOOLS)
    user = client.responses.create(model=NAME, response_model=User, input="John is 25 years old")
    assert isinstance(user, User)


def test_from_provider() -> None:
    client = instructor.from_provider(f"openai/{NAME}")
    user = client.chat.completions.create(response_model=User, messages=JOHN, max_retries=3)
    assert isinstance(user, User)


async def test_async() -> None:
    client = instructor.from_openai(AsyncOpenAI())
    user = await client.chat.completions.create(model=NAME, response_model=User, messages=JOHN)
    assert isinstance(user, User)


def test_partial_objects() -> None:
    client = instructor.from_openai(OpenAI())
    partials = client.chat.completions.create(
        model=NAME, response_model=Partial[User], messages=JOHN, stream=True
    )
    assert list(partials)[-1].age is not None


def test_several_objects() -> None:
    client = instructor.from_openai(OpenAI(), mode=Mode.JSON_SCHEMA)
    users = client.chat.completions.create(
        model=NAME, response_model=Iterable[User], messages=JOHN, max_tokens=400
    )
    assert all(isinstance(user, User) for user in users)


def test_nested_objects() -> None:
    client = instructor.from_openai(OpenAI())
    asked = [{"role": "user", "content": "Ann lives in 1 High Street, London."}]
    found = client.chat.completions.create(model=NAME, response_model=Household, messages=asked)
    assert isinstance(found, Household)


def test_raw_completion() -> None:
    client = instructor.from_openai(OpenAI())
    user, completion = client.chat.completions.create_with_completion(
        model=NAME, response_model=User, messages=JOHN
    )
    assert isinstance(user, User)
    assert completion.usage.completion_tokens
