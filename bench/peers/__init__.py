"""Partywall beside other servers."""
