"""A child that hangs as it loads: `python -m tests.engine.serve.hanging ADDRESS PARENT CONFIG`."""

from __future__ import annotations

import sys
import time

import zmq

from engine.assembly.process import die_with
from engine.serve.messages import Loading, encode

if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    socket = zmq.Context().socket(zmq.PAIR)
    socket.connect(sys.argv[1])
    socket.send(encode(Loading("libraries")))
    time.sleep(600)
