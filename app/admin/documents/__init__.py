"""What an operator sees and sets, a subject a file: all of it can be imported from here."""

# ruff: noqa: F403
from app.admin.documents.records import *
from app.admin.documents.usage import *
