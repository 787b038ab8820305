//! Where rows go when they are sorted, and columns moved there.

use crate::common::errors::engine_error;
use std::sync::{Arc, OnceLock};

use datafusion::common::Result;

use crate::sorted::bucket_sort::{STEP, SortContext};
use crate::sorted::group_ids::GroupIds;
use crate::sorted::groups::NO_GROUP;
use bytemuck::Pod;
use rmq_engine::cpu::Numbers;

/// What stands for the place of a row that is left out.
const NOWHERE: u32 = NO_GROUP;

/// Where rows, in the order they came, stand among the sorted ones.
#[derive(Debug)]
pub(crate) struct RowPermutation {
    /// The place of each row; `None` where all stand as they came.
    moved: Option<Numbers<u32>>,
    /// How many rows there are but for those left out.
    len: usize,
    order: OnceLock<Arc<Vec<u32>>>,
}

impl RowPermutation {
    fn new(moved: Option<Numbers<u32>>, len: usize) -> Self {
        Self {
            moved,
            len,
            order: OnceLock::new(),
        }
    }

    /// Of rows that stay as they are.
    pub(crate) fn as_they_came(len: usize) -> Self {
        Self::new(None, len)
    }

    /// Of rows in the order they came, but for those left out.
    pub(crate) fn of_valid(valid: impl ExactSizeIterator<Item = bool>) -> Result<Self> {
        let mut moved = Numbers::zeroed(valid.len()).map_err(engine_error)?;
        let mut len = 0;
        for (place, valid) in moved.iter_mut().zip(valid) {
            *place = if valid { number(len) } else { NOWHERE };
            len += usize::from(valid);
        }
        Ok(Self::new(Some(moved), len))
    }

    /// Of rows by group, those of one group as they came; and where each group begins, and the end of the last. Rows of no group are
    /// left out. The memory that it takes to move rows is registered with the context's.
    pub(crate) fn by_group(
        numbers: GroupIds,
        groups: usize,
        context: SortContext,
    ) -> Result<(Self, Vec<usize>)> {
        let (counts, ordered) = numbers.counts(groups);
        let mut starts = counts;
        let mut sum = 0;
        for start in &mut starts {
            sum += std::mem::replace(start, sum);
        }
        starts.push(sum);
        if ordered {
            return Ok((Self::as_they_came(sum), starts));
        }
        let mut numbers = numbers.into_each(context.memory)?;
        let mut next: Vec<u32> = starts.iter().map(|start| number(*start)).collect();
        for step in numbers.chunks_mut(STEP) {
            (context.check)()?;
            for number in step {
                if *number != NO_GROUP {
                    let place = &mut next[*number as usize];
                    *number = *place;
                    *place += 1;
                }
            }
        }
        Ok((Self::new(Some(numbers), sum), starts))
    }

    /// Moves on: what stood at each place goes to another.
    pub(crate) fn then(self, onward: Numbers<u32>) -> Self {
        let Some(mut moved) = self.moved else {
            return Self::new(Some(onward), self.len);
        };
        for place in moved.iter_mut() {
            if let Some(further) = onward.get(*place as usize) {
                *place = *further;
            }
        }
        Self::new(Some(moved), self.len)
    }

    /// Of all rows, by which of them stands at each place.
    pub(crate) fn of_order(order: Vec<u32>, rows: usize) -> Result<Self> {
        let mut moved = Numbers::zeroed(rows).map_err(engine_error)?;
        moved.fill(NOWHERE);
        for (place, row) in order.iter().enumerate() {
            moved[*row as usize] = number(place);
        }
        let places = Self::new(Some(moved), order.len());
        Ok(Self {
            order: OnceLock::from(Arc::new(order)),
            ..places
        })
    }

    /// Number of rows but for those left out.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether all rows stand as they came.
    pub(crate) fn are_as_they_came(&self) -> bool {
        self.moved.is_none()
    }

    pub(crate) fn bytes(&self) -> usize {
        let order = self.order.get().map_or(0, |o| size_of_val(o.as_slice()));
        self.moved.as_ref().map_or(0, Numbers::bytes) + order
    }

    /// Bytes that stay when this goes, as others share the order.
    pub(crate) fn order_kept(&self) -> usize {
        let shared = self.order.get().filter(|o| Arc::strong_count(o) > 1);
        shared.map_or(0, |order| size_of_val(order.as_slice()))
    }

    /// The place of each of `rows` rows from `first` on; `None` where one is left out.
    pub(crate) fn of_rows(&self, first: usize, rows: usize) -> impl Iterator<Item = Option<usize>> {
        (first..first + rows).map(|row| match &self.moved {
            None => Some(row),
            Some(moved) => (moved[row] != NOWHERE).then_some(moved[row] as usize),
        })
    }

    /// Bytes that [`Self::order`] takes, where it has not been asked for yet.
    pub(crate) fn order_bytes(&self) -> usize {
        match (&self.moved, self.order.get()) {
            (Some(_), None) => self.len * size_of::<u32>(),
            _ => 0,
        }
    }

    /// Which row stands at each place; `None` where all stand as they came.
    pub(crate) fn order(&self) -> Option<&Arc<Vec<u32>>> {
        let moved = self.moved.as_ref()?;
        Some(self.order.get_or_init(|| {
            let mut order = vec![0; self.len];
            for (row, place) in moved.iter().enumerate() {
                if let Some(slot) = order.get_mut(*place as usize) {
                    *slot = number(row);
                }
            }
            Arc::new(order)
        }))
    }

    /// Puts values, which come with the rows from `first` on, in their places.
    pub(crate) fn put<T: Copy>(&self, first: usize, values: &[T], into: &mut [T]) {
        match &self.moved {
            None => into[first..first + values.len()].copy_from_slice(values),
            Some(moved) => {
                let moved = &moved[first..first + values.len()];
                for (value, place) in values.iter().zip(moved) {
                    // There are fewer places than `NOWHERE`.
                    if let Some(slot) = into.get_mut(*place as usize) {
                        *slot = *value;
                    }
                }
            }
        }
    }

    /// Values of all rows in their places; an error if `check` says that nobody waits for them any more.
    pub(crate) fn arrange<'a, T: Pod + 'a>(
        &self,
        chunks: impl IntoIterator<Item = &'a [T]>,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Numbers<T>> {
        let mut arranged = Numbers::zeroed(self.len).map_err(engine_error)?;
        let mut first = 0;
        for chunk in chunks {
            for step in chunk.chunks(STEP) {
                check()?;
                self.put(first, step, &mut arranged);
                first += step.len();
            }
        }
        Ok(arranged)
    }
}

/// Rows, and so places, are fewer than 2^32.
#[expect(
    clippy::cast_possible_truncation,
    reason = "`SortedRowsBuilder::add` refuses more rows"
)]
pub(crate) fn number(row: usize) -> u32 {
    row as u32
}
