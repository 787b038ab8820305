//! Covariances, correlations and regressions of many groups at once.
//!
//! DataFusion computes those of groups one by one, or, `corr`, from plain sums of squares, which are less exact. Here a
//! group's numbers, means, and sums of squared and multiplied distances from the means are those that DataFusion's own
//! accumulators find, bit by bit, as the same operations come in the same order: those of Welford, "Note on a method
//! for calculating corrected sums of squares and products", Technometrics 1962, and of Chan, Golub and `LeVeque`,
//! "Updating formulae and a pairwise algorithm for computing sample variances", COMPSTAT 1982.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, UInt64Array};
use arrow::buffer::NullBuffer;
use arrow::compute::prep_null_mask_filter;
use arrow::datatypes::{Float64Type, UInt64Type};
use datafusion::common::{Result, internal_err};
use datafusion::functions_aggregate::correlation::Correlation;
use datafusion::functions_aggregate::covariance::{CovariancePopulation, CovarianceSample};
use datafusion::functions_aggregate::regr::Regr;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;

/// A function of pairs of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PairFunction {
    CovarianceSample,
    CovariancePopulation,
    Correlation,
    Regression(Regression),
}

/// A function of the line that is closest to points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Regression {
    Slope,
    Intercept,
    Count,
    R2,
    MeanX,
    MeanY,
    SquaresX,
    SquaresY,
    Products,
}

impl PairFunction {
    fn of(function: &AggregateFunctionExpr) -> Option<Self> {
        let inner = function.fun().inner();
        if inner.is::<CovarianceSample>() {
            return Some(Self::CovarianceSample);
        }
        if inner.is::<CovariancePopulation>() {
            return Some(Self::CovariancePopulation);
        }
        if inner.is::<Correlation>() {
            return Some(Self::Correlation);
        }
        if !inner.is::<Regr>() {
            return None;
        }
        Some(Self::Regression(match function.fun().name() {
            "regr_slope" => Regression::Slope,
            "regr_intercept" => Regression::Intercept,
            "regr_count" => Regression::Count,
            "regr_r2" => Regression::R2,
            "regr_avgx" => Regression::MeanX,
            "regr_avgy" => Regression::MeanY,
            "regr_sxx" => Regression::SquaresX,
            "regr_syy" => Regression::SquaresY,
            "regr_sxy" => Regression::Products,
            _ => return None,
        }))
    }

    fn is_regression(self) -> bool {
        matches!(self, Self::Regression(_))
    }
}

/// The moments of the pairs of a group: `a` is the first argument of the function, but of regressions the second.
#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    count: u64,
    mean_a: f64,
    mean_b: f64,
    /// The sums of the squares of the distances from the means, and of their products.
    squares_a: f64,
    squares_b: f64,
    products: f64,
}

#[expect(clippy::cast_precision_loss, reason = "as DataFusion counts")]
impl Moments {
    fn add(&mut self, a: f64, b: f64) {
        self.count += 1;
        let count = self.count as f64;
        let (from_a, from_b) = (a - self.mean_a, b - self.mean_b);
        self.mean_a += from_a / count;
        self.mean_b += from_b / count;
        self.squares_a += from_a * (a - self.mean_a);
        self.squares_b += from_b * (b - self.mean_b);
        self.products += from_a * (b - self.mean_b);
    }

    fn merge(&mut self, other: &Self, function: PairFunction) {
        if other.count == 0 {
            return;
        }
        let count = self.count + other.count;
        let (n, old, new) = (count as f64, self.count as f64, other.count as f64);
        let (from_a, from_b) = (self.mean_a - other.mean_a, self.mean_b - other.mean_b);
        let mean = |mean: f64, of_new: f64| {
            if function.is_regression() {
                mean + (of_new - mean) * new / n
            } else {
                mean * old / n + of_new * new / n
            }
        };
        *self = Self {
            count,
            mean_a: mean(self.mean_a, other.mean_a),
            mean_b: mean(self.mean_b, other.mean_b),
            squares_a: self.squares_a + other.squares_a + from_a * from_a * old * new / n,
            squares_b: self.squares_b + other.squares_b + from_b * from_b * old * new / n,
            products: self.products + other.products + from_a * from_b * old * new / n,
        };
    }

    /// The value of a function, but of a number of pairs.
    fn value(&self, function: PairFunction) -> Option<f64> {
        let Self {
            count,
            mean_a,
            mean_b,
            ..
        } = *self;
        let n = count as f64;
        let (covariance, variance_a, variance_b) =
            (self.products / n, self.squares_a / n, self.squares_b / n);
        let is_line = count > 1 && variance_a != 0.0;
        match function {
            PairFunction::CovarianceSample => {
                (count > 1).then(|| self.products / (count - 1) as f64)
            }
            PairFunction::CovariancePopulation => (count > 0).then_some(covariance),
            PairFunction::Correlation => {
                if mean_a.is_nan() && mean_b.is_nan() {
                    return Some(f64::NAN);
                }
                if mean_a.is_nan() || mean_b.is_nan() || count < 2 {
                    return None;
                }
                let (deviation_a, deviation_b) = (variance_a.sqrt(), variance_b.sqrt());
                (deviation_a != 0.0 && deviation_b != 0.0)
                    .then_some(covariance / deviation_a / deviation_b)
            }
            PairFunction::Regression(Regression::Slope) => {
                is_line.then_some(covariance / variance_a)
            }
            PairFunction::Regression(Regression::Intercept) => {
                is_line.then_some(mean_b - covariance / variance_a * mean_a)
            }
            PairFunction::Regression(Regression::R2) => (is_line && variance_b != 0.0)
                .then_some(covariance * covariance / (variance_a * variance_b)),
            PairFunction::Regression(Regression::Count) => None,
            PairFunction::Regression(Regression::MeanX) => (count > 0).then_some(mean_a),
            PairFunction::Regression(Regression::MeanY) => (count > 0).then_some(mean_b),
            PairFunction::Regression(Regression::SquaresX) => (count > 0).then_some(self.squares_a),
            PairFunction::Regression(Regression::SquaresY) => (count > 0).then_some(self.squares_b),
            PairFunction::Regression(Regression::Products) => (count > 0).then_some(self.products),
        }
    }
}

/// The moments of groups of pairs. Its states are those of DataFusion's accumulator of the same function.
#[derive(Debug)]
pub(crate) struct PairMoments {
    function: PairFunction,
    groups: Vec<Moments>,
}

impl PairMoments {
    /// Those of a function, if it is one of pairs of numbers.
    pub(crate) fn of(function: &AggregateFunctionExpr) -> Option<Self> {
        Some(Self {
            function: PairFunction::of(function).filter(|_| !function.is_distinct())?,
            groups: vec![],
        })
    }

    fn field(groups: &[Moments], value: impl Fn(&Moments) -> f64) -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(groups.iter().map(value)))
    }
}

impl GroupsAccumulator for PairMoments {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        let [first, second] = values else {
            return internal_err!("a function of pairs has two arguments");
        };
        self.groups.resize(total_num_groups, Moments::default());
        let [first, second] = [first, second].map(AsArray::as_primitive::<Float64Type>);
        let passing = opt_filter.map(|filter| match filter.null_count() {
            0 => NullBuffer::new(filter.values().clone()),
            _ => NullBuffer::new(prep_null_mask_filter(filter).values().clone()),
        });
        let valid = NullBuffer::union(first.nulls(), passing.as_ref());
        let valid = NullBuffer::union(valid.as_ref(), second.nulls());
        let [a, b] = if self.function.is_regression() {
            [second.values(), first.values()]
        } else {
            [first.values(), second.values()]
        };
        let pairs = a.iter().zip(b.iter());
        for (row, (group, (a, b))) in group_indices.iter().zip(pairs).enumerate() {
            if valid.as_ref().is_none_or(|valid| valid.is_valid(row)) {
                self.groups[*group].add(*a, *b);
            }
        }
        Ok(())
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        let Some((counts, numbers)) = values.split_first() else {
            return internal_err!("a state of a function of pairs begins with a count");
        };
        let numbers = numbers.iter();
        let numbers = numbers.map(|n| n.as_primitive::<Float64Type>().values().as_ref());
        let numbers: Vec<&[f64]> = numbers.collect();
        let [means_a, means_b, squares_a, squares_b, products] = match (
            self.function,
            numbers.as_slice(),
        ) {
            (PairFunction::Correlation, [mean_a, squares_a, mean_b, squares_b, products])
            | (PairFunction::Regression(_), [mean_a, mean_b, squares_a, squares_b, products]) => {
                [*mean_a, *mean_b, *squares_a, *squares_b, *products]
            }
            // Covariances have no squares and ask for none.
            (_, [mean_a, mean_b, products]) => [*mean_a, *mean_b, *products, *products, *products],
            _ => return internal_err!("a state of a function of pairs lacks numbers"),
        };
        self.groups.resize(total_num_groups, Moments::default());
        let counts = counts.as_primitive::<UInt64Type>().values();
        for (row, (group, count)) in group_indices.iter().zip(counts).enumerate() {
            let state = Moments {
                count: *count,
                mean_a: means_a[row],
                mean_b: means_b[row],
                squares_a: squares_a[row],
                squares_b: squares_b[row],
                products: products[row],
            };
            self.groups[*group].merge(&state, self.function);
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let groups = emit_to.take_needed(&mut self.groups);
        Ok(
            if self.function == PairFunction::Regression(Regression::Count) {
                let counts = groups.iter().map(|group| group.count);
                Arc::new(UInt64Array::from_iter_values(counts))
            } else {
                let values = groups.iter().map(|group| group.value(self.function));
                Arc::new(values.collect::<Float64Array>())
            },
        )
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let groups = emit_to.take_needed(&mut self.groups);
        let counts = groups.iter().map(|group| group.count);
        let counts: ArrayRef = Arc::new(UInt64Array::from_iter_values(counts));
        let means = [
            Self::field(&groups, |group| group.mean_a),
            Self::field(&groups, |group| group.mean_b),
        ];
        let products = Self::field(&groups, |group| group.products);
        let squares = [
            Self::field(&groups, |group| group.squares_a),
            Self::field(&groups, |group| group.squares_b),
        ];
        let ([mean_a, mean_b], [squares_a, squares_b]) = (means, squares);
        Ok(match self.function {
            PairFunction::CovarianceSample | PairFunction::CovariancePopulation => {
                vec![counts, mean_a, mean_b, products]
            }
            PairFunction::Correlation => {
                vec![counts, mean_a, squares_a, mean_b, squares_b, products]
            }
            PairFunction::Regression(_) => {
                vec![counts, mean_a, mean_b, squares_a, squares_b, products]
            }
        })
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let rows = values.first().map_or(0, Array::len);
        let mut groups = Self {
            function: self.function,
            groups: vec![],
        };
        groups.update_batch(values, &(0..rows).collect::<Vec<_>>(), opt_filter, rows)?;
        groups.state(EmitTo::All)
    }

    fn size(&self) -> usize {
        self.groups.capacity() * size_of::<Moments>()
    }
}
