"""Kernels of our own for CPUs, and the modules that go through them."""
