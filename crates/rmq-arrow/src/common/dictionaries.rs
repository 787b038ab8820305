//! Dictionaries with narrow keys. The values of several batches may need more keys than one dictionary has: Arrow then
//! fails, or panics. So rows that are selected from batches have [wider keys](roomy_type) until they are output, in as
//! many batches as the keys require.

use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, DictionaryArray, PrimitiveBuilder, UInt32Array, UInt64Array,
    downcast_integer, new_null_array,
};
use arrow::compute::{cast, interleave, take};
use arrow::datatypes::{
    ArrowDictionaryKeyType, ArrowNativeType, ArrowPrimitiveType, DataType, Field, FieldRef,
    UInt32Type,
};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};
use datafusion_common::{HashMap, HashSet, Result, exec_err, internal_err};

/// Whether this is, or contains, a dictionary with keys of one or two bytes, too few for the values of several batches.
pub fn has_few_keys(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(key, values) => are_few(key) || has_few_keys(values),
        DataType::Struct(fields) => fields.iter().any(|f| has_few_keys(f.data_type())),
        other => element(other).is_some_and(|field| has_few_keys(field.data_type())),
    }
}

fn are_few(key: &DataType) -> bool {
    key.primitive_width() < Some(4)
}

/// The field of the elements of a list or a map, or of the values of runs.
fn element(data_type: &DataType) -> Option<&FieldRef> {
    match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _)
        | DataType::RunEndEncoded(_, field) => Some(field),
        _ => None,
    }
}

/// The type with enough keys for the values of many batches: a dictionary with wider keys, or nested values without
/// dictionaries.
pub fn roomy_type(data_type: &DataType) -> DataType {
    match data_type {
        few if !has_few_keys(few) => few.clone(),
        DataType::Dictionary(_, values) if !has_few_keys(values) => {
            DataType::Dictionary(Box::new(DataType::UInt32), values.clone())
        }
        nested => plain_type(nested),
    }
}

/// The type without dictionaries.
fn plain_type(data_type: &DataType) -> DataType {
    let plain = |field: &FieldRef| -> FieldRef {
        let data_type = plain_type(field.data_type());
        Arc::new(Field::clone(field).with_data_type(data_type))
    };
    match data_type {
        DataType::Dictionary(_, values) => plain_type(values),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(plain).collect()),
        DataType::List(field) => DataType::List(plain(field)),
        DataType::LargeList(field) => DataType::LargeList(plain(field)),
        DataType::ListView(field) => DataType::ListView(plain(field)),
        DataType::LargeListView(field) => DataType::LargeListView(plain(field)),
        DataType::FixedSizeList(field, n) => DataType::FixedSizeList(plain(field), *n),
        DataType::Map(field, sorted) => DataType::Map(plain(field), *sorted),
        other => other.clone(),
    }
}

/// Selects rows, as pairs of an array and a row of it, from arrays of one type; `None` gives NULL. Dictionaries are
/// returned in the [roomy](roomy_type) type, with only the values that are used.
///
/// # Errors
/// Arrow's; an internal error without an array.
pub fn select(arrays: &[&dyn Array], rows: &[Option<(usize, usize)>]) -> Result<ArrayRef> {
    let Some(first) = arrays.first() else {
        return internal_err!("rows are selected from no array");
    };
    macro_rules! of_dictionaries {
        ($key:ty) => {
            if size_of::<<$key as ArrowPrimitiveType>::Native>() < 4 {
                select_from_dictionaries::<$key, UInt32Type>(arrays, rows)
            } else {
                select_from_dictionaries::<$key, $key>(arrays, rows)
            }
        };
    }
    match first.data_type() {
        DataType::Dictionary(key, _) => downcast_integer! {
            key.as_ref() => (of_dictionaries),
            other => internal_err!("a dictionary has keys of the type {other}"),
        },
        _ => select_plain(arrays, rows),
    }
}

fn select_plain(arrays: &[&dyn Array], rows: &[Option<(usize, usize)>]) -> Result<ArrayRef> {
    if let [one] = arrays {
        let rows = rows.iter().map(|row| row.map(|(_, row)| row as u64));
        return Ok(take(*one, &rows.collect::<UInt64Array>(), None)?);
    }
    let null = new_null_array(arrays[0].data_type(), 1);
    let null_row = (arrays.len(), 0);
    let arrays: Vec<&dyn Array> = arrays.iter().copied().chain([null.as_ref()]).collect();
    let rows = rows.iter().map(|row| row.unwrap_or(null_row));
    Ok(interleave(&arrays, &rows.collect::<Vec<_>>())?)
}

fn select_from_dictionaries<K: ArrowDictionaryKeyType, O: ArrowDictionaryKeyType>(
    arrays: &[&dyn Array],
    rows: &[Option<(usize, usize)>],
) -> Result<ArrayRef> {
    let arrays: Vec<&DictionaryArray<K>> = arrays.iter().map(|a| a.as_dictionary()).collect();
    let mut distinct = Distinct::default();
    let mut keys = PrimitiveBuilder::<O>::with_capacity(rows.len());
    for row in rows {
        let value = row.and_then(|(array, row)| {
            let keys = arrays[array].keys();
            keys.is_valid(row)
                .then(|| (array, keys.value(row).as_usize()))
        });
        let key = value.map(|value| {
            let key = O::Native::from_usize(distinct.id(value));
            key.ok_or(ArrowError::DictionaryKeyOverflowError)
        });
        keys.append_option(key.transpose()?);
    }
    let values: Vec<&dyn Array> = arrays.iter().map(|a| a.values().as_ref()).collect();
    let values = interleave(&values, &distinct.list)?;
    Ok(Arc::new(DictionaryArray::<O>::try_new(
        keys.finish(),
        values,
    )?))
}

/// Consecutive ids of distinct values, in order of first occurrence.
struct Distinct<T> {
    ids: HashMap<T, usize>,
    list: Vec<T>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Self {
            ids: HashMap::default(),
            list: vec![],
        }
    }
}

impl<T: Copy + Eq + Hash> Distinct<T> {
    fn id(&mut self, value: T) -> usize {
        *self.ids.entry(value).or_insert_with(|| {
            self.list.push(value);
            self.list.len() - 1
        })
    }
}

/// Casts an array to the [roomy](roomy_type) type.
///
/// # Errors
/// Arrow's.
pub fn with_room(array: &ArrayRef) -> Result<ArrayRef> {
    let roomy = roomy_type(array.data_type());
    if *array.data_type() == roomy {
        return Ok(Arc::clone(array));
    }
    Ok(cast(array, &roomy)?)
}

/// Casts columns of `rows` rows from their [roomy](roomy_type) types to `types`. Returns parts, each with its rows: as
/// many as the keys of the types suffice for.
///
/// # Errors
/// An execution error if a single nested value can't be cast to its type.
pub fn fit(
    columns: &[ArrayRef],
    types: &[&DataType],
    rows: usize,
) -> Result<Vec<(Range<usize>, Vec<ArrayRef>)>> {
    let columns = columns.iter().zip(types);
    let columns = columns.map(|(column, data_type)| Fitting::try_new(column, data_type));
    let columns: Vec<Fitting> = columns.collect::<Result<_>>()?;
    let mut parts = vec![];
    let mut start = 0;
    loop {
        let mut here = start..rows;
        for column in &columns {
            here.end = column.end(&here)?;
        }
        start = here.end;
        let fitted = columns.iter().map(|column| column.part(&here));
        let fitted = fitted.collect::<Result<_>>()?;
        parts.push((here, fitted));
        if start >= rows {
            return Ok(parts);
        }
    }
}

/// A column that is cast to a type.
enum Fitting<'a> {
    /// The column has the type.
    Fits(&'a ArrayRef),
    /// A dictionary with wider keys.
    Dictionary {
        roomy: &'a DictionaryArray<UInt32Type>,
        key: &'a DataType,
        /// For each value the first equal value, if there are more values than keys.
        first_equal: Option<Vec<u32>>,
    },
    Nested(&'a ArrayRef, &'a DataType),
}

impl<'a> Fitting<'a> {
    fn try_new(column: &'a ArrayRef, data_type: &'a DataType) -> Result<Self> {
        Ok(
            match (data_type, column.as_dictionary_opt::<UInt32Type>()) {
                _ if column.data_type() == data_type => Self::Fits(column),
                (DataType::Dictionary(key, _), Some(roomy)) => {
                    let values = roomy.values();
                    let many = values.len() > number_of_keys(key);
                    Self::Dictionary {
                        roomy,
                        key,
                        first_equal: many.then(|| equal_values(values)).transpose()?,
                    }
                }
                _ => Self::Nested(column, data_type),
            },
        )
    }

    /// The end of the part that begins at the start of these rows.
    fn end(&self, rows: &Range<usize>) -> Result<usize> {
        match self {
            Self::Dictionary {
                roomy,
                key,
                first_equal: Some(first_equal),
            } => {
                let mut distinct = HashSet::new();
                let (keys, most) = (roomy.keys(), number_of_keys(key));
                let cut = rows.clone().find(|row| {
                    keys.is_valid(*row)
                        && distinct.insert(first_equal[keys.value(*row) as usize])
                        && distinct.len() > most
                });
                Ok(cut.unwrap_or(rows.end))
            }
            Self::Nested(column, data_type) => {
                let mut count = rows.len();
                while let Err(error) = cast(&column.slice(rows.start, count), data_type) {
                    if count < 2 {
                        return exec_err!("a value can't be had as a {data_type}: {error}");
                    }
                    count /= 2;
                }
                Ok(rows.start + count)
            }
            _ => Ok(rows.end),
        }
    }

    fn part(&self, rows: &Range<usize>) -> Result<ArrayRef> {
        macro_rules! dictionary {
            ($key:ty, $roomy:expr, $first_equal:expr) => {
                part_of_dictionary::<$key>($roomy, $first_equal, rows)
            };
        }
        match self {
            Self::Fits(column) => Ok(column.slice(rows.start, rows.len())),
            Self::Dictionary {
                roomy,
                key,
                first_equal,
            } => {
                let first_equal = first_equal.as_deref();
                downcast_integer! {
                    *key => (dictionary, roomy, first_equal),
                    other => internal_err!("a dictionary has keys of the type {other}"),
                }
            }
            Self::Nested(column, data_type) => {
                Ok(cast(&column.slice(rows.start, rows.len()), data_type)?)
            }
        }
    }
}

/// The number of keys of a key type.
pub fn number_of_keys(key: &DataType) -> usize {
    let bits = 8 * key.primitive_width().unwrap_or_default();
    let bits = bits - usize::from(key.is_signed_integer());
    let bits = u32::try_from(bits).unwrap_or(u32::MAX);
    1_usize.checked_shl(bits).unwrap_or(usize::MAX)
}

/// Converts some rows of a dictionary to another key type, which has enough keys for them.
fn part_of_dictionary<K: ArrowDictionaryKeyType>(
    roomy: &DictionaryArray<UInt32Type>,
    first_equal: Option<&[u32]>,
    rows: &Range<usize>,
) -> Result<ArrayRef> {
    let mut distinct = Distinct::default();
    let mut keys = PrimitiveBuilder::<K>::with_capacity(rows.len());
    for key in &roomy.keys().slice(rows.start, rows.len()) {
        let value = key.map(|key| first_equal.map_or(key, |first_equal| first_equal[key as usize]));
        let key = value.map(|value| {
            let key = K::Native::from_usize(distinct.id(value));
            key.ok_or(ArrowError::DictionaryKeyOverflowError)
        });
        keys.append_option(key.transpose()?);
    }
    let values = take(roomy.values(), &UInt32Array::from(distinct.list), None)?;
    let fitted = DictionaryArray::<K>::try_new(keys.finish(), values)?;
    Ok(Arc::new(fitted))
}

/// For each value the index of the first equal value; its own index for types without a row format.
fn equal_values(values: &ArrayRef) -> Result<Vec<u32>> {
    let field = SortField::new(values.data_type().clone());
    if !RowConverter::supports_fields(std::slice::from_ref(&field)) {
        return Ok((0..).take(values.len()).collect());
    }
    let rows = RowConverter::new(vec![field])?.convert_columns(&[Arc::clone(values)])?;
    let mut first = HashMap::new();
    let first_equal = (0_u32..).zip(rows.iter());
    let first_equal = first_equal.map(|(i, row)| *first.entry(row.data().to_vec()).or_insert(i));
    Ok(first_equal.collect())
}
