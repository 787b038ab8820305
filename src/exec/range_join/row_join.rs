//! What a range join makes of single pairs of rows: it returns them, or only needs to know whether there is one, and
//! may have a further condition on them.
//!
//! Equality keys and the range of a key, which say what matches, are in `RangeJoinSpec`, as for a join that returns
//! aggregates. Types of joins are those of DataFusion with the probe side on the left:
//!
//! | type | returns |
//! |---|---|
//! | `Inner`, `Left` | pairs, by probe row |
//! | `Right`, `Full` | pairs, by probe row; then the build rows without a match |
//! | `LeftSemi`, `LeftAnti`, `LeftMark` | probe rows |
//! | `RightSemi`, `RightAnti`, `RightMark` | build rows, after the last probe row |

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanBufferBuilder, new_empty_array, new_null_array};
use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{concat, take};
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use datafusion::common::{JoinSide, JoinType, Result, internal_datafusion_err, internal_err};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};

use crate::exec::range_join::pair_distance::PairDistance;
use crate::exec::range_join::row_threshold::{RowThreshold, renumbered, renumbered_column};
use datafusion_rmq_logical::logical_plan::nearest_rows::RowLimit;
use rmq_arrow::common::dictionaries::fit;
use rmq_arrow::common::row_number::row_numbers;
use rmq_arrow::range_agg::values::Values;

/// The most rows of each segment that are merged for a probe row.
const MAX_MERGED_ROWS: usize = 1 << 10;

/// What a range join makes of the pairs of a probe row and a build row that match.
#[derive(Debug, Clone)]
pub struct RowJoin {
    /// Left is the probe side.
    pub join_type: JoinType,
    /// A further condition on pairs. Columns of the right side are indexes into `build_columns`.
    pub residual: Option<JoinFilter>,
    /// The part of `residual` that an index answers. Its columns of the right side are indexes into `build_columns`.
    pub threshold: Option<RowThreshold>,
    /// The columns of the build side that single rows are taken of, as indexes into its schema.
    pub build_columns: Vec<usize>,
    /// The columns of the output. Those of the right side are indexes into `build_columns`; `JoinSide::None` is the
    /// mark.
    pub columns: Vec<ColumnIndex>,
    /// The schema of the output.
    pub schema: SchemaRef,
    /// Which pairs of a probe row are returned, in which order; `None` for all, in any order. Only where pairs are
    /// returned by probe row.
    pub limit: Option<RowLimit>,
    /// The distance by which these pairs are ordered, if it is that. Its columns of the right side are indexes into
    /// `build_columns`.
    pub distance: Option<PairDistance>,
    /// The bytes by which these pairs are ordered, or those at the same distance are, over the build side; `None` if
    /// that is the range key.
    pub order: Option<PhysicalExprRef>,
}

impl RowJoin {
    /// Joins by this type, where left is the probe side and right the build side. `columns`, of `schema`, and those of
    /// `residual` and of `threshold`, which is a part of it, are indexes into the schemas of these sides.
    pub(crate) fn try_new(
        join_type: JoinType,
        residual: Option<&JoinFilter>,
        threshold: Option<&RowThreshold>,
        columns: &[ColumnIndex],
        schema: SchemaRef,
    ) -> Result<Self> {
        Self::numbered(join_type, residual, threshold, None, columns, schema)
    }

    fn numbered(
        join_type: JoinType,
        residual: Option<&JoinFilter>,
        threshold: Option<&RowThreshold>,
        distance: Option<&PairDistance>,
        columns: &[ColumnIndex],
        schema: SchemaRef,
    ) -> Result<Self> {
        let of_distance = distance.into_iter().flat_map(PairDistance::filters);
        let filters = residual.into_iter().chain(of_distance);
        let of_filters = filters.flat_map(JoinFilter::column_indices);
        let mut build_columns = vec![];
        for column in of_filters.chain(columns) {
            if column.side == JoinSide::Right && !build_columns.contains(&column.index) {
                build_columns.push(column.index);
            }
        }
        // A threshold has columns of the residual.
        let number = |index: usize| number_among(&build_columns, index);
        let columns = columns
            .iter()
            .map(|column| renumbered_column(column, number));
        let distance = distance.map(|distance| distance.renumbered(number));
        let residual = residual.map(|filter| renumbered(filter, number));
        Ok(Self {
            join_type,
            residual: residual.transpose()?,
            threshold: threshold.map(|t| t.renumbered(number)).transpose()?,
            columns: columns.collect::<Result<_>>()?,
            build_columns,
            schema,
            limit: None,
            distance: distance.transpose()?,
            order: None,
        })
    }

    /// The same join, which returns these pairs of each probe row, in the order of a distance, of these bytes of the
    /// build side, or of the range key. It returns the columns of the distance.
    pub(crate) fn with_limit(
        self,
        limit: RowLimit,
        distance: Option<&PairDistance>,
        order: Option<PhysicalExprRef>,
    ) -> Result<Self> {
        let number = |index: usize| number_among(&self.build_columns, index);
        let distance = distance.map(|distance| distance.renumbered(number));
        Ok(Self {
            limit: Some(limit),
            distance: distance.transpose()?,
            order,
            ..self
        })
    }

    /// The same join with these columns of the output only.
    pub(crate) fn project(&self, columns: &[usize]) -> Result<Self> {
        let schema = Arc::new(self.schema.project(columns)?);
        let columns = columns.iter().map(|column| self.columns[*column].clone());
        let raw = |mut column: ColumnIndex| {
            if column.side == JoinSide::Right {
                column.index = self.build_columns[column.index];
            }
            column
        };
        let number = |column: usize| Ok(self.build_columns[column]);
        let residual = self.residual.as_ref().map(|f| renumbered(f, number));
        let threshold = self.threshold.as_ref().map(|t| t.renumbered(number));
        let (limit, order) = (self.limit, self.order.clone());
        let distance = self.distance.as_ref().map(|d| d.renumbered(number));
        let projected = Self::numbered(
            self.join_type,
            residual.transpose()?.as_ref(),
            threshold.transpose()?.as_ref(),
            distance.transpose()?.as_ref(),
            &columns.map(raw).collect::<Vec<_>>(),
            schema,
        )?;
        Ok(Self {
            limit,
            order,
            ..projected
        })
    }

    /// Whether they are returned in another order than that of the range key, the same for all probe rows.
    pub(crate) fn is_ordered(&self) -> bool {
        self.order.is_some() && self.distance.is_none()
    }

    /// The limit, if the pairs that it lets pass have to be searched. Without a further condition, in the order of the
    /// range key, they are at an end of their range.
    pub(crate) fn searched_limit(&self) -> Option<RowLimit> {
        let is_searched =
            self.residual.is_some() || self.order.is_some() || self.distance.is_some();
        self.limit.filter(|_| is_searched)
    }

    /// The distance by which they are ordered, if it is that.
    pub(crate) fn distance(&self) -> Option<&PairDistance> {
        self.distance.as_ref()
    }

    /// Whether those at the same distance have an order.
    pub(crate) fn orders_ties(&self) -> bool {
        self.order.is_some() && self.distance.is_some()
    }

    /// Whether what several segments of a build side have for a probe row can be put together: all of it, or the first
    /// few rows in an order that is the same for all probe rows.
    pub(crate) fn merges_segments(&self) -> bool {
        self.limit.is_none_or(|limit| {
            let most = limit.with_skipped().fetch;
            self.distance.is_none() && most.is_some_and(|most| most <= MAX_MERGED_ROWS)
        })
    }

    /// The further condition on pairs.
    pub(crate) fn residual(&self) -> Option<&JoinFilter> {
        self.residual.as_ref()
    }

    /// The part of the further condition that an index answers.
    pub(crate) fn threshold(&self) -> Option<&RowThreshold> {
        self.threshold.as_ref()
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The columns of the output as indexes into the columns of the probe side, then those of the build side; `None` if
    /// one is the mark.
    pub(crate) fn column_indices(&self, probe_columns: usize) -> Option<Vec<usize>> {
        let indices = self.columns.iter().map(|column| match column.side {
            JoinSide::Left => Some(column.index),
            JoinSide::Right => Some(probe_columns + self.build_columns[column.index]),
            JoinSide::None => None,
        });
        indices.collect()
    }

    /// Whether the output is probe rows, possibly with aggregates: for each the join only needs to know whether it has
    /// a match.
    pub(crate) fn returns_probe_rows(&self) -> bool {
        use JoinType::{LeftAnti, LeftMark, LeftSemi};
        matches!(self.join_type, LeftSemi | LeftAnti | LeftMark)
    }

    /// Whether the output is build rows, each at most once.
    pub(crate) fn returns_build_rows(&self) -> bool {
        use JoinType::{RightAnti, RightMark, RightSemi};
        matches!(self.join_type, RightSemi | RightAnti | RightMark)
    }

    /// Whether the output depends on which build rows have matched, so that it ends with rows that the last partition
    /// returns.
    pub(crate) fn marks_build_rows(&self) -> bool {
        self.returns_build_rows() || matches!(self.join_type, JoinType::Right | JoinType::Full)
    }

    /// Whether a probe row without a match is returned, with NULLs.
    pub(crate) fn keeps_probe_rows(&self) -> bool {
        matches!(self.join_type, JoinType::Left | JoinType::Full)
    }

    /// The columns of the build side that single rows are taken of, over its schema, and then the bytes by which they
    /// are ordered, if that is not by the range key.
    pub(crate) fn row_columns(&self, build: &Schema) -> Vec<PhysicalExprRef> {
        let columns = self.build_columns.iter();
        let columns = columns.map(|index| {
            Arc::new(Column::new(build.field(*index).name(), *index)) as PhysicalExprRef
        });
        columns.chain(self.order.clone()).collect()
    }

    /// Whether the pairs of these probe rows and build positions meet the further condition. NULL is false. `build` has
    /// the columns of [`Self::row_columns`].
    pub(crate) fn meet_residual(
        filter: &JoinFilter,
        probe: &RecordBatch,
        build: &[Arc<Values>],
        pairs: (&UInt32Array, &UInt32Array),
    ) -> Result<BooleanArray> {
        let mut met = BooleanBufferBuilder::new(pairs.0.len());
        for part in Self::parts_of(filter, probe, build, pairs)? {
            let part = part.as_boolean();
            match part.nulls() {
                Some(valid) => met.append_buffer(&(part.values() & valid.inner())),
                None => met.append_buffer(part.values()),
            }
        }
        Ok(BooleanArray::new(met.finish(), None))
    }

    /// The values of an expression over these pairs of probe rows and build positions. `build` has the columns of
    /// [`Self::row_columns`].
    pub(crate) fn evaluate(
        expr: &JoinFilter,
        probe: &RecordBatch,
        build: &[Arc<Values>],
        pairs: (&UInt32Array, &UInt32Array),
    ) -> Result<ArrayRef> {
        let parts = Self::parts_of(expr, probe, build, pairs)?;
        match parts.as_slice() {
            [part] => Ok(Arc::clone(part)),
            [] => Ok(new_empty_array(
                &expr.expression().data_type(expr.schema())?,
            )),
            parts => {
                let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
                Ok(concat(&parts)?)
            }
        }
    }

    /// The values of an expression over pairs, in several arrays if dictionaries have too few keys for all values.
    fn parts_of(
        filter: &JoinFilter,
        probe: &RecordBatch,
        build: &[Arc<Values>],
        (rows, positions): (&UInt32Array, &UInt32Array),
    ) -> Result<Vec<ArrayRef>> {
        let columns = filter
            .column_indices()
            .iter()
            .map(|column| match column.side {
                JoinSide::Left => Ok(take(probe.column(column.index), rows, None)?),
                JoinSide::Right => build[column.index].take(positions),
                JoinSide::None => internal_err!("a join condition has the column of no side"),
            });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let schema = filter.schema();
        let types: Vec<&DataType> = schema.fields().iter().map(|f| f.data_type()).collect();
        let parts = fit(&columns, &types, rows.len())?.into_iter();
        let parts = parts.map(|(rows, columns)| {
            let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
            let pairs = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?;
            filter.expression().evaluate(&pairs)?.into_array(rows.len())
        });
        parts.collect()
    }

    /// The output rows of those of these build positions that are returned by whether they have matched, after the last
    /// probe row.
    pub(crate) fn output_build_rows(
        &self,
        build: &[Arc<Values>],
        positions: Range<usize>,
        is_matched: impl Fn(usize) -> bool,
    ) -> Result<Vec<RecordBatch>> {
        let returned = match self.join_type {
            JoinType::RightMark => None,
            JoinType::RightSemi => Some(true),
            _ => Some(false),
        };
        let is_returned = |p: &usize| returned.is_none_or(|returned| returned == is_matched(*p));
        let marks: BooleanArray = positions.clone().map(|p| Some(is_matched(p))).collect();
        let positions = UInt32Array::from(row_numbers(positions.filter(is_returned))?);
        let no_rows = UInt32Array::from(Vec::<u32>::new());
        let marks = returned.is_none().then_some(&marks);
        self.output(None, build, (&no_rows, &positions), marks)
    }

    /// The output rows of these pairs of probe rows and build positions, where NULL is a row of NULLs. `build` has the
    /// columns of [`Self::row_columns`]. There are several batches if dictionaries have too few keys for all values.
    pub(crate) fn output(
        &self,
        probe: Option<&RecordBatch>,
        build: &[Arc<Values>],
        (rows, positions): (&UInt32Array, &UInt32Array),
        marks: Option<&BooleanArray>,
    ) -> Result<Vec<RecordBatch>> {
        let num_rows = positions.len();
        let column = |(column, field): (&ColumnIndex, &FieldRef)| -> Result<ArrayRef> {
            match (column.side, probe) {
                (JoinSide::Left, Some(probe)) => Ok(take(probe.column(column.index), rows, None)?),
                (JoinSide::Left, None) => Ok(new_null_array(field.data_type(), num_rows)),
                (JoinSide::Right, _) => build[column.index].take(positions),
                (JoinSide::None, _) => match marks {
                    Some(marks) => Ok(Arc::new(marks.clone())),
                    None => internal_err!("a join that returns pairs has no mark"),
                },
            }
        };
        let fields = self.schema.fields();
        let columns = self.columns.iter().zip(fields).map(column);
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let types: Vec<&DataType> = fields.iter().map(|field| field.data_type()).collect();
        let parts = fit(&columns, &types, num_rows)?.into_iter();
        let parts = parts.map(|(rows, columns)| {
            let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
            let schema = Arc::clone(&self.schema);
            Ok(RecordBatch::try_new_with_options(
                schema, columns, &options,
            )?)
        });
        parts.collect()
    }
}

/// The number of a column among these, which have it.
///
/// # Errors
/// An internal error if they have not.
fn number_among(columns: &[usize], index: usize) -> Result<usize> {
    let number = columns.iter().position(|column| *column == index);
    number.ok_or_else(|| internal_datafusion_err!("a range join lacks column {index}"))
}
