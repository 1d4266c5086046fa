"""What a door deploys, joins or refuses, by what it finds; the test plays the cluster."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from msgspec import structs

from app.cluster.rollout import Deployed, Greeting, join, own_release, successor
from engine.api import EngineError


def settings(name: str, model: str = "/model") -> Deployed:
    return Deployed(settings=name, model=model, by=f"door-{name}", at="2026-01-01T00:00:00+00:00")


class Place:
    """A cluster whose replicas have what was last deployed."""

    head: str | None = None

    def __init__(self) -> None:
        self.deployed: Deployed | None = None
        self.release: str | None = None
        self.deployments = 0
        self.own = settings("a")
        self.redeploys = False
        self.greet = self

    def door(self, name: str, model: str = "/model", *, redeploys: bool = False) -> Place:
        """It, for a door with these settings."""
        self.own, self.redeploys = settings(name, model), redeploys
        return self

    async def remote(self) -> bytes | str:
        assert self.deployed is not None
        if self.release == "":
            return "4f1c"  # as replicas did before they told their release
        release = self.release or own_release()
        return msgspec.msgpack.encode(Greeting(release=release, deployed=self.deployed))

    def connect(self) -> Any:
        return None if self.deployed is None else self

    def deploy(self, deployed: Deployed) -> Any:
        self.deployed = deployed
        self.deployments += 1
        return self

    def close(self) -> None:
        pass


def test_doors_of_the_same_settings_deploy_them_once() -> None:
    place = Place()
    for _ in range(3):
        assert asyncio.run(join(place.door("a"))) is place
    assert place.deployments == 1


def test_an_old_door_that_starts_again_joins_what_has_replaced_its_settings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = Place()
    for name in ("a", "b", "c"):
        asyncio.run(join(place.door(name)))
    assert place.deployments == 3
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for name in ("a", "b"):
            assert asyncio.run(join(place.door(name))) is place
    assert place.deployments == 3
    assert place.deployed is not None
    assert place.deployed.settings == "c"
    assert "replaced by those that door-c deployed at 2026-01-01T00:00:00" in caplog.text


def test_an_operator_has_old_settings_back_who_says_so() -> None:
    place = Place()
    for name in ("a", "b"):
        asyncio.run(join(place.door(name)))
    asyncio.run(join(place.door("a", redeploys=True)))
    assert place.deployed is not None
    assert (place.deployed.settings, place.deployed.replaced) == ("a", ["b"])
    asyncio.run(join(place.door("b")))  # which is the old one now
    assert place.deployed.settings == "a"


def test_a_door_of_a_replaced_model_does_not_join_another_ones_replicas() -> None:
    place = Place()
    asyncio.run(join(place.door("a", "/small")))
    asyncio.run(join(place.door("b", "/large")))
    with pytest.raises(EngineError, match=r"model /large and not /small.*redeploy"):
        asyncio.run(join(place.door("a", "/small")))
    assert place.deployments == 2


@pytest.mark.parametrize(("release", "named"), [("9.9.9+aa", "9.9.9+aa"), ("", "an earlier")])
def test_a_door_of_another_version_is_refused_and_told_both(release: str, named: str) -> None:
    place = Place()
    asyncio.run(join(place.door("a")))
    place.release = release
    with pytest.raises(EngineError) as refused:
        asyncio.run(join(place.door("b")))
    assert named in str(refused.value)
    assert own_release() in str(refused.value)
    assert place.deployments == 1


def test_what_is_remembered_is_bounded() -> None:
    there = settings("0")
    for number in range(1, 200):
        following = successor(settings(str(number)), there, redeploys=False)
        assert following is not None
        there = following
    assert there.replaced == [str(number) for number in range(199 - 64, 199)]
    assert successor(structs.replace(settings("150")), there, redeploys=False) is None
