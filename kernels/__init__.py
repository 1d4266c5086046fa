"""Functions over tensors: paged attention and KV writes in Triton, for the CPU, and in plain torch.

The kernels know blocks and slots, no requests and no models. `kernels.attention` is the one entry.
"""
