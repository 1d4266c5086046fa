"""Functions over tensors: paged attention, the operations around it, and packed matrix products.

The doors (`attention`, `layers`, `linear`, `experts`, `sampling`, `penalties`) pick the room that
fits the tensors' device: `triton` for GPUs, `native` (C) for CPUs, and `reference` (plain torch)
where neither runs. A door's functions lie in the module of its name in every room. The kernels know
blocks and slots, no requests and no models.
"""
