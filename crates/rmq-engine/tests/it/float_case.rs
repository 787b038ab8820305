//! Columns of floats of all kinds, and their sums in integers.

use rmq_testing::Random;

/// The exponent of the smallest digit of usual values.
const UNIT: i32 = -10;

/// The exponent of the smallest digit of values that blocks of sums can't contain. All are even multiples, so that sums
/// up to the greatest float are floats.
const HUGE_UNIT: i32 = 970;

/// Bits of floats: integers of 2^-10 of up to 73 bits, also with NaN and infinities, or with huge values and their
/// negatives.
pub fn random_floats(n: usize, random: &mut Random) -> Vec<u64> {
    let kind = random.below(5);
    let every = 1 + random.below(n.max(1));
    let mut floats: Vec<f64> = vec![];
    for i in 0..n {
        let sign = if random.below(2) == 0 { 1.0 } else { -1.0 };
        let digits = (random.next() >> random.below(64)) >> 11;
        let usual = sign * digits as f64 * 2_f64.powi(UNIT + random.below(20) as i32);
        let earlier = floats.get(random.below(n)).copied();
        let float = match kind {
            0 => usual,
            // Many sums cancel out.
            1 => earlier.filter(|_| i % 2 == 0).map_or(usual, |one| -one),
            2 if random.below(every) == 0 => {
                [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY][random.below(4)]
            }
            3 if random.below(every) == 0 => {
                let multiple = 2.0 * (1 + random.below(1000)) as f64;
                sign * multiple * 2_f64.powi(HUGE_UNIT)
            }
            4 if random.below(every) == 0 => sign * f64::MAX,
            _ => usual,
        };
        floats.push(float);
    }
    floats.into_iter().map(f64::to_bits).collect()
}

/// The bits of the rounded sum of floats, and of its rounding error; `None` without floats.
pub fn exact_sum(floats: impl Iterator<Item = u64>) -> Option<[u64; 2]> {
    let floats: Vec<f64> = floats.map(f64::from_bits).collect();
    if floats.is_empty() {
        return None;
    }
    let specials: f64 = floats.iter().filter(|one| !one.is_finite()).sum();
    if !specials.is_finite() {
        let special = if specials.is_nan() {
            f64::NAN
        } else {
            specials
        };
        return Some([special.to_bits(), 0]);
    }
    let is_huge = |one: &&f64| one.abs() >= 2_f64.powi(HUGE_UNIT);
    let huge = floats.iter().filter(is_huge);
    let huge: i128 = huge.map(|one| (one * 2_f64.powi(-HUGE_UNIT)) as i128).sum();
    let usual = floats.iter().filter(|one| !is_huge(one));
    let usual: i128 = usual.map(|one| (one * 2_f64.powi(-UNIT)) as i128).sum();
    let rounded = usual as f64;
    let unit = 2_f64.powi(UNIT);
    let [sum, error] = if huge.abs() >= 1 << 54 {
        [f64::INFINITY.copysign(huge as f64), 0.0]
    } else if huge != 0 {
        [huge as f64 * 2_f64.powi(HUGE_UNIT), rounded * unit]
    } else {
        [rounded * unit, (usual - rounded as i128) as f64 * unit]
    };
    Some([sum.to_bits(), error.to_bits()])
}
