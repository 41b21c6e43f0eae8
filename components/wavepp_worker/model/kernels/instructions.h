// What this CPU can, for kernels that come in several forms.

#pragma once

// AVX512-BF16 and what the kernels in bfloat16 need beside it (AMD Zen 4, Intel Sapphire Rapids, and newer).
bool has_bfloat16();
// AVX2 and FMA (AMD Zen, Intel Haswell, and newer).
bool has_avx2();
// Vectors of 16 floats, with which torch's products are faster than ours in AVX2.
bool has_avx512();
