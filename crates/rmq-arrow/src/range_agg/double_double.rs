//! Double-double arithmetic: an unevaluated sum of two floats has about 106 bits of precision.

/// A sum that is kept as two floats: `hi` is the sum rounded to a float, `lo` the rounding error.
#[derive(Debug, Clone, Copy, Default)]
pub struct DoubleDouble {
    pub hi: f64,
    pub lo: f64,
}

impl DoubleDouble {
    /// Adds values that are no [outliers](crate::range_agg::outliers).
    pub fn add_all(&mut self, values: &[f64]) {
        // The errors are accumulated apart, so that the additions to `hi` don't wait for them.
        let Self { mut hi, mut lo } = *self;
        for value in values {
            let (next, error) = two_sum(hi, *value);
            hi = next;
            lo += error;
        }
        (self.hi, self.lo) = two_sum(hi, lo);
    }

    /// Adds another sum. Each step is renormalized: after a large sum cancels out, its former error is all that is
    /// left.
    pub fn add(&mut self, other: Self) {
        let (hi, error) = two_sum(self.hi, other.hi);
        let (lo, lost) = two_sum(self.lo, other.lo);
        let (hi, lo) = two_sum(hi, error + lo);
        (self.hi, self.lo) = two_sum(hi, lo + lost);
    }

    /// Multiplies by a power of two, which is exact.
    pub fn scale(self, factor: f64) -> Self {
        Self {
            hi: self.hi * factor,
            lo: self.lo * factor,
        }
    }
}

/// Adds two floats: returns the rounded sum and its exact rounding error (Knuth's `TwoSum`). The sum must not overflow.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}
