//! Groups of rows with equal equality keys.

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use datafusion_common::Result;

use crate::common::ordered_type::value_type;
use crate::common::workers::Workers;
use crate::sorted::id_map::IdMap;
use crate::sorted::id_table::{IdTable, NO_GROUP, Shards, merge};
use crate::sorted::interner::Interner;

/// The groups of equal keys, with consecutive ids in order of first occurrence. There may be groups without a row, but
/// no more groups than added rows.
#[derive(Debug)]
pub struct Groups {
    columns: Vec<Interner>,
    /// For each column after the first: the ids of pairs of a group by the previous columns and a value of this column.
    pairs: Vec<Shards<IdMap<u64>>>,
}

impl Groups {
    /// Whether rows can be grouped by columns of this type.
    pub fn supports(data_type: &DataType) -> bool {
        // Zeros of both signs are equal, except in dictionaries.
        let tells_zeros_apart =
            matches!(data_type, DataType::Dictionary(..)) && value_type(data_type).is_floating();
        !tells_zeros_apart
            && !data_type.is_nested()
            && RowConverter::supports_fields(&[SortField::new(data_type.clone())])
    }

    /// No groups yet, by keys of these types.
    ///
    /// # Errors
    /// Arrow's, for types that [`Self::supports`] rejects.
    pub fn try_new(types: &[DataType]) -> Result<Self> {
        let columns = types.iter().map(Interner::try_new);
        Ok(Self {
            columns: columns.collect::<Result<_>>()?,
            pairs: types.iter().skip(1).map(|_| Shards::default()).collect(),
        })
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        match self.pairs.last() {
            Some(pairs) => pairs.len(),
            None => self.columns.first().map_or(0, Interner::len),
        }
    }

    /// Estimates the bytes that the groups take.
    pub fn bytes(&self) -> usize {
        let columns: usize = self.columns.iter().map(Interner::bytes).sum();
        columns + self.pairs.iter().map(Shards::bytes).sum::<usize>()
    }

    /// Writes the group of each row, a new one for new keys. At most [`NO_GROUP`] rows may be added in all.
    ///
    /// # Errors
    /// An execution error for keys of other types.
    pub fn add(&mut self, keys: &[ArrayRef], groups: &mut [u32]) -> Result<()> {
        let mut ids = vec![];
        for (i, (column, key)) in self.columns.iter_mut().zip(keys).enumerate() {
            if i == 0 {
                column.add(key, groups)?;
                continue;
            }
            ids.resize(groups.len(), NO_GROUP);
            column.add(key, &mut ids)?;
            let pairs = self.pairs[i - 1].only();
            pair(groups, &ids, |pair| pairs.add(pair));
        }
        Ok(())
    }

    /// Merges the groups of consecutive parts of the rows. Returns the id that each group of a part has now, by its
    /// former id; ids are in order of first occurrence.
    ///
    /// # Errors
    /// If the query is cancelled.
    pub fn merge(parts: Vec<Self>, workers: Workers) -> Result<(Self, Vec<Vec<u32>>)> {
        let (mut columns, mut pairs) = (vec![], vec![]);
        let mut columns_of_parts = vec![];
        let mut pairs_of_parts = vec![];
        for part in parts {
            columns_of_parts.push(part.columns.into_iter());
            pairs_of_parts.push(part.pairs.into_iter());
        }
        let mut ids: Vec<Vec<u32>> = vec![];
        loop {
            let column: Vec<Interner> = columns_of_parts
                .iter_mut()
                .filter_map(Iterator::next)
                .collect();
            if column.is_empty() {
                return Ok((Self { columns, pairs }, ids));
            }
            let (column, ids_of_values) = Interner::merge(column, workers)?;
            columns.push(column);
            if columns.len() == 1 {
                ids = ids_of_values;
                continue;
            }
            // Pairs of the ids that groups and values have now.
            let tables: Vec<Shards<IdMap<u64>>> = pairs_of_parts
                .iter_mut()
                .filter_map(Iterator::next)
                .collect();
            let renumbered = tables.iter().zip(ids.iter().zip(&ids_of_values));
            let keys = workers.map(renumbered.collect(), |(table, (groups, values))| {
                #[expect(clippy::cast_possible_truncation, reason = "a pair of 32-bit ids")]
                let keys = table.keys().into_iter().map(|pair| {
                    let (group, value) = ((pair >> 32) as usize, pair as u32 as usize);
                    u64::from(groups[group]) << 32 | u64::from(values[value])
                });
                Ok(keys.collect::<Vec<u64>>())
            })?;
            let (table, ids_of_pairs) = merge::<IdMap<u64>>(&keys, workers)?;
            pairs.push(table);
            ids = ids_of_pairs;
        }
    }

    /// Returns the group of each of `rows` rows, [`NO_GROUP`] for keys that were never added. Without keys, all rows
    /// are in group 0.
    ///
    /// # Errors
    /// An execution error for keys of other types.
    pub fn find(&self, keys: &[ArrayRef], rows: usize) -> Result<Vec<u32>> {
        let mut groups = vec![0; rows];
        let mut ids = vec![];
        for (i, (column, key)) in self.columns.iter().zip(keys).enumerate() {
            if i == 0 {
                column.find(key, &mut groups)?;
                continue;
            }
            ids.resize(groups.len(), NO_GROUP);
            column.find(key, &mut ids)?;
            let pairs = &self.pairs[i - 1];
            pair(&mut groups, &ids, |pair| pairs.find(pair));
        }
        Ok(groups)
    }
}

/// Refines groups by the value ids of one more column.
fn pair(groups: &mut [u32], ids: &[u32], mut group_of: impl FnMut(u64) -> u32) {
    let mut last = (u64::MAX, NO_GROUP);
    for (group, id) in groups.iter_mut().zip(ids) {
        if *group == NO_GROUP || *id == NO_GROUP {
            *group = NO_GROUP;
            continue;
        }
        let pair = u64::from(*group) << 32 | u64::from(*id);
        if last.0 != pair {
            last = (pair, group_of(pair));
        }
        *group = last.1;
    }
}

#[cfg(test)]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small numbers"
)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use arrow::array::{Array, Float32Array, Float64Array, Int64Array, StringArray, UInt64Array};
    use arrow::compute::{cast, concat, take};
    use arrow::datatypes::{DataType as T, IntervalUnit, TimeUnit};
    use datafusion_common::ScalarValue;

    use super::*;

    fn dictionary(keys: T, values: T) -> T {
        T::Dictionary(Box::new(keys), Box::new(values))
    }

    /// Values of a type, few of them distinct, some NULL.
    fn values(random: &mut fastrand::Rng, rows: usize, data_type: &T) -> ArrayRef {
        let numbers: Int64Array = (0..rows)
            .map(|_| (random.u64(..6) > 0).then(|| random.u64(..7).cast_signed()))
            .collect();
        let texts = |random: &mut fastrand::Rng| {
            // Around the lengths at which views and packed texts change.
            let long = "0123456789abcdefghij";
            let text = |random: &mut fastrand::Rng| {
                let len = [0, 1, 4, 5, 12, 13, 15, 16, 20][random.usize(..9)];
                format!("{}{}", &long[..len], ["", "\0", "x"][random.usize(..3)])
            };
            let texts = (0..rows).map(|_| (random.u64(..6) > 0).then(|| text(random)));
            Arc::new(texts.collect::<StringArray>()) as ArrayRef
        };
        let plain: ArrayRef = Arc::new(numbers.clone());
        match data_type {
            T::Float32 => {
                let values = [0.0, -0.0, 1.5, f32::NAN, -f32::NAN, f32::INFINITY, -1.5];
                let value = |v: Option<i64>| v.map(|v| values[v as usize]);
                Arc::new(numbers.iter().map(value).collect::<Float32Array>())
            }
            T::Float64 => {
                let values = [0.0, -0.0, 1.5, f64::NAN, -f64::NAN, f64::INFINITY, -1.5];
                let value = |v: Option<i64>| v.map(|v| values[v as usize]);
                Arc::new(numbers.iter().map(value).collect::<Float64Array>())
            }
            T::Interval(IntervalUnit::MonthDayNano) => {
                let durations = cast(&plain, &T::Duration(TimeUnit::Nanosecond)).unwrap();
                cast(&durations, data_type).unwrap()
            }
            T::Timestamp(..) | T::Time64(_) | T::Decimal128(..) | T::Decimal256(..) => {
                cast(&plain, data_type).unwrap()
            }
            T::Date32 => cast(&cast(&plain, &T::Int32).unwrap(), data_type).unwrap(),
            T::FixedSizeBinary(n) => {
                let value = |v: i64| vec![v as u8; *n as usize];
                let values = numbers.iter().map(|v| v.map(value));
                let array =
                    arrow::array::FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, *n);
                Arc::new(array.unwrap())
            }
            T::Utf8 => texts(random),
            T::LargeUtf8 | T::Utf8View | T::Binary | T::LargeBinary | T::BinaryView => {
                cast(&texts(random), data_type).unwrap()
            }
            T::Dictionary(_, value) if value.is_integer() => cast(&plain, data_type).unwrap(),
            T::Dictionary(..) => cast(&texts(random), data_type).unwrap(),
            _ => cast(&plain, data_type).unwrap(),
        }
    }

    /// Some of these values, not NULL, in runs that are long now and then.
    fn in_runs(random: &mut fastrand::Rng, values: &ArrayRef, rows: usize) -> ArrayRef {
        let valid = (0..values.len()).filter(|i| values.is_valid(*i));
        let valid: Vec<u64> = valid.map(|i| i as u64).collect();
        if valid.is_empty() {
            return values.slice(0, 0);
        }
        let (mut at, often) = (0, 2 + random.u64(..200));
        let picked = (0..rows).map(|_| {
            if random.u64(..often) == 0 {
                at = random.usize(..valid.len());
            }
            valid[at]
        });
        take(values, &picked.collect::<UInt64Array>(), None).unwrap()
    }

    /// A row's values as a map key; `None` if one is NULL.
    fn key(columns: &[ArrayRef], row: usize) -> Option<Vec<String>> {
        let key = columns.iter().map(|column| {
            let value = ScalarValue::try_from_array(column, row).unwrap();
            if value.is_null() {
                return None;
            }
            Some(match value {
                ScalarValue::Float32(Some(v)) => format!("{:x}", (v + 0.0).to_bits()),
                ScalarValue::Float64(Some(v)) => format!("{:x}", (v + 0.0).to_bits()),
                value => format!("{value:?}"),
            })
        });
        key.collect()
    }

    #[test]
    fn rows_of_equal_keys_are_one_group() {
        let types = [
            T::Boolean,
            T::Int8,
            T::UInt16,
            T::Int32,
            T::UInt64,
            T::Float16,
            T::Float32,
            T::Float64,
            T::Date32,
            T::Time64(TimeUnit::Nanosecond),
            T::Timestamp(TimeUnit::Microsecond, None),
            T::Decimal128(20, 2),
            T::Decimal256(50, 2),
            T::Interval(IntervalUnit::MonthDayNano),
            T::Utf8,
            T::LargeUtf8,
            T::Utf8View,
            T::Binary,
            T::LargeBinary,
            T::BinaryView,
            T::FixedSizeBinary(3),
            T::FixedSizeBinary(15),
            T::FixedSizeBinary(17),
            dictionary(T::Int8, T::Utf8),
            dictionary(T::UInt32, T::LargeUtf8),
            dictionary(T::Int16, T::Int64),
        ];
        let random = &mut fastrand::Rng::with_seed(1_442_695_040_888_963_407);
        for round in 0..300 {
            let columns = 1 + round % 3;
            let types: Vec<T> = (0..columns)
                .map(|i| types[(round + i * 7) % types.len()].clone())
                .collect();
            assert!(types.iter().all(Groups::supports));
            let mut groups = Groups::try_new(&types).unwrap();
            let mut known: HashMap<Vec<String>, u32> = HashMap::new();
            for batch in 0..3 {
                let in_some_runs = random.u64(..2) == 0;
                let rows = random.u64(..if in_some_runs { 600 } else { 60 }) as usize;
                let (from, to) = (random.usize(..5), random.usize(..5));
                let keys = types.iter().map(|t| {
                    let mut values = values(random, 40 + from + rows + to, t);
                    if in_some_runs {
                        values = in_runs(random, &values, from + rows + to);
                    }
                    values.slice(from, rows)
                });
                let keys: Vec<ArrayRef> = keys.collect();
                let mut found = vec![0; rows];
                if batch < 2 {
                    groups.add(&keys, &mut found).unwrap();
                }
                let found_ids = groups.find(&keys, rows).unwrap();
                for row in 0..rows {
                    let expected = match key(&keys, row) {
                        None => NO_GROUP,
                        Some(key) if batch < 2 => {
                            let next = known.len() as u32;
                            *known.entry(key).or_insert(next)
                        }
                        Some(key) => known.get(&key).copied().unwrap_or(NO_GROUP),
                    };
                    assert_eq!(
                        found_ids[row], expected,
                        "round {round}, {types:?}, row {row}"
                    );
                    assert!(
                        batch == 2 || found[row] == expected,
                        "round {round}, {types:?}"
                    );
                }
            }
            assert_eq!(groups.len(), known.len(), "round {round}, {types:?}");
        }
    }

    /// Dictionaries with many more values than a batch has rows, and with NULL values.
    #[test]
    fn only_values_that_rows_use_form_groups() {
        let texts: Vec<Option<String>> = (0..1000)
            .map(|i| (i % 5 > 0).then(|| format!("value {}", i % 300)))
            .collect();
        let plain: ArrayRef = Arc::new(StringArray::from(texts));
        let keys = arrow::array::Int32Array::from_iter_values((0..1000).rev());
        let coded = arrow::array::DictionaryArray::new(keys, Arc::clone(&plain));
        let coded: ArrayRef = Arc::new(coded);
        let reversed: Vec<ArrayRef> = (0..1000).rev().map(|i| plain.slice(i, 1)).collect();
        let reversed: Vec<&dyn Array> = reversed.iter().map(AsRef::as_ref).collect();
        let reversed = concat(&reversed).unwrap();
        for rows in [10, 100, 1000] {
            let mut by_code = Groups::try_new(&[coded.data_type().clone()]).unwrap();
            let mut by_text = Groups::try_new(&[T::Utf8]).unwrap();
            let (mut of_codes, mut of_texts) = (vec![0; rows], vec![0; rows]);
            for from in (0..1000).step_by(rows) {
                by_code
                    .add(&[coded.slice(from, rows)], &mut of_codes)
                    .unwrap();
                by_text
                    .add(&[reversed.slice(from, rows)], &mut of_texts)
                    .unwrap();
                assert_eq!(of_codes, of_texts, "{rows} rows from {from}");
            }
            let expected = by_text.find(&[Arc::clone(&reversed)], 1000).unwrap();
            assert_eq!(by_code.find(&[Arc::clone(&coded)], 1000).unwrap(), expected);
        }
    }
}
