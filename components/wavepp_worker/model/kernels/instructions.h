// What this CPU can, for kernels that come in several forms. Without AVX2 none of them is called.

#pragma once

// AVX512-BF16 and what the kernels in bfloat16 need beside it (AMD Zen 4, Intel Sapphire Rapids, and newer).
bool has_bfloat16();
// Vectors of 16 floats.
bool has_avx512();
// A first-level data cache of 48 KiB or more (AMD Zen 5, Intel Sunny Cove, and newer), as far as it says.
bool has_large_cache();
