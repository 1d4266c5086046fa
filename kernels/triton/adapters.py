"""What low-rank adapters add to products, on a device: two products of torch for each part."""

from __future__ import annotations

from kernels.reference.adapters import adapt

__all__ = ["adapt"]
