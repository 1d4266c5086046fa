"""What holds for the test process and all that it starts, decided before anything imports torch."""

import os
import signal

from engine.run.threads import thread_environment
from tests.effort import register_profiles

# One thread for the references computed here: the engines under test need the cores.
os.environ.update(thread_environment(threads=1))

# A shell lets its background jobs ignore Ctrl-C, and so would every program that is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

register_profiles()
