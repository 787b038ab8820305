//! Random numbers by counting, the same on the host and on the device (`kernels/baselines/limit.cu`).

/// A number for each `key`: the finalizer of `SplitMix64`.
pub fn mix(key: u64) -> u64 {
    let mut z = key.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Uniform in (0, 1).
pub fn unit(key: u64) -> f64 {
    ((mix(key) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}
