"""A program that dies as under the kernel's killer of processes that take too much memory."""

import os
import signal

os.kill(os.getpid(), signal.SIGKILL)
