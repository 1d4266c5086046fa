"""The operations in C for CPUs: a folder for each door, with its Python beside its C.

What they share lies in `processor/`, what is made of them here. `NAME.template.h` is compiled many
times: for instruction sets or element types, as macros say that stand before it.
"""
