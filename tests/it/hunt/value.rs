//! The values that the interpreter computes with.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::common::{DataFusionError, Result, ScalarValue};

/// Nanoseconds of a second, and of a day.
pub const SECOND: i64 = 1_000_000_000;
pub const DAY: i64 = 86_400 * SECOND;

/// What a column holds, without its width or unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Int,
    Float,
    /// Timestamps, which are moved by seconds.
    Time,
    /// Dates and timestamps, which are moved by days.
    Date,
    Text,
    Bool,
}

/// A value. Dates and timestamps are nanoseconds since 1970.
#[derive(Debug, Clone)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Time(i64),
    Text(Arc<str>),
}

impl Value {
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// The truth value; `None` for NULL.
    pub fn truth(&self) -> Option<bool> {
        match self {
            Self::Bool(truth) => Some(*truth),
            Self::Null => None,
            other => panic!("{other:?} is no truth value"),
        }
    }

    pub fn of_truth(truth: Option<bool>) -> Self {
        truth.map_or(Self::Null, Self::Bool)
    }

    pub fn number(&self) -> f64 {
        match self {
            Self::Int(int) => *int as f64,
            Self::Float(float) => *float,
            other => panic!("{other:?} is no number"),
        }
    }

    /// Compares two values that are not NULL.
    pub fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Int(a), Self::Int(b)) | (Self::Time(a), Self::Time(b)) => a.cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            // Adding zero makes -0.0 the other zero.
            (a, b) => (a.number() + 0.0).total_cmp(&(b.number() + 0.0)),
        }
    }

    /// Compares as SQL does: `None` where one is NULL.
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        (!self.is_null() && !other.is_null()).then(|| self.order(other))
    }

    /// Whether GROUP BY and DISTINCT take the two for one.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self.is_null(), other.is_null()) {
            (false, false) => self.order(other).is_eq(),
            (a, b) => a == b,
        }
    }

    /// Reads a value of an array.
    pub fn read(array: &dyn Array, row: usize) -> Result<Self> {
        use ScalarValue as S;
        if array.is_null(row) {
            return Ok(Self::Null);
        }
        Ok(match ScalarValue::try_from_array(array, row)? {
            S::Boolean(Some(v)) => Self::Bool(v),
            S::Int8(Some(v)) => Self::Int(v.into()),
            S::Int16(Some(v)) => Self::Int(v.into()),
            S::Int32(Some(v)) => Self::Int(v.into()),
            S::Int64(Some(v)) => Self::Int(v),
            S::UInt8(Some(v)) => Self::Int(v.into()),
            S::UInt16(Some(v)) => Self::Int(v.into()),
            S::UInt32(Some(v)) => Self::Int(v.into()),
            S::UInt64(Some(v)) => Self::Int(v.cast_signed()),
            S::Decimal128(Some(v), _, scale) => Self::Float(v as f64 / 10_f64.powi(scale.into())),
            S::Float32(Some(v)) => Self::Float(v.into()),
            S::Float64(Some(v)) => Self::Float(v),
            S::TimestampSecond(Some(v), _) => Self::Time(v * SECOND),
            S::TimestampMillisecond(Some(v), _) => Self::Time(v * 1_000_000),
            S::TimestampMicrosecond(Some(v), _) => Self::Time(v * 1000),
            S::TimestampNanosecond(Some(v), _) => Self::Time(v),
            S::Date32(Some(v)) => Self::Time(i64::from(v) * DAY),
            S::Utf8(Some(v)) | S::Utf8View(Some(v)) | S::LargeUtf8(Some(v)) => Self::Text(v.into()),
            other => return Err(DataFusionError::Internal(format!("a value {other:?}"))),
        })
    }
}

/// Floats that are integers look like these, so that widths and types of numbers make no difference.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::Int(v) => write!(f, "{v}"),
            Self::Float(v) => write!(f, "{}", v + 0.0),
            Self::Time(v) => write!(f, "{}s", *v as f64 / SECOND as f64),
            Self::Text(v) => write!(f, "'{v}'"),
        }
    }
}

/// The rows as text.
pub fn lines(batches: &[RecordBatch]) -> Result<Vec<String>> {
    let mut lines = vec![];
    for batch in batches {
        for row in 0..batch.num_rows() {
            let cells = batch.columns().iter().map(|c| Value::read(c, row));
            lines.push(line(&cells.collect::<Result<Vec<_>>>()?));
        }
    }
    Ok(lines)
}

/// One row as text.
pub fn line(row: &[Value]) -> String {
    let cells: Vec<_> = row.iter().map(Value::to_string).collect();
    cells.join(" | ")
}
