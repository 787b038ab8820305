//! The functions that rules put into plans, for codecs: those that are known by their name, and what the others are
//! made of besides their arguments.

use arrow::datatypes::DataType;
use datafusion_expr::{AggregateUDF, Expr, ScalarUDF};

use crate::expr::decimal_average::DecimalAverageUdf;
use crate::expr::distance::DistanceUdf;
use crate::expr::duration::{DaysAsTimeUdf, SecondsUdf};
use crate::expr::float_bound::FloatBoundUdf;
use crate::expr::index_lookup::{IndexLookupUdf, IndexSlot};
use crate::expr::interval_bound::{Compared, IntervalBoundUdf};
use crate::expr::interval_product::IntervalProductUdf;
use crate::expr::key_bound::KeyBoundUdf;
use crate::expr::late_error::{FallibleUdf, RaiseUdf};
use crate::expr::length_bound::{End, LengthBoundUdf};
use crate::expr::nullable::NullableUdf;
use crate::expr::order_key::{OrderBoundUdf, OrderKeyUdf};
use crate::expr::shifted_bound::{ShiftedBoundUdf, ZonedSumUdf};
use crate::expr::text_range::{TextRange, TextRangeUdf};
use crate::expr::total_order::TotalOrderUdaf;
use rmq_arrow::common::range_function::RangeFunction;
use rmq_engine::{Comparison, Extreme};

/// The functions that rules put into plans and that are known by their name: a session that executes such plans
/// registers them.
#[must_use]
pub fn named_functions() -> (Vec<ScalarUDF>, Vec<AggregateUDF>) {
    let mut scalars = vec![
        ScalarUDF::from(DaysAsTimeUdf::new()),
        ScalarUDF::from(IntervalBoundUdf::new(Compared::Sum)),
        ScalarUDF::from(IntervalBoundUdf::new(Compared::Difference)),
        ScalarUDF::from(IntervalProductUdf::new()),
        ScalarUDF::from(NullableUdf::new()),
        ScalarUDF::from(RaiseUdf::new()),
        ScalarUDF::from(DistanceUdf::new()),
        ScalarUDF::from(ShiftedBoundUdf::new()),
        ScalarUDF::from(ZonedSumUdf::new()),
        ScalarUDF::from(SecondsUdf::new()),
    ];
    scalars.extend(End::ALL.map(|end| ScalarUDF::from(LengthBoundUdf::new(end))));
    scalars.extend(TextRange::ALL.map(|range| ScalarUDF::from(TextRangeUdf::new(range))));
    let extremes = [Extreme::Min, Extreme::Max].map(TotalOrderUdaf::new);
    (scalars, extremes.map(AggregateUDF::from).to_vec())
}

/// A function, and what it is made of.
#[derive(Debug, Clone)]
pub enum FunctionParts {
    /// A bound in the type of a key: `comparison` of `key * factor` and `bound * bound_factor + offset`.
    KeyBound {
        /// How the key compares with the bound.
        comparison: Comparison,
        /// The factors of the key and of the bound.
        factors: (i128, i128),
        /// What is added to the bound.
        offset: i128,
        /// What is added at the other end, if both ends are about a difference that may wrap around.
        opposite: Option<i128>,
        /// The type of the key.
        key_type: DataType,
    },
    /// A float that no key at a length from a bound is below, or above.
    FloatBound {
        /// Whether no key is below it.
        is_lower: bool,
        /// The length.
        length: f64,
    },
    /// Bytes in the order of values.
    OrderKey {
        /// For each value whether its order is descending, and whether NULL comes first.
        orders: Vec<(bool, bool)>,
    },
    /// The bytes before, or after, all whose first value is a bound.
    OrderBound {
        /// The number of values if the bytes are after the others.
        after: Option<usize>,
    },
    /// The average of decimals, of their sum and count.
    DecimalAverage {
        /// Its type.
        average: DataType,
    },
    /// The value of an expression that may fail, or its error.
    Fallible {
        /// Whether it is the error.
        is_error: bool,
        /// The expression, over columns that are named by the index of the argument.
        expr: Box<Expr>,
        /// The types of the arguments.
        types: Vec<DataType>,
        /// The type of the value.
        data_type: DataType,
    },
    /// A range function that an expression computes, of an index that an operator has prepared.
    IndexLookup {
        /// The function.
        function: RangeFunction,
        /// The type of its result.
        data_type: DataType,
        /// Where the expression finds the index.
        slot: IndexSlot,
    },
}

impl FunctionParts {
    /// The parts of a function; `None` for one that is known by its name.
    #[must_use]
    pub fn of(function: &ScalarUDF) -> Option<Self> {
        let inner = function.inner();
        if let Some(udf) = inner.downcast_ref::<KeyBoundUdf>() {
            return Some(Self::KeyBound {
                comparison: udf.comparison,
                factors: (udf.factor, udf.bound_factor),
                offset: udf.offset,
                opposite: udf.opposite,
                key_type: udf.key_type.clone(),
            });
        }
        if let Some(udf) = inner.downcast_ref::<FloatBoundUdf>() {
            return Some(Self::FloatBound {
                is_lower: udf.is_lower,
                length: udf.length,
            });
        }
        if let Some(udf) = inner.downcast_ref::<OrderKeyUdf>() {
            let orders = udf.orders.clone();
            return Some(Self::OrderKey { orders });
        }
        if let Some(udf) = inner.downcast_ref::<OrderBoundUdf>() {
            return Some(Self::OrderBound { after: udf.after });
        }
        if let Some(udf) = inner.downcast_ref::<DecimalAverageUdf>() {
            let average = udf.average.clone();
            return Some(Self::DecimalAverage { average });
        }
        if let Some(udf) = inner.downcast_ref::<FallibleUdf>() {
            return Some(Self::Fallible {
                is_error: udf.is_error(),
                expr: Box::new(udf.expr.clone()),
                types: udf.types.clone(),
                data_type: udf.data_type.clone(),
            });
        }
        let udf = inner.downcast_ref::<IndexLookupUdf>()?;
        Some(Self::IndexLookup {
            function: udf.function(),
            data_type: udf.data_type.clone(),
            slot: udf.slot().clone(),
        })
    }
}

impl From<FunctionParts> for ScalarUDF {
    fn from(parts: FunctionParts) -> Self {
        match parts {
            FunctionParts::KeyBound {
                comparison,
                factors,
                offset,
                opposite,
                key_type,
            } => {
                let udf = KeyBoundUdf::new(comparison, factors, key_type).with_offset(offset);
                Self::from(match opposite {
                    Some(opposite) => udf.with_opposite(opposite),
                    None => udf,
                })
            }
            FunctionParts::FloatBound { is_lower, length } => {
                Self::from(FloatBoundUdf::new(is_lower, length))
            }
            FunctionParts::OrderKey { orders } => Self::from(OrderKeyUdf::new(orders)),
            FunctionParts::OrderBound { after } => Self::from(OrderBoundUdf::new(after)),
            FunctionParts::DecimalAverage { average } => {
                Self::from(DecimalAverageUdf::new(average))
            }
            FunctionParts::Fallible {
                is_error,
                expr,
                types,
                data_type,
            } => Self::from(FallibleUdf::new(is_error, *expr, types, data_type)),
            FunctionParts::IndexLookup {
                function,
                data_type,
                slot,
            } => Self::from(IndexLookupUdf::new(function, data_type, slot)),
        }
    }
}
