//! The bytes of device memory that a build side takes.

use super::column::sum_bytes;
use super::float_sums::float_sum_bytes;
use super::group_ids::are_narrow;
use super::prefix_sums::TILE as SCAN_TILE;
use super::sort::{PASS_BITS, TILE};
use crate::cuda::batch_buffers::Offsets;
use crate::cuda::rmq::layout::Layout;
use crate::cuda::rmq::shape::Shape;
use crate::range_join::each_width;
use crate::{Addends, ColumnSize, Extreme, ExtremeIndex, RangeJoinColumn, RangeJoinInput};

/// Returns an upper bound of the bytes that a build takes at a time; `usize::MAX` if the input is too long.
pub fn building_bytes(input: &RangeJoinInput<'_>, shape: Option<Shape>) -> usize {
    let rows = input.rows();
    let groups = input.groups.as_ref().map_or(1, |groups| groups.count);
    let starts = 4 * (groups + 1);
    let keys = rows * input.keys.value_bytes();

    // Keys and ids, then values, each rounded up.
    let mut staging = Offsets::default();
    staging.add(keys);
    if input.groups.is_some() {
        staging.add(rows * if are_narrow(groups) { 2 } else { 4 });
    }
    add_values(&mut staging, &input.columns, rows);
    // Two arrays each of words and row numbers, the counts of tiles and their sums, and small results.
    let counts = (rows.div_ceil(TILE as usize) << PASS_BITS) * 4;
    let sorting = 16 * rows + counts + scan_bytes(counts) + 64;
    let sorting = sorting.saturating_add(staging.end);
    let gathering = gathering_bytes(&input.columns, rows, staging.end, shape);
    sorting
        .max(gathering.saturating_add(keys))
        .saturating_add(starts)
}

/// Returns an upper bound of the bytes that adding columns to a build side of `rows` rows takes at a time.
pub fn adding_bytes(columns: &[RangeJoinColumn], rows: usize, shape: Option<Shape>) -> usize {
    let mut staging = Offsets::default();
    add_values(&mut staging, columns, rows);
    gathering_bytes(columns, rows, staging.end, shape)
}

/// What columns take as they come.
fn add_values(staging: &mut Offsets, columns: &[RangeJoinColumn], rows: usize) {
    for column in columns {
        staging.add(rows * column.values.value_bytes());
        staging.add(rows.div_ceil(32) * 4);
    }
}

/// What columns take while they are gathered from `staging` bytes, and when their sums are built.
fn gathering_bytes(
    columns: &[RangeJoinColumn],
    rows: usize,
    staging: usize,
    shape: Option<Shape>,
) -> usize {
    let built = columns.iter();
    let built = built.map(|column| column_bytes(column, rows, shape));
    // Row numbers, and sums of prefix sums.
    let gathering = built
        .fold(0, usize::saturating_add)
        .saturating_add(4 * rows)
        .saturating_add(2 * scan_bytes(16 * (rows + 1)));
    // What came is freed before values that float sums can't contain are moved out; all of them may be such.
    let floats = columns.iter();
    let floats = floats.filter(|column| column.sums == Some(Addends::Floats));
    let [plain, most] = float_sum_bytes(rows);
    let summing = gathering.saturating_add(floats.count() * (most - plain));
    summing.max(gathering.saturating_add(staging))
}

/// The sums of tiles, of their tiles, and so on.
fn scan_bytes(bytes: usize) -> usize {
    2 * bytes.div_ceil(SCAN_TILE as usize) + 64
}

fn column_bytes(column: &RangeJoinColumn, rows: usize, shape: Option<Shape>) -> usize {
    let nulls = each_width!(&column.values, chunks => {
        chunks.iter().any(|chunk| chunk.validity().is_some())
    });
    let bitmap = rows.div_ceil(32) * 4;
    let mut bytes = if nulls { 2 * bitmap + 4 } else { 0 };
    if column.single_values {
        bytes += rows * column.values.value_bytes();
    }
    bytes += match column.sums {
        None => 0,
        Some(Addends::Floats) => float_sum_bytes(rows)[0],
        Some(_) => sum_bytes(column.values.value_bytes()) * (rows + 1),
    };
    for extreme in [Extreme::Min, Extreme::Max] {
        let Some(kind) = column.index_of(extreme) else {
            continue;
        };
        // Fewer rows may be in a group, whose index has another shape.
        let index_bytes = [rows, rows.min((1 << 24) - 1)].map(|rows| {
            let size = ColumnSize {
                rows,
                key_bytes: column.values.value_bytes(),
                nulls,
            };
            let layout = Layout::new(size, kind == ExtremeIndex::Rows, shape);
            layout.map_or(usize::MAX, |layout| {
                usize::try_from(layout.bytes).unwrap_or(usize::MAX)
            })
        });
        bytes = bytes.saturating_add(index_bytes[0].max(index_bytes[1]));
    }
    bytes
}
