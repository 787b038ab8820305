//! The nearest rows of a build side in several segments: those that each segment has for a probe row are merged.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use datafusion::common::{Result, internal_err};

use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::candidate_pairs::PairBuffer;
use crate::exec::range_join::row_join::RowJoin;
use crate::exec::range_join::spill::key_extent::KeyOrder;
use datafusion_rmq_logical::logical_plan::nearest_rows::RowLimit;
use rmq_arrow::common::dictionaries::select;
use rmq_arrow::common::row_number::{row_number, row_numbers};
use rmq_arrow::range_agg::values::Values;

/// The pairs that segments have found for the rows of a probe batch: of each row as many as are returned of all.
pub(crate) struct NearestOfSegments {
    /// Those of each segment, by probe row, then in their order.
    pairs: Vec<PairBuffer>,
}

/// A pair: the bytes that order it, its segment, and its number there.
type OrderedPair<'a> = (&'a [u8], usize, usize);

impl NearestOfSegments {
    /// No pairs of this many segments.
    pub(crate) fn new(segments: usize) -> Self {
        let pairs = std::iter::repeat_with(PairBuffer::default);
        Self {
            pairs: pairs.take(segments).collect(),
        }
    }

    /// Adds pairs of a segment.
    pub(crate) fn add(&mut self, segment: usize, pairs: PairBuffer) {
        self.pairs[segment].append(pairs.rows, pairs.positions);
    }

    /// The output rows of a probe batch, in batches of at most `batch_size`. The last row column of the segments orders
    /// their rows: by it, then by segment.
    pub(crate) fn output(
        &self,
        join: &RowJoin,
        (batch, batch_size): (&RecordBatch, usize),
        segments: &[Arc<BuildSide>],
        limit: RowLimit,
    ) -> Result<Vec<RecordBatch>> {
        let taken = self.pairs.iter().zip(segments).map(|(pairs, side)| {
            let positions = UInt32Array::from(pairs.positions.clone());
            let columns = side.row_columns.iter();
            columns.map(|column| column.take(&positions)).collect()
        });
        let taken: Vec<Vec<ArrayRef>> = taken.collect::<Result<_>>()?;
        let keys = taken.iter().map(|columns| {
            let Some(keys) = columns.last() else {
                return internal_err!("the nearest rows of a segment have no order");
            };
            KeyOrder::try_new(keys.data_type())?.encode(keys)
        });
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let mut next = vec![0; self.pairs.len()];
        let (mut rows, mut chosen) = (vec![], vec![]);
        let mut found: Vec<OrderedPair> = vec![];
        for row in 0..batch.num_rows() {
            let row = row_number(row)?;
            found.clear();
            for (segment, (pairs, next)) in self.pairs.iter().zip(&mut next).enumerate() {
                while pairs.rows.get(*next) == Some(&row) {
                    found.push((keys[segment].row(*next).data(), segment, *next));
                    *next += 1;
                }
            }
            // Those of one segment are in their order.
            found.sort_by(|a, b| in_order(a, b, limit.descending));
            let returned = found.iter().skip(limit.skip);
            let returned = returned.take(limit.fetch.unwrap_or(usize::MAX));
            chosen.extend(returned.map(|(_, segment, number)| Some((*segment, *number))));
            if rows.len() == chosen.len() && join.keeps_probe_rows() {
                chosen.push(None);
            }
            rows.resize(chosen.len(), row);
        }
        let mut output = vec![];
        let chosen = chosen.chunks(batch_size.max(1));
        for (rows, chosen) in rows.chunks(batch_size.max(1)).zip(chosen) {
            let columns = (0..segments[0].row_columns.len()).map(|column| {
                let arrays = taken.iter().map(|columns| columns[column].as_ref());
                let arrays: Vec<&dyn Array> = arrays.collect();
                Ok(Arc::new(Values::by_position(select(&arrays, chosen)?)))
            });
            let columns: Vec<Arc<Values>> = columns.collect::<Result<_>>()?;
            let pairs = (
                &UInt32Array::from(rows.to_vec()),
                &UInt32Array::from(row_numbers(0..rows.len())?),
            );
            output.extend(join.output(Some(batch), &columns, pairs, None)?);
        }
        Ok(output)
    }
}

/// Of equal rows the first in input order comes first, the last one if the order is descending.
fn in_order((key, segment, _): &OrderedPair, other: &OrderedPair, descending: bool) -> Ordering {
    let ascending = (key, segment).cmp(&(&other.0, &other.1));
    if descending {
        ascending.reverse()
    } else {
        ascending
    }
}
