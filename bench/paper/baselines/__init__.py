"""What paging replaced, rebuilt to compare: the memory management of earlier serving systems.

As the PagedAttention paper's section 6.1 compares them (Kwon et al., SOSP 2023): Orca with three
ways to reserve memory, FasterTransformer, and besides `generate()` of transformers.
"""
