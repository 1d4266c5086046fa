"""A real model whose layers keep states: beside other servers, and beside itself without a past."""
