//! The distinct values of one column as numbers, for columns of any type that rows can be grouped by.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use arrow::array::types::{BinaryType, ByteArrayType, LargeBinaryType, LargeUtf8Type, Utf8Type};
use arrow::array::{AnyDictionaryArray, Array, ArrayRef, AsArray, UInt64Array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::compute::take;
use arrow::datatypes::{ArrowNativeType, DataType};
use arrow::row::{RowConverter, SortField};
use datafusion::common::hash_utils::RandomState;
use datafusion::common::{Result, exec_err};

use crate::index::sort_keys::{native, value_type};
use crate::sorted::groups::NO_GROUP;

/// Keys of fixed width, numbered.
#[derive(Debug)]
pub(crate) struct IdMap<K> {
    numbers: HashMap<K, u32, RandomState>,
    /// Keys met lately with their numbers, each in the place that [`Narrow::fold`] gives it: where there are few keys, most are found
    /// here, in less time than in the table.
    recent: Vec<(K, u32)>,
    /// How many keys were looked for before there were recent ones.
    looked_for: usize,
}

/// How many keys are kept at hand, a power of two, once so many were looked for. While there are no more in all, it pays to look there
/// first.
const RECENT: usize = 1 << 12;

/// A key that is an integer.
pub(crate) trait Narrow: Copy + Default + Hash + Eq {
    /// 64 bits of it.
    fn fold(self) -> u64;
}

impl Narrow for u64 {
    #[inline]
    fn fold(self) -> u64 {
        self
    }
}

impl Narrow for u128 {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "both halves count")]
    fn fold(self) -> u64 {
        self as u64 ^ ((self >> 64) as u64).rotate_left(23)
    }
}

impl<K> Default for IdMap<K> {
    fn default() -> Self {
        Self {
            numbers: HashMap::default(),
            recent: vec![],
            looked_for: 0,
        }
    }
}

impl<K: Narrow> IdMap<K> {
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// About how many bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        // A table keeps an eighth of its places free, or more, and a byte a place.
        let table = self.numbers.capacity() * (size_of::<(K, u32)>() + 1) * 8 / 7;
        table + size_of_val(self.recent.as_slice())
    }

    /// The number of a key, the next one for a key not met before.
    #[inline]
    pub(crate) fn add(&mut self, key: K) -> u32 {
        let next = number(self.len());
        self.add_as(key, next)
    }

    /// The number of a key, `next` for one not met before.
    #[inline]
    fn add_as(&mut self, key: K, next: u32) -> u32 {
        if self.recent.is_empty() || self.numbers.len() > RECENT {
            self.looked_for += 1;
            if self.looked_for == RECENT {
                self.recent = vec![(K::default(), NO_GROUP); RECENT];
            }
            return *self.numbers.entry(key).or_insert(next);
        }
        let recent = &mut self.recent[place(key)];
        if recent.0 != key || recent.1 == NO_GROUP {
            *recent = (key, *self.numbers.entry(key).or_insert(next));
        }
        recent.1
    }

    /// The number of a key, [`NO_GROUP`] for one not met before.
    #[inline]
    pub(crate) fn find(&self, key: &K) -> u32 {
        match self.recent.get(place(*key)) {
            Some((recent, number)) if recent == key && *number != NO_GROUP => return *number,
            _ => {}
        }
        self.numbers.get(key).copied().unwrap_or(NO_GROUP)
    }
}

/// Where a key stands among recent ones.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "few bits are left")]
fn place<K: Narrow>(key: K) -> usize {
    // The upper bits of a product by an odd number without pattern: 2^64 over the golden ratio.
    let product = key.fold().wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (product >> (64 - RECENT.ilog2())) as usize
}

/// There are fewer keys than rows, and fewer than 2^32 rows.
#[expect(
    clippy::cast_possible_truncation,
    reason = "`SortedRowsBuilder::add` refuses more rows"
)]
fn number(keys: usize) -> u32 {
    keys as u32
}

/// The distinct values of one column. Zeros of both signs are one value; NULL is none.
#[derive(Debug)]
pub(crate) enum Interner {
    /// Fixed width of up to 64 bits.
    W64(IdMap<u64>),
    /// 128 bits.
    W128(IdMap<u128>),
    /// Strings and binaries.
    ByteInterner(ByteInterner),
    /// All else, as Arrow's rows.
    Rows(RowConverter, ByteInterner),
}

impl Interner {
    /// No values yet, of a column of this type.
    pub(crate) fn try_new(data_type: &DataType) -> Result<Self> {
        use DataType as T;
        Ok(match value_type(data_type) {
            T::Utf8
            | T::LargeUtf8
            | T::Utf8View
            | T::Binary
            | T::LargeBinary
            | T::BinaryView
            | T::FixedSizeBinary(_) => Self::ByteInterner(ByteInterner::default()),
            T::Boolean => Self::W64(IdMap::default()),
            other => match other.primitive_width() {
                Some(1 | 2 | 4 | 8) => Self::W64(IdMap::default()),
                Some(16) => Self::W128(IdMap::default()),
                _ => Self::Rows(
                    RowConverter::new(vec![SortField::new(other)])?,
                    ByteInterner::default(),
                ),
            },
        })
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::W64(numbers) => numbers.len(),
            Self::W128(numbers) => numbers.len(),
            Self::ByteInterner(texts) | Self::Rows(_, texts) => texts.len(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::W64(numbers) => numbers.bytes(),
            Self::W128(numbers) => numbers.bytes(),
            Self::ByteInterner(texts) | Self::Rows(_, texts) => texts.bytes(),
        }
    }

    /// The number of each value, the next one for a value not met before.
    pub(crate) fn add(&mut self, values: &ArrayRef, numbers: &mut [u32]) -> Result<()> {
        if let Some(dictionary) = values.as_any_dictionary_opt() {
            let used = UsedValues::of(dictionary)?;
            let mut of_values = vec![NO_GROUP; used.values.len()];
            self.add(&used.values, &mut of_values)?;
            used.give(&of_values, numbers);
            return Ok(());
        }
        match self {
            Self::W64(known) => each_64(values, numbers, |key| known.add(key)),
            Self::W128(known) => each_128(values, numbers, |key| known.add(key)),
            Self::ByteInterner(known) => each_text(values, numbers, |text| known.add(text)),
            Self::Rows(rows, known) => each_row(rows, values, numbers, |text| known.add(text)),
        }
    }

    /// The number of each value, [`NO_GROUP`] for one that was never added.
    pub(crate) fn find(&self, values: &ArrayRef, numbers: &mut [u32]) -> Result<()> {
        if let Some(dictionary) = values.as_any_dictionary_opt() {
            let used = UsedValues::of(dictionary)?;
            let mut of_values = vec![NO_GROUP; used.values.len()];
            self.find(&used.values, &mut of_values)?;
            used.give(&of_values, numbers);
            return Ok(());
        }
        match self {
            Self::W64(known) => each_64(values, numbers, |key| known.find(&key)),
            Self::W128(known) => each_128(values, numbers, |key| known.find(&key)),
            Self::ByteInterner(known) => each_text(values, numbers, |text| known.find(text)),
            Self::Rows(rows, known) => each_row(rows, values, numbers, |text| known.find(text)),
        }
    }
}

/// Bytes of any length.
#[derive(Debug, Default)]
pub(crate) struct ByteInterner {
    short: IdMap<u128>,
    long: HashMap<Box<[u8]>, u32, RandomState>,
    long_bytes: usize,
}

/// Bytes; up to 15 of them with their number in the topmost byte.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Text<'a> {
    Short(u128),
    Long(&'a [u8]),
}

/// The bits of so many bytes: looking them up is faster than shifting 128 bits.
const INSIDE: [u128; 16] = {
    let mut inside = [0; 16];
    let mut len = 1;
    while len < 16 {
        inside[len] = inside[len - 1] << 8 | 0xFF;
        len += 1;
    }
    inside
};

impl<'a> Text<'a> {
    /// `len` bytes of a buffer from `start` on.
    #[inline]
    fn of(buffer: &'a [u8], start: usize, len: usize) -> Self {
        if len > 15 {
            return Self::Long(&buffer[start..start + len]);
        }
        let wide = match buffer.get(start..start + 16).map(<[u8; 16]>::try_from) {
            Some(Ok(wide)) => wide,
            _ => {
                let mut wide = [0; 16];
                wide[..len].copy_from_slice(&buffer[start..start + len]);
                wide
            }
        };
        Self::Short(u128::from_le_bytes(wide) & INSIDE[len] | (len as u128) << 120)
    }
}

impl ByteInterner {
    fn len(&self) -> usize {
        self.short.len() + self.long.len()
    }

    fn bytes(&self) -> usize {
        let long = self.long.capacity() * (size_of::<(Box<[u8]>, u32)>() + 1) * 8 / 7;
        self.short.bytes() + long + self.long_bytes
    }

    #[inline]
    fn add(&mut self, text: Text) -> u32 {
        let next = number(self.len());
        match text {
            Text::Short(key) => self.short.add_as(key, next),
            Text::Long(key) => match self.long.get(key) {
                Some(number) => *number,
                None => {
                    self.long.insert(key.into(), next);
                    self.long_bytes += key.len();
                    next
                }
            },
        }
    }

    #[inline]
    fn find(&self, text: Text) -> u32 {
        match text {
            Text::Short(key) => self.short.find(&key),
            Text::Long(key) => self.long.get(key).copied().unwrap_or(NO_GROUP),
        }
    }
}

/// The values of a dictionary that rows have, each once in the order they are met.
struct UsedValues {
    values: ArrayRef,
    /// Which of them each row has, [`NO_GROUP`] where it has none.
    of_rows: Vec<u32>,
}

impl UsedValues {
    fn of(dictionary: &dyn AnyDictionaryArray) -> Result<Self> {
        let rows = dictionary.keys().len();
        let nulls = dictionary.keys().nulls();
        // Below is a table of all values: not where these are many more than the rows, or none.
        if dictionary.values().len() / 16 > rows || dictionary.values().is_empty() {
            return Ok(Self {
                values: take(dictionary.values(), dictionary.keys(), None)?,
                of_rows: (0..rows).map(number).collect(),
            });
        }
        let mut places = vec![NO_GROUP; dictionary.values().len()];
        let mut met: Vec<u64> = vec![];
        let mut of_rows = Vec::with_capacity(rows);
        for (row, key) in dictionary.normalized_keys().into_iter().enumerate() {
            if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                of_rows.push(NO_GROUP);
                continue;
            }
            if places[key] == NO_GROUP {
                places[key] = number(met.len());
                met.push(key as u64);
            }
            of_rows.push(places[key]);
        }
        Ok(Self {
            values: take(dictionary.values(), &UInt64Array::from(met), None)?,
            of_rows,
        })
    }

    fn give(&self, of_values: &[u32], numbers: &mut [u32]) {
        for (number, value) in numbers.iter_mut().zip(&self.of_rows) {
            *number = match *value {
                NO_GROUP => NO_GROUP,
                value => of_values[value as usize],
            };
        }
    }
}

/// So many values at once are compared with the one before them, where so many before have been equal.
const RUN: usize = 64;
const STREAK: usize = 8;

/// Asks for each value's number. Neighbours are often equal: these ask once. `repeat` says whether the [`RUN`] values from a place on
/// equal the one before; it may say no.
#[inline]
fn each<K: Copy + PartialEq>(
    nulls: Option<&NullBuffer>,
    numbers: &mut [u32],
    key: impl Fn(usize) -> K,
    repeat: impl Fn(usize) -> bool,
    mut ask: impl FnMut(K) -> u32,
) {
    let mut last: Option<(K, u32)> = None;
    if let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) {
        for (i, number) in numbers.iter_mut().enumerate() {
            if nulls.is_null(i) {
                *number = NO_GROUP;
                continue;
            }
            let key = key(i);
            *number = match last {
                Some((before, number)) if before == key => number,
                _ => ask(key),
            };
            last = Some((key, *number));
        }
        return;
    }
    let mut i = 0;
    while i < numbers.len() {
        let end = (i + STREAK).min(numbers.len());
        let mut same = true;
        for number in &mut numbers[i..end] {
            let key = key(i);
            *number = match last {
                Some((before, number)) if before == key => number,
                _ => {
                    same = false;
                    ask(key)
                }
            };
            last = Some((key, *number));
            i += 1;
        }
        while same && let Some(run) = numbers.get_mut(i..i + RUN) {
            let Some((_, number)) = last.filter(|_| repeat(i)) else {
                break;
            };
            run.fill(number);
            i += RUN;
        }
    }
}

/// Whether the [`RUN`] values from a place on, not the first, are those bits that stand before it.
#[inline]
fn repeats<T: Copy + PartialEq>(bits: &[T], from: usize) -> bool {
    let (before, run) = (bits[from - 1], &bits[from..from + RUN]);
    // All are counted, as several can be compared at a time then.
    run.iter().filter(|bits| **bits == before).count() == RUN
}

/// Values of a fixed width of up to 64 bits.
fn each_64(values: &ArrayRef, numbers: &mut [u32], ask: impl FnMut(u64) -> u32) -> Result<()> {
    let nulls = values.logical_nulls();
    let nulls = nulls.as_ref();
    let data_type = values.data_type();
    if let Some(bools) = values.as_boolean_opt() {
        let bools = bools.values();
        let key = |i: usize| u64::from(bools.value(i));
        each(nulls, numbers, key, |_| false, ask);
        return Ok(());
    }
    let minus_zero = match data_type {
        DataType::Float16 => 1 << 15,
        DataType::Float32 => 1 << 31,
        DataType::Float64 => 1 << 63,
        // No other bits than zero's are zero's.
        _ => 0,
    };
    let folded = |bits: u64| if bits == minus_zero { 0 } else { bits };
    match data_type.primitive_width() {
        Some(1) => {
            let bits = native::<u8>(values);
            let key = |i: usize| u64::from(bits[i]);
            each(nulls, numbers, key, |i| repeats(&bits, i), ask);
        }
        Some(2) => {
            let bits = native::<u16>(values);
            let key = |i: usize| folded(u64::from(bits[i]));
            each(nulls, numbers, key, |i| repeats(&bits, i), ask);
        }
        Some(4) => {
            let bits = native::<u32>(values);
            let key = |i: usize| folded(u64::from(bits[i]));
            each(nulls, numbers, key, |i| repeats(&bits, i), ask);
        }
        Some(8) => {
            let bits = native::<u64>(values);
            let key = |i: usize| folded(bits[i]);
            each(nulls, numbers, key, |i| repeats(&bits, i), ask);
        }
        _ => return unexpected(data_type),
    }
    Ok(())
}

/// Values of 128 bits.
fn each_128(values: &ArrayRef, numbers: &mut [u32], ask: impl FnMut(u128) -> u32) -> Result<()> {
    if values.data_type().primitive_width() != Some(16) {
        return unexpected(values.data_type());
    }
    let bits = native::<i128>(values);
    let key = |i: usize| bits[i].cast_unsigned();
    each(values.nulls(), numbers, key, |i| repeats(&bits, i), ask);
    Ok(())
}

/// Strings and binaries.
fn each_text<'a>(
    values: &'a ArrayRef,
    numbers: &mut [u32],
    ask: impl FnMut(Text<'a>) -> u32,
) -> Result<()> {
    match values.data_type() {
        DataType::Utf8 => each_of_bytes::<Utf8Type>(values, numbers, ask),
        DataType::LargeUtf8 => each_of_bytes::<LargeUtf8Type>(values, numbers, ask),
        DataType::Binary => each_of_bytes::<BinaryType>(values, numbers, ask),
        DataType::LargeBinary => each_of_bytes::<LargeBinaryType>(values, numbers, ask),
        DataType::Utf8View => {
            let array = values.as_string_view();
            each_view(array.views(), array.data_buffers(), values, numbers, ask);
        }
        DataType::BinaryView => {
            let array = values.as_binary_view();
            each_view(array.views(), array.data_buffers(), values, numbers, ask);
        }
        DataType::FixedSizeBinary(_) => {
            let array = values.as_fixed_size_binary();
            let key = |i: usize| {
                let value = array.value(i);
                Text::of(value, 0, value.len())
            };
            each(values.nulls(), numbers, key, |_| false, ask);
        }
        other => return unexpected(other),
    }
    Ok(())
}

fn each_of_bytes<'a, T: ByteArrayType>(
    values: &'a ArrayRef,
    numbers: &mut [u32],
    ask: impl FnMut(Text<'a>) -> u32,
) {
    let array = values.as_bytes::<T>();
    let (ends, bytes) = (array.value_offsets(), array.value_data());
    let key = |i: usize| {
        let (start, end) = (ends[i].as_usize(), ends[i + 1].as_usize());
        Text::of(bytes, start, end - start)
    };
    let repeat = |i: usize| {
        let ends = &ends[i - 1..=i + RUN];
        let (start, end) = (ends[0].as_usize(), ends[RUN].as_usize());
        let len = ends[1].as_usize() - start;
        let lens = ends.windows(2);
        let lens = lens.map(|ends| ends[1].as_usize() - ends[0].as_usize());
        // Each is the one before it, if they are so when moved on by one.
        lens.filter(|other| *other == len).count() == RUN + 1
            && bytes[start..end] == bytes[start + len..end + len]
    };
    each(values.nulls(), numbers, key, repeat, ask);
}

fn each_view<'a>(
    views: &'a [u128],
    buffers: &'a [Buffer],
    values: &'a ArrayRef,
    numbers: &mut [u32],
    ask: impl FnMut(Text<'a>) -> u32,
) {
    let key = |i: usize| {
        let view = views[i];
        #[expect(clippy::cast_possible_truncation, reason = "32 of its bits")]
        let part = |shift: u32| (view >> shift) as u32 as usize;
        let len = part(0);
        if len <= 12 {
            // The bytes stand in the view itself, zeros behind them.
            return Text::Short(view >> 32 | (len as u128) << 120);
        }
        Text::of(&buffers[part(64)], part(96), len)
    };
    each(values.nulls(), numbers, key, |i| repeats(views, i), ask);
}

/// Values of any type.
fn each_row(
    converter: &RowConverter,
    values: &ArrayRef,
    numbers: &mut [u32],
    mut ask: impl FnMut(Text) -> u32,
) -> Result<()> {
    let nulls = values.logical_nulls();
    let rows = converter.convert_columns(&[Arc::clone(values)])?;
    for (i, number) in numbers.iter_mut().enumerate() {
        let key = rows.row(i);
        *number = match &nulls {
            Some(nulls) if nulls.is_null(i) => NO_GROUP,
            _ => ask(Text::of(key.data(), 0, key.data().len())),
        };
    }
    Ok(())
}

fn unexpected<T>(data_type: &DataType) -> Result<T> {
    exec_err!("a {data_type} among equality keys of another type")
}
