"""Which packages are installed; everything else is in pyproject.toml, which cannot add some to those that it finds."""

from __future__ import annotations

from setuptools import find_packages, setup

# The repository's graphs and configs go into our own package: their plain names would be everybody's.
setup(
    package_dir={
        "": "components",
        "wavepp_worker.graphs": "graphs",
        "wavepp_worker.configs": "configs",
    },
    packages=[*find_packages("components"), "wavepp_worker.graphs", "wavepp_worker.configs"],
)
