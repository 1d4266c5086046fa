"""`python -m app.cli`: the command `partywall` where it is not installed."""

from app.cli import main

main()
