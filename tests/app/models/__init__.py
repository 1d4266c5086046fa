"""Tests of the models that there are to serve."""
