"""A front door that joins by the node at `NODE_IP`, as on a machine of its own.

Of several nodes on one machine Ray would take the head's, and the door end with it.
"""

from __future__ import annotations

import functools

import ray

from app.cli import main

NODE_IP = "127.0.0.2"

if __name__ == "__main__":
    ray.init = functools.partial(ray.init, _node_ip_address=NODE_IP)
    main()
