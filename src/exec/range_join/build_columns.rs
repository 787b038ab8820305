//! The columns of the build side that a range join reads.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExprRef;

use crate::exec::range_join::aggregate_table::{AggregateEntry, Structure, Structures};
use crate::exec::range_join::row_join::RowJoin;
use datafusion_rmq_logical::common::sql_text::physical_text;
use datafusion_rmq_logical::expr::late_error::{FailedRow, evaluate_late};
use datafusion_rmq_logical::logical_plan::accumulator_call::{AccumulatorCall, AccumulatorOutput};
use datafusion_rmq_logical::logical_plan::range_join::{AggregateKind, RangeJoinSpec};
use rmq_engine::Comparison;

/// The columns of the build side, each once: the equality keys, the range key, then the arguments of the aggregates and
/// the columns that single rows are taken of ("values").
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent properties of a join"
)]
pub(crate) struct BuildColumns {
    expressions: Vec<PhysicalExprRef>,
    /// The number of equality keys, and so the index of the range key.
    pub(crate) num_equality_keys: usize,
    pub(crate) aggregates: Vec<ValueAggregate>,
    /// The columns that single rows are taken of, as indexes among the values.
    pub(crate) row_columns: Vec<usize>,
    /// Whether the join returns single rows of the build side.
    pub(crate) returns_rows: bool,
    /// Whether these are returned in the order of the range key.
    pub(crate) returns_in_order: bool,
    /// The bytes by which they are returned in order instead, as an index among the values, and whether the order is
    /// descending.
    pub(crate) row_order: Option<(usize, bool)>,
    /// Whether it is marked which rows have matched.
    pub(crate) marks_rows: bool,
    /// How the range key compares with each bound.
    pub(crate) comparisons: Vec<Comparison>,
    /// Whether both sides may be divided by hashes of the equality keys.
    pub(crate) may_divide: bool,
    /// Whether a window begins with the last row at or before its lower bound.
    pub(crate) prevailing: bool,
    /// Whether rows stay in their order where keys are equal, whatever the join needs.
    keeps_order: bool,
}

/// An aggregate over values.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ValueAggregate {
    pub(crate) function: AggregateKind,
    /// Its arguments, as indexes among the values.
    pub(crate) arguments: Vec<usize>,
    /// The function that an accumulator computes, if one does.
    pub(crate) call: Option<Arc<AccumulatorCall>>,
}

impl ValueAggregate {
    /// Its entry in the table of aggregates.
    pub(crate) fn entry(&self) -> AggregateEntry {
        AggregateEntry::new(self.function, self.arguments.len(), self.call.as_deref())
    }
}

impl BuildColumns {
    /// The columns for a join of `build`, an input of this schema, which makes `row_join` of single pairs.
    pub(crate) fn new(
        spec: &RangeJoinSpec<PhysicalExprRef>,
        row_join: Option<&RowJoin>,
        build: &Schema,
    ) -> Self {
        let row_columns = row_join.map_or_else(Vec::new, |join| join.row_columns(build));
        let row_join = row_join.filter(|join| !join.returns_probe_rows());
        let mut values: Vec<PhysicalExprRef> = vec![];
        let mut value_index = |value: &PhysicalExprRef| {
            let known = values.iter().position(|v| v.as_ref() == value.as_ref());
            known.unwrap_or_else(|| {
                values.push(Arc::clone(value));
                values.len() - 1
            })
        };
        let aggregates = spec.aggregates.iter().map(|aggregate| {
            let arguments = aggregate.arguments.iter().map(&mut value_index).collect();
            ValueAggregate {
                function: aggregate.function,
                arguments,
                call: aggregate.call.clone(),
            }
        });
        let aggregates = aggregates.collect();
        let row_columns: Vec<usize> = row_columns.iter().map(&mut value_index).collect();
        let row_order = row_join.filter(|join| join.is_ordered()).and_then(|join| {
            let descending = join.limit?.descending;
            Some((*row_columns.last()?, descending))
        });
        let equality_keys = spec.on.iter().map(|(_, build)| build);
        let expressions = equality_keys.chain([&spec.key]).cloned().chain(values);
        Self {
            expressions: expressions.collect(),
            num_equality_keys: spec.on.len(),
            aggregates,
            row_columns,
            returns_rows: row_join.is_some(),
            returns_in_order: row_join.is_some_and(|join| join.limit.is_some()),
            row_order,
            marks_rows: row_join.is_some_and(RowJoin::marks_build_rows),
            comparisons: spec
                .bounds
                .iter()
                .map(|(comparison, _)| *comparison)
                .collect(),
            prevailing: spec.prevailing,
            ..Self::default()
        }
    }

    /// Keys alone, the range key last, of rows that stay in their order where keys are equal.
    pub(crate) fn of_keys(keys: Vec<PhysicalExprRef>) -> Self {
        Self {
            num_equality_keys: keys.len().saturating_sub(1),
            expressions: keys,
            keeps_order: true,
            ..Self::default()
        }
    }

    /// The first aggregate that is of all rows of a range in their order: the value of an accumulator, or the range
    /// itself. States can be merged.
    pub(crate) fn accumulated(&self) -> Option<&AccumulatorCall> {
        let mut calls = self.aggregates.iter().filter_map(|a| a.call.as_deref());
        calls.find(|call| call.output != AccumulatorOutput::State)
    }

    /// Whether what several runs have for a probe row can be put together. Not if accumulators read all rows of a range
    /// in their order, or the nearest rows are returned: then each run must have all rows that a probe row matches.
    pub(crate) fn may_merge(&self) -> bool {
        !self.returns_in_order && self.accumulated().is_none()
    }

    /// Whether the build side may be spilled.
    pub(crate) fn may_spill(&self) -> bool {
        // Of ranges that are returned the rows are read later.
        let mut calls = self.aggregates.iter().filter_map(|a| a.call.as_deref());
        let returns_ranges = calls.any(|call| call.output == AccumulatorOutput::Range);
        self.may_merge() || self.may_divide && !returns_ranges
    }

    /// The structures that the join needs of each of the first `values` values.
    pub(crate) fn structures(&self, values: usize) -> Vec<Structures> {
        let mut all = vec![Structures::default(); values];
        for column in &self.row_columns {
            if let Some(needed) = all.get_mut(*column) {
                needed.add(Structure::Rows);
            }
        }
        for aggregate in &self.aggregates {
            let entry = aggregate.entry();
            for (argument, column) in aggregate.arguments.iter().enumerate() {
                if let Some(needed) = all.get_mut(*column) {
                    needed.extend(entry.needs_of(argument));
                }
            }
        }
        all
    }

    /// The same columns with other aggregates.
    pub(crate) fn with_aggregates(self, aggregates: Vec<ValueAggregate>) -> Self {
        Self { aggregates, ..self }
    }

    /// The same columns, with the range key once more, as the value after the last.
    pub(crate) fn with_key_as_value(mut self) -> Self {
        let key = Arc::clone(self.range_key(&self.expressions));
        self.expressions.push(key);
        self
    }

    /// The same columns, with the range key as the last column that single rows are taken of.
    pub(crate) fn with_key_as_row_column(self) -> Self {
        let column = self.values(&self.expressions).len();
        let mut columns = self.with_key_as_value();
        columns.row_columns.push(column);
        columns
    }

    /// The same columns, of rows that stay in their order where keys are equal.
    pub(crate) fn in_order(self) -> Self {
        Self {
            keeps_order: true,
            ..self
        }
    }

    /// The schema of the columns, which are named by their index, over an input of this schema.
    pub(crate) fn schema(&self, input: &Schema) -> Result<SchemaRef> {
        let fields = self.expressions.iter().enumerate().map(|(i, e)| {
            let nullable = true;
            Ok(Field::new(i.to_string(), e.data_type(input)?, nullable))
        });
        Ok(Arc::new(Schema::new(fields.collect::<Result<Vec<_>>>()?)))
    }

    /// Evaluates the columns over a batch of the input, and returns the rows for which the range key fails. It is NULL
    /// for these: an error counts only where another row has the same equality keys (`KeyErrors`). The arrays share the
    /// batch's buffers and are not its own: while those exist, so does the table that has the batch (`Version`).
    pub(crate) fn evaluate(&self, batch: &RecordBatch) -> Result<(Vec<ArrayRef>, Vec<FailedRow>)> {
        let rows = batch.num_rows();
        let range_key = self.range_key(&self.expressions);
        let (keys, failed) = evaluate_late(range_key, batch)?;
        let arrays = self.expressions.iter().enumerate().map(|(i, e)| {
            if i >= self.num_equality_keys && e.as_ref() == range_key.as_ref() {
                return Ok(keys.slice(0, rows));
            }
            let array = e.evaluate(batch)?.into_array(rows)?;
            Ok(array.slice(0, rows))
        });
        Ok((arrays.collect::<Result<_>>()?, failed))
    }

    /// What the columns are, over the input.
    pub(crate) fn expressions(&self) -> &[PhysicalExprRef] {
        &self.expressions
    }

    /// The equality keys and the range key as EXPLAIN shows them.
    pub(crate) fn key_label(&self) -> String {
        let keys = self.expressions.iter().take(self.num_equality_keys + 1);
        let keys = keys.map(physical_text);
        keys.collect::<Vec<_>>().join(", ")
    }

    /// The equality keys among all columns.
    pub(crate) fn equality_keys<'a, T>(&self, columns: &'a [T]) -> &'a [T] {
        &columns[..self.num_equality_keys]
    }

    /// The range key among all columns.
    pub(crate) fn range_key<'a, T>(&self, columns: &'a [T]) -> &'a T {
        &columns[self.num_equality_keys]
    }

    /// The values among all columns.
    pub(crate) fn values<'a, T>(&self, columns: &'a [T]) -> &'a [T] {
        &columns[self.num_equality_keys + 1..]
    }

    /// Whether the result depends on the order of rows with equal keys.
    pub(crate) fn row_order_matters(&self) -> bool {
        let is_needed = self.prevailing || self.returns_in_order;
        let mut aggregates = self.aggregates.iter();
        self.keeps_order || is_needed || aggregates.any(|a| a.entry().row_order_matters())
    }
}
