"""The operator's token: told once, kept as a hash, readable by nobody else."""

import stat
from pathlib import Path

import pytest

from app.admin.mount import ROUTES
from app.admin.token import Operator, load_admin_token, write_private


def test_the_first_start_tells_the_token_and_later_ones_only_know_it(tmp_path: Path) -> None:
    first = load_admin_token(tmp_path / "data", None)
    assert first.created is not None
    later = load_admin_token(tmp_path / "data", None)
    assert later.created is None
    assert later.holder(first.created) == Operator("admin")
    assert later.holder(first.created + "x") is None


def test_the_token_itself_is_not_on_disk(tmp_path: Path) -> None:
    token = load_admin_token(tmp_path, None)
    (path,) = tmp_path.iterdir()
    assert token.created is not None
    assert token.created not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_given_token_is_used_and_not_told(tmp_path: Path) -> None:
    given = tmp_path / "token"
    given.write_text("correct-horse-battery\n")
    token = load_admin_token(tmp_path / "data", given)
    assert token.created is None
    assert token.holder("correct-horse-battery") == Operator("admin")
    assert not (tmp_path / "data").exists()


def test_a_file_may_hold_a_token_for_each_operator(tmp_path: Path) -> None:
    given = tmp_path / "tokens"
    given.write_text("ann correct-horse-battery\n\nbob staple-donkey-monday\n")
    token = load_admin_token(tmp_path, given)
    assert token.holder("correct-horse-battery") == Operator("ann")
    assert token.holder("staple-donkey-monday") == Operator("bob")
    assert token.holder("ann correct-horse-battery") is None


def test_a_line_may_say_what_its_holder_is_held_to(tmp_path: Path) -> None:
    given = tmp_path / "tokens"
    given.write_text(
        "ann correct-horse-battery read\nbob staple-donkey-monday tenant:acme\n"
        "eve another-long-token-here tenant:acme read\n"
    )
    token = load_admin_token(tmp_path, given)
    assert token.holder("correct-horse-battery") == Operator("ann", reads_only=True)
    assert token.holder("staple-donkey-monday") == Operator("bob", tenant="acme")
    eve = Operator("eve", reads_only=True, tenant="acme")
    assert token.holder("another-long-token-here") == eve


WRITES = {
    *("POST /tenants/{tenant}/keys", "PATCH /tenants/{tenant}/keys/{key}"),
    *("DELETE /tenants/{tenant}/keys/{key}", "POST /tenants/{tenant}/keys/{key}/rotate"),
    *("PUT /tenants/{tenant}/prompts/{name}", "DELETE /tenants/{tenant}/prompts/{name}"),
    *(f"POST /tenants/{{tenant}}/prompts/{{name}}/{what}" for what in ("activate", "warm")),
    *(f"POST /tenants/{{tenant}}/prompts/{{name}}/{what}" for what in ("pin", "unpin")),
    *("PUT /tenants/{tenant}/adapters/{name}", "DELETE /tenants/{tenant}/adapters/{name}"),
    *(
        f"POST /tenants/{{tenant}}/adapters/{{name}}/{what}"
        for what in ("activate", "pin", "unpin")
    ),
}
READS = {
    *("GET /tenants/{tenant}", "GET /tenants/{tenant}/effective-limits"),
    *("GET /tenants/{tenant}/keys", "GET /tenants/{tenant}/keys/{key}"),
    *("GET /tenants/{tenant}/prompts", "GET /tenants/{tenant}/prompts/{name}"),
    *("GET /tenants/{tenant}/prompts/{name}/versions", "GET /tenants/{tenant}/usage"),
    "GET /tenants/{tenant}/usage/adapters",
    *("GET /tenants/{tenant}/adapters", "GET /tenants/{tenant}/adapters/{name}"),
    "GET /tenants/{tenant}/adapters/{name}/versions",
    *("GET /tenants/{tenant}/cache", "GET /me"),
}


def allowed(operator: Operator, tenant: str) -> set[str]:
    """What an operator may do of all that there is, where paths name this tenant."""
    return {
        f"{one.method} {one.path}"
        for one in ROUTES
        if operator.may(one.method, one.path, tenant if "{tenant}" in one.path else None)
    }


def test_of_all_there_is_everybody_may_do_what_their_token_is_for() -> None:
    everything = {f"{one.method} {one.path}" for one in ROUTES}
    reads = {one for one in everything if one.startswith("GET ") and one != "GET /tokens"}
    assert allowed(Operator("a"), "acme") == everything
    assert allowed(Operator("a", reads_only=True), "acme") == reads
    assert allowed(Operator("a", tenant="acme"), "acme") == READS | WRITES
    assert allowed(Operator("a", reads_only=True, tenant="acme"), "acme") == READS
    assert allowed(Operator("a", tenant="acme"), "acm") == {"GET /me"}


@pytest.mark.parametrize(
    "text",
    [
        *("short", "", "ann short", "ann correct-horse-battery 1", "correct-horse-battery\nx"),
        "ann correct-horse-battery tenant:",
        "ann correct-horse-battery tenant:a tenant:b",
        "ann correct-horse-battery READ",
        "correct-horse-battery tenant:acme-corporation",  # without a name
        "ann correct-horse-battery read\nbob correct-horse-battery",
    ],
)
def test_a_short_token_and_a_line_that_is_none_are_refused(tmp_path: Path, text: str) -> None:
    given = tmp_path / "token"
    given.write_text(text)
    with pytest.raises(ValueError, match="admin_token_file"):
        load_admin_token(tmp_path, given)


def test_a_private_file_replaces_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_private(path, "one")
    write_private(path, "two")
    assert path.read_text() == "two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
