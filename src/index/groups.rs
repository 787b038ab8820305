//! Equality keys: which group of rows has the same values.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::hash_utils::RandomState;
use datafusion::common::utils::normalize_float_zero;
use datafusion::common::{Result, exec_err};

/// What stands for a row that belongs to no group: one with a NULL key, or keys that no row had.
pub(crate) const NO_GROUP: u32 = u32::MAX;

/// The groups of equal keys, numbered in the order they were met.
#[derive(Debug)]
pub(crate) struct Groups {
    converter: RowConverter,
    numbers: HashMap<Box<[u8]>, u32, RandomState>,
    key_bytes: usize,
}

impl Groups {
    /// Whether rows can be grouped by columns of this type.
    pub(crate) fn supports(data_type: &DataType) -> bool {
        !data_type.is_nested()
            && RowConverter::supports_fields(&[SortField::new(data_type.clone())])
    }

    /// No groups yet, of keys of these types.
    pub(crate) fn try_new(types: &[DataType]) -> Result<Self> {
        let fields = types.iter().map(|t| SortField::new(t.clone()));
        Ok(Self {
            converter: RowConverter::new(fields.collect())?,
            numbers: HashMap::default(),
            key_bytes: 0,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// About how many bytes the groups take.
    pub(crate) fn bytes(&self) -> usize {
        // A table keeps an eighth of its places free, or more, and a byte a place.
        let place = size_of::<(Box<[u8]>, u32)>() + 1;
        self.key_bytes + self.numbers.capacity() * place * 8 / 7
    }

    /// The group of each row, a new one for keys not met before.
    pub(crate) fn add(&mut self, keys: &[ArrayRef]) -> Result<Vec<u32>> {
        let (rows, nulls) = self.rows(keys)?;
        let numbers = &mut self.numbers;
        let mut key_bytes = 0;
        let groups = number(&rows, nulls.as_ref(), |key| {
            if let Some(group) = numbers.get(key) {
                return Some(*group);
            }
            let group = u32::try_from(numbers.len())
                .ok()
                .filter(|g| *g != NO_GROUP)?;
            numbers.insert(key.into(), group);
            key_bytes += key.len();
            Some(group)
        });
        self.key_bytes += key_bytes;
        match groups {
            Some(groups) => Ok(groups),
            None => exec_err!("a range join has more than {NO_GROUP} equality keys"),
        }
    }

    /// The group of each row, [`NO_GROUP`] for keys that were never added.
    pub(crate) fn find(&self, keys: &[ArrayRef]) -> Result<Vec<u32>> {
        let (rows, nulls) = self.rows(keys)?;
        let find = |key: &[u8]| Some(self.numbers.get(key).copied().unwrap_or(NO_GROUP));
        Ok(number(&rows, nulls.as_ref(), find).unwrap_or_default())
    }

    /// The keys as rows of bytes, and which rows have a NULL among them.
    fn rows(&self, keys: &[ArrayRef]) -> Result<(Rows, Option<NullBuffer>)> {
        let nulls = keys.iter().fold(None, |nulls: Option<NullBuffer>, key| {
            NullBuffer::union(nulls.as_ref(), key.logical_nulls().as_ref())
        });
        // Zeros of both signs are equal.
        let keys: Vec<ArrayRef> = keys.iter().map(normalize_float_zero).collect();
        Ok((self.converter.convert_columns(&keys)?, nulls))
    }
}

/// The number of each row. Neighbours are often equal: these ask once.
fn number(
    rows: &Rows,
    nulls: Option<&NullBuffer>,
    mut ask: impl FnMut(&[u8]) -> Option<u32>,
) -> Option<Vec<u32>> {
    let mut last: Option<(&[u8], u32)> = None;
    let mut numbers = Vec::with_capacity(rows.num_rows());
    for i in 0..rows.num_rows() {
        if nulls.is_some_and(|nulls| nulls.is_null(i)) {
            numbers.push(NO_GROUP);
            continue;
        }
        let key = rows.row(i).data();
        let group = match last {
            Some((before, group)) if before == key => group,
            _ => ask(key)?,
        };
        last = Some((key, group));
        numbers.push(group);
    }
    Some(numbers)
}
