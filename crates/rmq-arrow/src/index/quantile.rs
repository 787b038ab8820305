//! Where a quantile is among sorted values, and the value between two of them, as DataFusion's `percentile_cont`
//! computes them.

/// The steps into which the way between two values is divided.
const PRECISION: f64 = 1_000_000.0;

/// Where a statistic is among the sorted values of a range.
pub struct Place {
    /// The numbers of two values, from which the statistic is made. No value has them if the range has none.
    pub lower: u64,
    pub upper: u64,
    /// How far it is from the lower to the upper value, between 0 and 1; `None` if it is the lower one.
    pub weight: Option<f64>,
}

impl Place {
    /// The value with this number.
    pub fn at(place: u64) -> Self {
        Self {
            lower: place,
            upper: place,
            weight: None,
        }
    }

    /// The quantile of a fraction from 0 to 1, where the last value has this number.
    pub fn of_quantile(fraction: f64, last: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "as DataFusion multiplies")]
        let index = fraction * last as f64;
        let floor = index.floor();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and `last`, as a fraction is between 0 and 1"
        )]
        let (lower, upper) = (floor as u64, index.ceil() as u64);
        let weight = ((index - floor) * PRECISION).trunc() / PRECISION;
        Self {
            lower,
            upper,
            weight: (lower != upper).then_some(weight),
        }
    }
}

/// The value on the way from one to another.
pub fn interpolated(lower: f64, upper: f64, weight: f64) -> f64 {
    lower + (upper - lower) * weight
}
