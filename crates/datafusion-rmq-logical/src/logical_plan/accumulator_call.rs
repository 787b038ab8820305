//! An aggregate that a range join has no index or prefix sum for: the function's own accumulator sees the rows of each
//! range.

use std::sync::Arc;

use arrow::array::{ArrayRef, new_null_array};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion_common::Result;
use datafusion_common::scalar::ScalarValue;
use datafusion_expr::AggregateUDF;
use datafusion_physical_expr::aggregate::{AggregateExprBuilder, AggregateFunctionExpr};
use datafusion_physical_expr::expressions::{Column, Literal};
use datafusion_physical_expr::{PhysicalExprRef, PhysicalSortExpr};

use crate::expr::order_statistic::order_statistic_of;
use crate::expr::state_function::StateFunction;
use rmq_arrow::range_agg::order_statistics::OrderStatistic;

/// The call of an aggregate function, over the arguments of a
/// [`RangeAggregate`](crate::logical_plan::range_join::RangeAggregate): first those of the function that are not
/// literals, then the expressions of ORDER BY that are none of these, then the condition of FILTER.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct AccumulatorCall {
    /// The function.
    pub function: Arc<AggregateUDF>,
    /// The function's arguments: a literal, or `None` for the next argument of the aggregate.
    pub literals: Vec<Option<ScalarValue>>,
    /// The expressions of ORDER BY.
    pub order_by: Vec<AccumulatorOrder>,
    /// Whether there is a FILTER.
    pub is_filtered: bool,
    /// Whether there is a DISTINCT.
    pub is_distinct: bool,
    /// Whether there is an IGNORE NULLS.
    pub ignores_nulls: bool,
    /// What the aggregate is of an accumulator that has seen the rows.
    pub output: AccumulatorOutput,
    /// The call as EXPLAIN shows it.
    pub text: String,
}

/// What a range join returns of a range whose rows an accumulator sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub enum AccumulatorOutput {
    /// The accumulator's value.
    Value,
    /// The accumulator's state, a struct. It is NULL without rows.
    State,
    /// Which sorted rows they are, a struct of [`AccumulatorCall::range_type`]. A
    /// `GroupStatistics` above GROUP BY has the value of the
    /// ranges of each group.
    Range,
}

/// An expression of ORDER BY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub struct AccumulatorOrder {
    /// The index of the expression among the arguments of the aggregate.
    pub argument: usize,
    /// Whether the order is ascending.
    pub ascending: bool,
    /// Whether NULLs come first.
    pub nulls_first: bool,
}

impl AccumulatorCall {
    /// The order statistic that it computes of its only column, if it is one.
    pub fn order_statistic(&self) -> Option<OrderStatistic> {
        if self.is_filtered || self.output == AccumulatorOutput::State {
            return None;
        }
        let percentile = match self.literals.as_slice() {
            [None] => None,
            [None, percentile @ Some(_)] => percentile.as_ref(),
            _ => return None,
        };
        // Only the direction matters: ORDER BY is by the value, or by what was cast to it.
        let is_descending = self.order_by.first().is_some_and(|by| !by.ascending);
        order_statistic_of(&self.function, self.is_distinct, percentile, is_descending)
    }

    /// The physical function over columns that have the types of the aggregate's arguments, without its FILTER. Its
    /// columns are named by their index.
    ///
    /// # Errors
    /// DataFusion's, if the function does not accept the types.
    pub fn physical(&self, types: &[DataType]) -> Result<AggregateFunctionExpr> {
        let fields = types.iter().enumerate();
        let fields = fields.map(|(i, t)| Field::new(i.to_string(), t.clone(), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let column = |i: usize| Arc::new(Column::new(&i.to_string(), i)) as PhysicalExprRef;
        let mut columns = (0..types.len()).map(column);
        let arguments = self.literals.iter().map(|literal| match literal {
            Some(literal) => Some(Arc::new(Literal::new(literal.clone())) as PhysicalExprRef),
            None => columns.next(),
        });
        let arguments = arguments.flatten().collect();
        let order_by = self.order_by.iter().map(|order| PhysicalSortExpr {
            expr: column(order.argument),
            options: order.options(),
        });
        AggregateExprBuilder::new(Arc::clone(&self.function), arguments)
            .schema(schema)
            .alias(&self.text)
            .order_by(order_by.collect())
            .with_distinct(self.is_distinct)
            .with_ignore_nulls(self.ignores_nulls)
            .build()
    }

    /// The type of an accumulator's state over columns of these types: a struct of its fields.
    ///
    /// # Errors
    /// As [`Self::physical`].
    pub fn state_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(StateFunction::try_new(self.physical(types)?)?.state_type())
    }

    /// Why there is no state over columns of these types such as `state`, which has been returned without rows, if
    /// there is none.
    ///
    /// # Errors
    /// As [`Self::physical`].
    pub fn why_no_state(
        &self,
        types: &[DataType],
        state: &[ScalarValue],
    ) -> Result<Option<&'static str>> {
        let DataType::Struct(fields) = self.state_type(types)? else {
            return Ok(Some("has no state"));
        };
        let stated = fields.iter().map(|field| field.data_type().clone());
        let is_stated = state.iter().map(ScalarValue::data_type).eq(stated);
        Ok((!is_stated).then_some("has another state than it says"))
    }

    /// The type of a range of sorted rows: the number of the build side that has them, the first row, and the one
    /// after the last.
    #[must_use]
    pub fn range_type() -> DataType {
        let field = |name| Field::new(name, DataType::UInt32, false);
        DataType::Struct(["side", "start", "end"].map(field).into_iter().collect())
    }

    /// What an accumulator is shown of a row whose columns, of these types, are all NULL. `None` if FILTER excludes the
    /// row.
    ///
    /// # Errors
    /// As [`Self::physical`].
    pub fn row_of_nulls(&self, types: &[DataType]) -> Result<Option<Vec<ArrayRef>>> {
        if self.is_filtered {
            return Ok(None);
        }
        let null = |i: usize| new_null_array(&types[i], 1);
        let mut columns = 0..self.num_columns();
        let mut row = vec![];
        for literal in &self.literals {
            match literal {
                Some(literal) => row.push(literal.to_array_of_size(1)?),
                None => row.extend(columns.next().map(null)),
            }
        }
        if !self.physical(types)?.order_bys().is_empty() {
            row.extend(self.order_by.iter().map(|order| null(order.argument)));
        }
        Ok(Some(row))
    }

    /// The number of the aggregate's arguments that are arguments of the function.
    #[must_use]
    pub fn num_columns(&self) -> usize {
        self.literals.iter().filter(|l| l.is_none()).count()
    }
}

impl AccumulatorOrder {
    /// The order in Arrow's terms.
    #[must_use]
    pub fn options(&self) -> SortOptions {
        SortOptions::new(!self.ascending, self.nulls_first)
    }
}
