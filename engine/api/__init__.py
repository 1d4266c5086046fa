"""What crosses the engine's border, a subject a file: all of it can be imported from here."""

# ruff: noqa: F403
from engine.api.adapters import *
from engine.api.cache import *
from engine.api.deltas import *
from engine.api.errors import *
from engine.api.kinds import *
from engine.api.pictures import *
from engine.api.requests import *
from engine.api.stats import *
