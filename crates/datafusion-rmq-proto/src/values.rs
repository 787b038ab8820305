//! Single values of the format: types, numbers, and what is one of a few.

use arrow::datatypes::DataType;
use datafusion::common::{JoinSide, JoinType, Result};
use datafusion_proto::protobuf::{ArrowType, proto_error};
use datafusion_rmq::logical_plan::range_join::Unmatched;
use datafusion_rmq::physical_plan::JoinMode;
use datafusion_rmq::{Comparison, Extreme, IndexKind, RangeEnd, RangeFunction};

/// A value that is one of a few, which the format knows by their place in [`Self::ALL`].
pub(crate) trait Choice: Copy + PartialEq + 'static {
    /// What the value is, for errors.
    const NAME: &'static str;
    const ALL: &'static [Self];

    fn number(self) -> Result<u32> {
        let index = Self::ALL.iter().position(|value| *value == self);
        let number = index.and_then(|index| u32::try_from(index).ok());
        number.ok_or_else(|| proto_error(format!("{} has no number", Self::NAME)))
    }

    fn of_number(number: u32) -> Result<Self> {
        let value = Self::ALL.get(number as usize).copied();
        value.ok_or_else(|| proto_error(format!("there is no {} {number}", Self::NAME)))
    }
}

impl Choice for Comparison {
    const NAME: &'static str = "comparison";
    const ALL: &'static [Self] = &[Self::Above, Self::AtLeast, Self::Below, Self::AtMost];
}

impl Choice for Extreme {
    const NAME: &'static str = "extreme";
    const ALL: &'static [Self] = &[Self::Min, Self::Max];
}

impl Choice for IndexKind {
    const NAME: &'static str = "kind of an index";
    const ALL: &'static [Self] = &IndexKind::ALL;
}

impl Choice for RangeEnd {
    const NAME: &'static str = "end of a range";
    const ALL: &'static [Self] = &[Self::First, Self::Last];
}

impl Choice for Unmatched {
    const NAME: &'static str = "treatment of rows without a match";
    const ALL: &'static [Self] = &[Self::Drop, Self::Keep, Self::Only];
}

/// Joins that share their build side are not sent.
impl Choice for JoinMode {
    const NAME: &'static str = "mode of a range join";
    const ALL: &'static [Self] = &[Self::Collected, Self::Partitioned];
}

impl Choice for JoinSide {
    const NAME: &'static str = "side of a join";
    const ALL: &'static [Self] = &[Self::Left, Self::Right, Self::None];
}

impl Choice for JoinType {
    const NAME: &'static str = "type of a join";
    const ALL: &'static [Self] = &[
        Self::Inner,
        Self::Left,
        Self::Right,
        Self::Full,
        Self::LeftSemi,
        Self::RightSemi,
        Self::LeftAnti,
        Self::RightAnti,
        Self::LeftMark,
        Self::RightMark,
    ];
}

impl Choice for RangeFunction {
    const NAME: &'static str = "range function";
    const ALL: &'static [Self] = &RangeFunction::ALL;
}

/// A type.
pub(crate) fn arrow_type(data_type: &DataType) -> Result<ArrowType> {
    Ok(ArrowType::try_from(data_type)?)
}

pub(crate) fn data_type(message: &ArrowType) -> Result<DataType> {
    Ok(DataType::try_from(message)?)
}

/// Types.
pub(crate) fn arrow_types(types: &[DataType]) -> Result<Vec<ArrowType>> {
    types.iter().map(arrow_type).collect()
}

pub(crate) fn data_types(messages: &[ArrowType]) -> Result<Vec<DataType>> {
    messages.iter().map(data_type).collect()
}

/// A number of rows, columns or partitions.
pub(crate) fn size(number: u64) -> Result<usize> {
    usize::try_from(number)
        .map_err(|_| proto_error(format!("{number} is more than this machine can count")))
}

/// An integer of 128 bits.
pub(crate) fn wide(bytes: &[u8]) -> Result<i128> {
    let bytes = bytes.try_into();
    let bytes = bytes.map_err(|_| proto_error("an integer of 128 bits has 16 bytes"))?;
    Ok(i128::from_le_bytes(bytes))
}
