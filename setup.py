"""Which packages are installed and what is compiled; everything else is in pyproject.toml, which cannot say these."""

from __future__ import annotations

from setuptools import Extension, find_packages, setup

# Without a compiler they are left out: torch's kernels then do their work.
kernels = Extension(
    "wavepp_worker.model.cpu._kernels",
    sources=[
        f"components/wavepp_worker/model/cpu/kernels/{name}.cpp"
        for name in (
            "instructions",
            *("paged_attention", "attention_bfloat16", "attention_bfloat16_few", "attention_float"),
            *("attention_amx", "attention_amx_few"),
            *("linear", "thin_linear_bfloat16", "thin_linear_float"),
            *("gemm", "gemm_amx", "gemm_bfloat16", "gemm_float", "gemm_widened"),
            *("elementwise", "elementwise_bfloat16", "elementwise_float"),
            "decoder_layers",
        )
    ],
    depends=[
        f"components/wavepp_worker/model/cpu/kernels/{name}.h"
        for name in (
            "attention_bfloat16",
            "attention_bfloat16_rows",
            "attention_tasks",
            "calls",
            "elementwise",
            "gemm",
            "gemm_bfloat16",
            "gemm_blocks",
            "gemm_weights",
            "instructions",
            "product",
            "scratch",
            "subnormals",
            "thin_linear",
            "amx",
            "attention_amx",
            "vectors_bfloat16",
            "vectors_float",
        )
    ],
    extra_compile_args=["-O3", "-std=c++17", "-fopenmp", "-fno-math-errno", "-Wno-maybe-uninitialized"],
    extra_link_args=["-fopenmp"],
    language="c++",
    optional=True,
)

# The repository's graphs and configs go into our own package: their plain names would be everybody's.
setup(
    package_dir={
        "": "components",
        "wavepp_worker.graphs": "graphs",
        "wavepp_worker.configs": "configs",
    },
    packages=[*find_packages("components"), "wavepp_worker.graphs", "wavepp_worker.configs"],
    ext_modules=[kernels],
)
