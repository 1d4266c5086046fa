"""Folders, files, models, ports and the clock: what is wrong with them, and what to do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.assembly.check import Check, require
from app.assembly.places import check_disk, check_places
from app.assembly.server import bind
from app.doctor.examine import check_clock, check_environment
from app.doctor.model import check_models
from app.doctor.network import check_ports
from app.settings import Settings
from tests.app.conftest import World


def settings_in(folder: Path, **fields: object) -> Settings:
    given = {"cache_dir": folder, "data_dir": folder} | fields
    return Settings(**given)  # type: ignore[arg-type]


def places(folder: Path, **fields: object) -> dict[str, Check]:
    return {check.part: check for check in check_places(settings_in(folder, **fields))}


def test_folders_that_are_there_or_can_be_made_are_well(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "not" / "there" / "yet"):
        checks = places(folder)
        assert list(checks) == ["cache dir", "data dir", "kept blocks"]
        assert {check.grade for check in checks.values()} == {"ok"}
    assert list(tmp_path.iterdir()) == []


def test_folders_that_cannot_be_written_fail_and_kept_blocks_only_warn(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    checks = places(file / "below")
    grades = {part: check.grade for part, check in checks.items()}
    assert grades == {"cache dir": "fail", "data dir": "fail", "kept blocks": "warn"}
    assert "--data-dir" in checks["data dir"].what
    with pytest.raises(ValueError, match=r"--cache-dir: .* cannot be written .*; give it"):
        require(checks.values())
    given = tmp_path / "given"
    given.write_text("0" * 64)
    instead = {"redis_url": "redis://here", "pepper_file": given, "admin_token_file": given}
    assert "data dir" not in places(tmp_path, **instead), "nothing of it is needed then"


def test_a_ready_file_that_could_not_be_written_fails_before_a_key_is_made(tmp_path: Path) -> None:
    assert places(tmp_path, ready_file=tmp_path / "new" / "ready")["ready file"].grade == "ok"
    assert places(tmp_path, ready_file=tmp_path)["ready file"].grade == "fail"


def test_a_disk_without_room_for_what_is_kept_is_a_warning(tmp_path: Path) -> None:
    (check,) = check_disk(settings_in(tmp_path, kept_disk=0))
    assert check.grade == "ok"
    (check,) = check_disk(settings_in(tmp_path, kept_disk=2**60))
    assert (check.grade, "--kept-disk" in check.remedy) == ("warn", True)


def write_certificate(folder: Path, days: int) -> dict[str, Path]:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "here")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=99))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    locks = serialization.NoEncryption()
    (folder / "chain").write_bytes(certificate.public_bytes(pem))
    (folder / "key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, locks))
    return {"ssl_certfile": folder / "chain", "ssl_keyfile": folder / "key"}


@pytest.mark.parametrize(("days", "grade"), [(90, "ok"), (3, "warn"), (-1, "warn")])
def test_a_certificate_that_ends_soon_is_a_warning(tmp_path: Path, days: int, grade: str) -> None:
    assert places(tmp_path, **write_certificate(tmp_path, days))["certificate"].grade == grade


def test_a_certificate_and_the_key_of_another_fail(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    files = write_certificate(tmp_path, 90) | {
        "ssl_keyfile": write_certificate(other, 90)["ssl_keyfile"]
    }
    assert places(tmp_path, **files)["certificate"].grade == "fail"
    (other / "key").write_text("no key")
    assert places(tmp_path, **files)["certificate"].grade == "fail"


def model(name: object) -> Check:
    (check,) = check_models(Settings(model=str(name)))
    return check


def test_weights_are_looked_at_where_they_lie(tmp_path: Path) -> None:
    assert model("smollm2-135m-instruct").grade == "ok"
    assert model(tmp_path / "nothing").grade == "fail"
    (tmp_path / "config.json").write_text("{}")
    assert "no weights" in model(tmp_path).what
    (tmp_path / "pytorch_model.bin").touch()
    assert model(tmp_path).grade == "ok"
    (tmp_path / "model.safetensors").write_bytes(b"cut off")
    assert "model.safetensors cannot be read" in model(tmp_path).what
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert model(tmp_path).grade == "ok"
    (tmp_path / "x.gguf").write_bytes(b"nothing of the kind")
    assert "no GGUF file" in model(tmp_path / "x.gguf").what
    assert model("nobody/nothing-of-the-kind").grade == "warn"


def test_a_port_that_others_have_fails(tmp_path: Path) -> None:
    with contextlib.closing(bind("127.0.0.1", 0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        first, second = check_ports(settings_in(tmp_path, port=port, admin_port=0))
    assert (first.grade, second.grade) == ("fail", "ok")
    assert f"port {port}" in first.what
    assert "another port" in first.remedy


async def test_ports_of_a_service_that_runs_already_are_a_warning(
    world: World, tmp_path: Path
) -> None:
    port, admin_port = (httpx.URL(url).port for url in (world.base_url, world.admin_url))
    settings = settings_in(tmp_path, port=port, admin_port=admin_port)
    checks = await asyncio.to_thread(lambda: list(check_ports(settings)))
    assert [check.grade for check in checks] == ["warn", "warn"]
    assert all("Partywall" in check.what for check in checks)


def test_a_variable_that_is_no_setting_is_a_warning() -> None:
    known = {"PARTYWALL_PORT": "1", "PARTYWALL_API_KEY": "x", "PATH": "y"}
    assert check_environment(known).grade == "ok"
    check = check_environment(known | {"PARTYWALL_KV_MEMROY": "1GiB"})
    assert check.grade == "warn"
    assert check.remedy == "was PARTYWALL_KV_MEMORY meant?"


def test_a_clock_that_was_set_back_is_a_warning(tmp_path: Path) -> None:
    assert check_clock(settings_in(tmp_path / "nothing")).grade == "ok"
    (tmp_path / "pepper").touch()
    assert check_clock(settings_in(tmp_path)).grade == "ok"
    later = time.time() + 9000
    os.utime(tmp_path / "pepper", (later, later))
    assert check_clock(settings_in(tmp_path)).grade == "warn"
