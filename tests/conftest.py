"""Threads of the test process, decided before anything imports torch."""

import os

from engine.threads import thread_environment

# One thread for the references computed here: the engines under test need the cores.
os.environ.update(thread_environment(threads=1))
