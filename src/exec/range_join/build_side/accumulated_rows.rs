//! The rows of a build side as an accumulator sees them.
//!
//! The accumulator sees slices of the sorted columns, so rows are copied only for a FILTER that drops some of them, and
//! for an ORDER BY in another order than that of the range key. ORDER BY is resolved once for all rows, to the rank of
//! each row.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt32Array};
use arrow::compute::{prep_null_mask_filter, take, take_arrays};
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::Accumulator;

use crate::states::aggregated_rows::AggregatedRows;
use datafusion_rmq_logical::expr::state_function::StateFunction;
use datafusion_rmq_logical::logical_plan::accumulator_call::AccumulatorCall;
use rmq_arrow::sorted::id_table::number;

/// The rows that an accumulator sees at a time.
const STEP: usize = 1 << 16;

/// A call of an aggregate function over sorted rows.
#[derive(Debug)]
pub(crate) struct AccumulatedRows {
    call: Arc<AccumulatorCall>,
    function: StateFunction,
    /// The types of all columns of the call.
    types: Vec<DataType>,
    rows: usize,
    /// What the accumulator takes: the arguments of the function that are no literals, and the expressions of ORDER BY
    /// if it asks for them.
    columns: Vec<ArrayRef>,
    /// The rank of each row by ORDER BY.
    ranks: Option<Vec<u32>>,
    /// The rows for which FILTER holds.
    filter: Option<BooleanArray>,
    /// Registers the ranks.
    ranks_memory: MemoryReservation,
}

impl AccumulatedRows {
    /// Of sorted columns, one for each argument of the call.
    pub(crate) fn try_new(
        call: &Arc<AccumulatorCall>,
        mut columns: Vec<ArrayRef>,
        memory: &MemoryReservation,
    ) -> Result<Self> {
        let types = columns.iter().map(|c| c.data_type().clone());
        let types: Vec<DataType> = types.collect();
        let function = StateFunction::try_new(call.physical(&types)?)?;
        let rows = columns.first().map_or(0, Array::len);
        let order_columns = call.order_by.iter();
        let order_columns = order_columns.map(|order| Arc::clone(&columns[order.argument]));
        let order_columns: Vec<ArrayRef> = order_columns.collect();
        let filter = columns.last().filter(|_| call.is_filtered).map(|filter| {
            let filter = filter.as_boolean();
            match filter.null_count() {
                0 => filter.clone(),
                _ => prep_null_mask_filter(filter),
            }
        });
        columns.truncate(call.num_columns());
        let ranks_memory = memory.new_empty();
        let ranks = if order_columns.is_empty() {
            None
        } else {
            Some(ranks(&order_columns, call, &ranks_memory)?)
        };
        if !function.function.order_bys().is_empty() {
            columns.extend(order_columns);
        }
        Ok(Self {
            call: Arc::clone(call),
            function,
            types,
            rows,
            columns,
            ranks,
            filter,
            ranks_memory,
        })
    }

    /// The number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// The call of the function.
    pub(crate) fn call(&self) -> &AccumulatorCall {
        &self.call
    }

    /// Whether the accumulator sees rows in an order of its own.
    pub(crate) fn is_ordered(&self) -> bool {
        self.ranks.is_some()
    }

    /// The rows of a range by ORDER BY; `None` if that is their order already.
    fn order_of(&self, start: usize, end: usize) -> Option<Vec<u32>> {
        let ranks = self.ranks.as_ref()?;
        if ranks[start..end].is_sorted() {
            return None;
        }
        let mut rows: Vec<u32> = (start..end).map(number).collect();
        rows.sort_unstable_by_key(|row| ranks[*row as usize]);
        Some(rows)
    }

    /// The arguments of the accumulator: literals, and these columns, of `len` rows.
    fn with_literals(&self, columns: Vec<ArrayRef>, len: usize) -> Result<Vec<ArrayRef>> {
        let mut columns = columns.into_iter();
        let mut arguments = vec![];
        for literal in &self.call.literals {
            match literal {
                Some(literal) => arguments.push(literal.to_array_of_size(len)?),
                None => arguments.extend(columns.next()),
            }
        }
        arguments.extend(columns);
        Ok(arguments)
    }
}

impl AggregatedRows for AccumulatedRows {
    fn function(&self) -> &StateFunction {
        &self.function
    }

    fn update(
        &self,
        accumulator: &mut dyn Accumulator,
        range: Range<usize>,
        grow: &dyn Fn(usize) -> Result<()>,
    ) -> Result<()> {
        let (start, end) = (range.start, range.end);
        let mut order = self.order_of(start, end);
        if order.is_none()
            && let Some(filter) = &self.filter
            && filter.slice(start, end - start).has_false()
        {
            order = Some((start..end).map(number).collect());
        }
        let rows: Option<Vec<u32>> = order.map(|mut rows| {
            if let Some(filter) = &self.filter {
                rows.retain(|row| filter.value(*row as usize));
            }
            rows
        });
        let count = rows.as_ref().map_or(end - start, Vec::len);
        for from in (0..count).step_by(STEP) {
            let len = STEP.min(count - from);
            let columns = self.columns.iter();
            let step = match &rows {
                None => columns.map(|c| c.slice(start + from, len)).collect(),
                Some(rows) => {
                    let rows = UInt32Array::from(rows[from..from + len].to_vec());
                    take_arrays(&self.columns, &rows, None)?
                }
            };
            accumulator.update_batch(&self.with_literals(step, len)?)?;
            grow(accumulator.size())?;
        }
        Ok(())
    }

    fn arguments(&self, rows: Range<usize>) -> Result<(Vec<ArrayRef>, Option<BooleanArray>)> {
        let columns = self.columns.iter();
        let columns = columns.map(|c| c.slice(rows.start, rows.len())).collect();
        let filter = self.filter.as_ref();
        let filter = filter.map(|filter| filter.slice(rows.start, rows.len()));
        Ok((self.with_literals(columns, rows.len())?, filter))
    }

    fn copy(&self, rows: Vec<u32>) -> Result<Box<dyn AggregatedRows>> {
        let (count, rows) = (rows.len(), UInt32Array::from(rows));
        let filter = self.filter.as_ref();
        let filter = filter.map(|filter| take(filter, &rows, None)).transpose()?;
        Ok(Box::new(Self {
            call: Arc::clone(&self.call),
            function: StateFunction::try_new(self.call.physical(&self.types)?)?,
            types: self.types.clone(),
            rows: count,
            columns: take_arrays(&self.columns, &rows, None)?,
            ranks: None,
            filter: filter.map(|filter| filter.as_boolean().clone()),
            ranks_memory: self.ranks_memory.new_empty(),
        }))
    }
}

/// The rank of each row by the columns of ORDER BY; of equal rows, the first comes first.
fn ranks(
    columns: &[ArrayRef],
    call: &AccumulatorCall,
    memory: &MemoryReservation,
) -> Result<Vec<u32>> {
    let fields = columns.iter().zip(&call.order_by).map(|(column, order)| {
        SortField::new_with_options(column.data_type().clone(), order.options())
    });
    let converter = RowConverter::new(fields.collect())?;
    let count = columns.first().map_or(0, Array::len);
    memory.try_grow(2 * count * size_of::<u32>())?;
    let rows = converter.convert_columns(columns)?;
    memory.try_grow(rows.size())?;
    let mut order: Vec<u32> = (0..count).map(number).collect();
    order.sort_by(|a, b| rows.row(*a as usize).cmp(&rows.row(*b as usize)));
    let mut ranks = vec![0; count];
    for (rank, row) in order.iter().enumerate() {
        ranks[*row as usize] = number(rank);
    }
    drop((rows, order));
    memory.try_resize(count * size_of::<u32>())?;
    Ok(ranks)
}
