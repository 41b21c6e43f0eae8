"""Kernels of libraries for GPUs, and the modules that go through them."""
