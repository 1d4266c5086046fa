"""What the templates of models that see make of messages, as these were published."""

from __future__ import annotations

import pytest

from app.prompt.chat_template import ChatTemplate
from app.wire.errors import ApiError
from app.wire.functions import PLACE, Message, Picture
from app.workers import Workers
from tests.app.conftest import byte_tokenizer

SMOLVLM = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
QWEN = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content "
    "or 'image_url' in content %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ONEVISION = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + ' '}}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ '\n' + content['text'] }}{% endfor %}{{'<|im_end|>'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
INTERNVL = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}"
    "{{ '<IMG_CONTEXT>\n' }}{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = (
    "<s>{% for message in messages %}{% if message['role'] == 'user' %}[INST]"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for block in message['content'] %}{% if block['type'] == 'text' %}{{ block['text'] }}"
    "{% elif block['type'] in ['image', 'image_url'] %}[IMG]"
    "{% else %}{{ raise_exception('Only text and image blocks are supported') }}{% endif %}"
    "{% endfor %}{% endif %}[/INST]{% else %}{{ message['content'] }}</s>{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ '<s>' }}{%- for message in messages -%}"
    "{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}"
    "{{ '<start_of_turn>' + role + '\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- else -%}"
    "{%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}"
    "{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}"
    "{%- endif -%}{%- endfor -%}{%- endif -%}{{ '<end_of_turn>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)
"""Of Gemma 3; its processor sets pictures apart by empty lines."""
BLIND = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
"""One that takes only texts."""
PUBLISHED = [
    (SMOLVLM, "<image>", "User: a @ b @<end_of_utterance>"),
    (QWEN, "<|image_pad|>", "a <|vision_start|>@<|vision_end|> b <|vision_start|>@<|vision_end|>"),
    (ONEVISION, "<image>", "user @@\na \n b <|im_end|>"),
    (INTERNVL, "<IMG_CONTEXT>", "user\na @\n b @\n<|im_end|>"),
    (MISTRAL, "[IMG]", "[INST]a @ b @[/INST]"),
    (GEMMA, "<image_soft_token>", "user\na\n\n@\n\nb\n\n@\n\n<end_of_turn>"),
]
"""A template, its placeholder, and what it makes of texts and pictures, which are `@` here."""
AT = ord("@") - 33


def template(written: str, placeholder: str) -> ChatTemplate:
    tokenizer = byte_tokenizer()
    first = "<start_of_image>" if written == GEMMA else "<|vision_start|>"
    tokenizer.add_tokens([placeholder, first], special_tokens=True)
    tokenizer.boi_token = first
    tokenizer.chat_template = written
    token_id = int(tokenizer.convert_tokens_to_ids(placeholder))
    return ChatTemplate(tokenizer, Workers(), 4096, picture_token_id=token_id)


def picture(template: ChatTemplate, *ids: int) -> Picture:
    token_id = template.pictures.token_id
    assert token_id is not None
    return Picture(url="", param="here", token_ids=(AT, token_id, *ids), digest=bytes(ids))


async def text(template: ChatTemplate, messages: list[Message], previous: list[int]) -> str:
    """What they become, behind previous ids if there are any, without placeholders."""
    if previous:
        ids = await template.continuation_ids("acme", previous, messages, "messages")
        ids = ids[len(previous) :]
    else:
        ids = await template.prompt_ids("acme", messages, "messages")
    left = [one for one in ids if one != template.pictures.token_id]
    return await template.text_of("acme", left, "messages")


@pytest.mark.parametrize(("written", "placeholder", "expected"), PUBLISHED)
async def test_templates_write_pictures_as_they_always_do(
    written: str, placeholder: str, expected: str
) -> None:
    seeing = template(written, placeholder)
    shown = [picture(seeing), picture(seeing)]
    said: Message = {"role": "user", "content": f"a {PLACE} b {PLACE}", "pictures": shown}
    assert expected in await text(seeing, [said], [])
    ids = await seeing.prompt_ids("acme", [{"role": "user", "content": "Hello there"}], "messages")
    assert "Hello there" in await seeing.text_of("acme", ids, "messages")
    assert expected in await text(seeing, [said], ids)


@pytest.mark.parametrize(("written", "placeholder", "_"), PUBLISHED)
async def test_nobody_spells_a_picture(written: str, placeholder: str, _: str) -> None:
    seeing = template(written, placeholder)
    for role in ("user", "assistant"):
        messages: list[Message] = [{"role": "user", "content": "Hm."}]
        messages.append({"role": role, "content": f"{placeholder} <start_of_image> {PLACE}"})
        ids = await seeing.prompt_ids("acme", messages, "messages")
        assert seeing.pictures.token_id not in ids
        said = await seeing.text_of("acme", ids, "messages")
        assert "<start_of_image> " in said  # and no empty lines around it


async def test_pictures_lie_where_their_tokens_are() -> None:
    seeing = template(QWEN, "<|image_pad|>")
    pictures = [picture(seeing, 5, 6), picture(seeing), picture(seeing, 7)]
    said: Message = {"role": "user", "content": f"a {PLACE}{PLACE} b {PLACE}", "pictures": pictures}
    ids = await seeing.prompt_ids("acme", [said], "messages")
    shown = list(seeing.pictures.shown(ids, 0, pictures, "resp_1"))
    assert [tuple(ids[one.start : one.end]) for one in shown] == [one.token_ids for one in pictures]
    assert {one.origin for one in shown} == {"resp_1"}


async def test_a_template_that_takes_only_texts_is_told_of() -> None:
    seeing = template(BLIND, "<image>")
    said: Message = {"role": "user", "content": PLACE, "pictures": [picture(seeing)]}
    with pytest.raises(ApiError) as refused:
        await seeing.prompt_ids("acme", [said], "messages")
    assert refused.value.param == "here"
    assert "writes no picture there" in refused.value.message
