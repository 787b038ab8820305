//! Any aggregate function of DataFusion over many ranges of rows. States of blocks may cover a part of each.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StructArray, UInt32Array, new_empty_array, new_null_array};
use arrow::compute::{concat, take};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use crate::states::aggregated_rows::{AggregatedRows, CompleteRows, ReadRows};
use crate::states::pair_moments::PairMoments;
use datafusion_rmq_logical::expr::state_function::StateFunction;
use rmq_arrow::common::row_number::row_numbers;

/// What ranges are aggregated to.
#[derive(Debug, Clone)]
pub(crate) enum Output {
    /// The function's value.
    Value {
        /// That of a range without rows.
        of_no_rows: ScalarValue,
    },
    /// The state after its rows, a struct; NULL for a range without rows.
    State,
}

/// How ranges are aggregated. Of functions of this crate and of DataFusion that are aggregated together, the answers
/// are the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// Many at once, by one `GroupsAccumulator`.
    Together,
    /// Each by an accumulator of its own.
    OneByOne,
}

impl Method {
    /// All ranges together if the function has accumulators for groups whose states after some rows, `samples`, are
    /// those of its accumulator: those of DataFusion's `corr`, sums of plain squares, are others.
    ///
    /// # Errors
    /// Those of the function.
    pub(crate) fn choose(rows: &dyn AggregatedRows, samples: &[Range<usize>]) -> Result<Self> {
        let function = &rows.function().function;
        if PairMoments::of(function).is_some() {
            return Ok(Self::Together);
        }
        if !function.groups_accumulator_supported() {
            return Ok(Self::OneByOne);
        }
        let samples: Vec<&Range<usize>> = samples.iter().collect();
        let states = |method| {
            let ranges = AggregatedRanges::read(rows, &samples, method, true)?;
            ranges.aggregate(&Output::State, &|_| Ok(()))
        };
        let (one_by_one, together) = (states(Self::OneByOne)?, states(Self::Together)?);
        // States without values might be alike by chance.
        let mut fresh = rows.function().column(1);
        fresh.push(Some(&function.create_accumulator()?.state()?))?;
        let fresh = fresh.finish()?;
        let has_values = |row| one_by_one.slice(row, 1).as_ref() != fresh.as_ref();
        let has_values = (0..one_by_one.len()).all(has_values);
        Ok(if has_values && one_by_one.as_ref() == together.as_ref() {
            Self::Together
        } else {
            Self::OneByOne
        })
    }
}

/// A range of rows in parts that follow one another: rows, states of blocks, and rows.
#[derive(Debug, Clone)]
pub(crate) struct RangeParts {
    pub(crate) before: Range<usize>,
    pub(crate) states: Range<usize>,
    pub(crate) after: Range<usize>,
}

/// Ranges of rows, with the states of blocks that lie in them.
///
/// The first parts of all ranges lie behind one another, and so do the second and the third ones, if all ranges are
/// aggregated together.
#[derive(Debug)]
pub(crate) struct AggregatedRanges<'a> {
    rows: CompleteRows<'a>,
    /// The fields of the states.
    states: Vec<ArrayRef>,
    ranges: Vec<RangeParts>,
    method: Method,
}

impl<'a> AggregatedRanges<'a> {
    /// Ranges in these parts.
    pub(crate) fn new(
        rows: CompleteRows<'a>,
        states: Vec<ArrayRef>,
        ranges: Vec<RangeParts>,
        method: Method,
    ) -> Self {
        Self {
            rows,
            states,
            ranges,
            method,
        }
    }

    /// Ranges all of whose rows are read. They are copied if `copies`, and if ranges that do not follow one another are
    /// aggregated together.
    ///
    /// # Errors
    /// Those of the function, and Arrow's.
    pub(crate) fn read(
        rows: &'a dyn AggregatedRows,
        ranges: &[&Range<usize>],
        method: Method,
        copies: bool,
    ) -> Result<Self> {
        let follow = ranges.windows(2).all(|pair| pair[0].end == pair[1].start);
        let mut read = ReadRows::new(rows, copies || method == Method::Together && !follow);
        let ranges = ranges.iter().map(|range| {
            Ok(RangeParts {
                before: read.add((*range).clone())?,
                states: 0..0,
                after: 0..0,
            })
        });
        let ranges = ranges.collect::<Result<_>>()?;
        Ok(Self::new(read.complete()?, vec![], ranges, method))
    }

    /// The aggregate of each range. Calls `grow` from time to time, with the bytes of what is aggregated.
    ///
    /// # Errors
    /// Those of the function, and of `grow`.
    pub(crate) fn aggregate(
        &self,
        output: &Output,
        grow: &dyn Fn(usize) -> Result<()>,
    ) -> Result<ArrayRef> {
        let aggregated = match self.method {
            Method::Together => self.together(output, grow),
            Method::OneByOne => self.one_by_one(output, grow),
        }?;
        let function = &self.rows.aggregated().function().function;
        let (expected, found) = (function.field(), aggregated.data_type());
        if matches!(output, Output::Value { .. }) && found != expected.data_type() {
            let (name, expected) = (function.name(), expected.data_type());
            return exec_err!("{name} returned a {found} instead of a {expected}");
        }
        Ok(aggregated)
    }

    /// How many of the ranges have states.
    pub(crate) fn wide(&self) -> usize {
        let wide = self.ranges.iter();
        wide.filter(|range| !range.states.is_empty()).count()
    }

    fn one_by_one(&self, output: &Output, grow: &dyn Fn(usize) -> Result<()>) -> Result<ArrayRef> {
        let rows = self.rows.aggregated();
        let function = rows.function();
        let (mut values, mut states) = (vec![], function.column(0));
        let mut value_bytes = 0;
        for parts in &self.ranges {
            if parts.is_empty() {
                match output {
                    Output::Value { of_no_rows } => values.push(of_no_rows.clone()),
                    Output::State => states.push(None)?,
                }
                continue;
            }
            let result_bytes = value_bytes + states.bytes();
            let grow = |bytes| grow(result_bytes + bytes);
            let mut accumulator = function.function.create_accumulator()?;
            if !parts.before.is_empty() {
                rows.update(&mut *accumulator, parts.before.clone(), &grow)?;
            }
            if !parts.states.is_empty() {
                let fields = self.states.iter();
                let fields =
                    fields.map(|field| field.slice(parts.states.start, parts.states.len()));
                function.merge(&mut *accumulator, &fields.collect::<Vec<_>>())?;
            }
            if !parts.after.is_empty() {
                rows.update(&mut *accumulator, parts.after.clone(), &grow)?;
            }
            match output {
                Output::Value { .. } => {
                    let value = accumulator.evaluate()?;
                    value_bytes += value.size();
                    values.push(value);
                }
                Output::State => states.push(Some(&accumulator.state()?))?,
            }
        }
        match output {
            Output::State => states.finish(),
            Output::Value { .. } if values.is_empty() => {
                Ok(new_empty_array(function.function.field().data_type()))
            }
            Output::Value { .. } => ScalarValue::iter_to_array(values),
        }
    }

    fn together(&self, output: &Output, grow: &dyn Fn(usize) -> Result<()>) -> Result<ArrayRef> {
        let rows = self.rows.aggregated();
        let function = rows.function();
        let mut groups = groups_accumulator(function)?;
        let mut numbers = GroupNumbers::new(self.ranges.len());
        let update = |groups: &mut dyn GroupsAccumulator, part: Part| -> Result<()> {
            if part.of.is_empty() {
                return Ok(());
            }
            let (arguments, filter) = rows.arguments(part.span)?;
            groups.update_batch(&arguments, &part.of, filter.as_ref(), part.groups)?;
            grow(groups.size() + size_of_val(part.of.as_slice()))
        };
        let before = numbers.part(self.ranges.iter().map(|range| &range.before))?;
        update(&mut *groups, before)?;
        let merged = numbers.part(self.ranges.iter().map(|range| &range.states))?;
        if !merged.of.is_empty() {
            let (start, length) = (merged.span.start, merged.span.len());
            let fields = self.states.iter().map(|field| field.slice(start, length));
            let fields: Vec<ArrayRef> = fields.collect();
            groups.merge_batch(&fields, &merged.of, merged.groups)?;
        }
        let after = numbers.part(self.ranges.iter().map(|range| &range.after))?;
        update(&mut *groups, after)?;
        grow(groups.size())?;
        let (aggregated, of_no_rows) = match output {
            Output::Value { of_no_rows } => (groups.evaluate(EmitTo::All)?, of_no_rows.to_array()?),
            Output::State => {
                let fields = function.fields().clone();
                let states = groups.state(EmitTo::All)?;
                let states = StructArray::try_new_with_length(fields, states, None, numbers.total)?;
                let of_no_rows = new_null_array(states.data_type(), 1);
                (Arc::new(states) as ArrayRef, of_no_rows)
            }
        };
        numbers.in_order_of_ranges(&aggregated, &of_no_rows)
    }
}

/// The accumulator of many groups, whose states are those of the function's accumulator.
fn groups_accumulator(function: &StateFunction) -> Result<Box<dyn GroupsAccumulator>> {
    Ok(match PairMoments::of(&function.function) {
        Some(moments) => Box::new(moments),
        None => function.function.create_groups_accumulator()?,
    })
}

impl RangeParts {
    fn is_empty(&self) -> bool {
        self.before.is_empty() && self.states.is_empty() && self.after.is_empty()
    }
}

/// The groups of ranges, numbered when they have their first row or state: accumulators take each number below that of
/// all groups for one that has some.
struct GroupNumbers {
    of_ranges: Vec<Option<usize>>,
    total: usize,
}

/// What ranges have of one part.
struct Part {
    /// The rows, or states.
    span: Range<usize>,
    /// The group of each.
    of: Vec<usize>,
    /// The number of groups so far.
    groups: usize,
}

impl GroupNumbers {
    fn new(ranges: usize) -> Self {
        Self {
            of_ranges: vec![None; ranges],
            total: 0,
        }
    }

    fn part<'r>(&mut self, ranges: impl Iterator<Item = &'r Range<usize>>) -> Result<Part> {
        let (mut span, mut of) = (0..0, vec![]);
        for (range, group) in ranges.zip(&mut self.of_ranges) {
            if range.is_empty() {
                continue;
            }
            if of.is_empty() {
                span = range.start..range.start;
            }
            if span.end != range.start {
                return internal_err!("the rows of ranges do not follow one another");
            }
            span.end = range.end;
            let group = *group.get_or_insert_with(|| {
                self.total += 1;
                self.total - 1
            });
            of.extend(std::iter::repeat_n(group, range.len()));
        }
        Ok(Part {
            span,
            of,
            groups: self.total,
        })
    }

    /// What groups were aggregated to, in the order of the ranges.
    fn in_order_of_ranges(self, aggregated: &ArrayRef, of_no_rows: &ArrayRef) -> Result<ArrayRef> {
        if aggregated.len() != self.total {
            let found = aggregated.len();
            return exec_err!(
                "an accumulator of {} groups has {found} results",
                self.total
            );
        }
        let mut groups = self.of_ranges.iter().enumerate();
        if groups.all(|(range, group)| *group == Some(range)) {
            return Ok(Arc::clone(aggregated));
        }
        let with_rows = concat(&[aggregated.as_ref(), of_no_rows.as_ref()])?;
        let places = self.of_ranges.iter();
        let places = row_numbers(places.map(|group| group.unwrap_or(self.total)))?;
        Ok(take(&with_rows, &UInt32Array::from(places), None)?)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, BooleanArray, Float64Array, Int64Array};
    use arrow::compute::{filter, take_arrays};
    use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, Schema};
    use datafusion::functions_aggregate::correlation::Correlation;
    use datafusion::functions_aggregate::{
        bit_and_or_xor, bool_and_or, correlation, covariance, regr, stddev, variance,
    };
    use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
    use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature};
    use datafusion::physical_expr::aggregate::AggregateExprBuilder;
    use datafusion::physical_expr::expressions::col;
    use rmq_testing::{Random, runs};

    use super::*;

    #[derive(Debug)]
    struct TestRows {
        udaf: Arc<AggregateUDF>,
        function: StateFunction,
        columns: Vec<ArrayRef>,
        filter: Option<BooleanArray>,
    }

    impl TestRows {
        fn new(
            udaf: &Arc<AggregateUDF>,
            columns: Vec<ArrayRef>,
            filter: Option<BooleanArray>,
        ) -> Self {
            let fields = columns.iter().enumerate();
            let fields =
                fields.map(|(i, c)| Field::new(i.to_string(), c.data_type().clone(), true));
            let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
            let arguments = schema.fields().iter().map(|f| col(f.name(), &schema));
            let arguments = arguments.collect::<Result<_>>().expect("columns");
            let function = AggregateExprBuilder::new(Arc::clone(udaf), arguments)
                .schema(schema)
                .alias("a")
                .build();
            let function = StateFunction::try_new(function.expect("a function of the columns"));
            Self {
                udaf: Arc::clone(udaf),
                function: function.expect("a function with states"),
                columns,
                filter,
            }
        }

        /// An accumulator that has seen a range.
        fn accumulated(&self, range: &Range<usize>) -> Box<dyn Accumulator> {
            let accumulator = self.function.function.create_accumulator();
            let mut accumulator = accumulator.expect("an accumulator");
            let updated = self.update(&mut *accumulator, range.clone(), &|_| Ok(()));
            updated.expect("values of the right types");
            accumulator
        }
    }

    impl AggregatedRows for TestRows {
        fn function(&self) -> &StateFunction {
            &self.function
        }

        fn update(
            &self,
            accumulator: &mut dyn Accumulator,
            rows: Range<usize>,
            _grow: &dyn Fn(usize) -> Result<()>,
        ) -> Result<()> {
            let (mut columns, passing) = self.arguments(rows)?;
            if let Some(passing) = passing {
                for column in &mut columns {
                    *column = filter(column, &passing)?;
                }
            }
            accumulator.update_batch(&columns)
        }

        fn arguments(&self, rows: Range<usize>) -> Result<(Vec<ArrayRef>, Option<BooleanArray>)> {
            let columns = self.columns.iter();
            let columns = columns.map(|c| c.slice(rows.start, rows.len())).collect();
            let filter = self.filter.as_ref();
            Ok((columns, filter.map(|f| f.slice(rows.start, rows.len()))))
        }

        fn copy(&self, rows: Vec<u32>) -> Result<Box<dyn AggregatedRows>> {
            let rows = UInt32Array::from(rows);
            let filter = self.filter.as_ref().map(|filter| take(filter, &rows, None));
            let filter = filter
                .transpose()?
                .map(|filter| filter.as_boolean().clone());
            let columns = take_arrays(&self.columns, &rows, None)?;
            Ok(Box::new(Self::new(&self.udaf, columns, filter)))
        }
    }

    /// Functions that aggregate ranges together, with the types of their arguments.
    fn functions() -> Vec<(Arc<AggregateUDF>, Vec<DataType>)> {
        let (float, integer) = (DataType::Float64, DataType::Int64);
        let pairs = [
            correlation::corr_udaf(),
            covariance::covar_samp_udaf(),
            covariance::covar_pop_udaf(),
            regr::regr_slope_udaf(),
            regr::regr_intercept_udaf(),
            regr::regr_count_udaf(),
            regr::regr_r2_udaf(),
            regr::regr_avgx_udaf(),
            regr::regr_avgy_udaf(),
            regr::regr_sxx_udaf(),
            regr::regr_syy_udaf(),
            regr::regr_sxy_udaf(),
        ];
        let floats = [
            variance::var_samp_udaf(),
            variance::var_pop_udaf(),
            stddev::stddev_udaf(),
            stddev::stddev_pop_udaf(),
        ];
        let integers = [
            bit_and_or_xor::bit_and_udaf(),
            bit_and_or_xor::bit_or_udaf(),
            bit_and_or_xor::bit_xor_udaf(),
        ];
        let booleans = [bool_and_or::bool_and_udaf(), bool_and_or::bool_or_udaf()];
        let pairs = pairs.map(|f| (f, vec![float.clone(), float.clone()]));
        let floats = floats.map(|f| (f, vec![float.clone()]));
        let integers = integers.map(|f| (f, vec![integer.clone()]));
        let booleans = booleans.map(|f| (f, vec![DataType::Boolean]));
        [&pairs[..], &floats, &integers, &booleans].concat()
    }

    /// Values of a type, some of them NULL and some unusual.
    fn column(data_type: &DataType, rows: usize, random: &mut Random) -> ArrayRef {
        let unusual = random.below(2) == 0;
        let mut values = (0..rows).map(|_| match random.below(40) {
            0..4 => None,
            4 if unusual => Some(f64::NAN),
            5 if unusual => Some(f64::INFINITY),
            6 => Some(-0.0),
            _ => u32::try_from(random.below(1 << 24))
                .ok()
                .map(|v| f64::from(v) / 7.0),
        });
        match data_type {
            DataType::Float64 => {
                let values = values.collect::<Float64Array>();
                Arc::new(values)
            }
            DataType::Int64 => {
                #[expect(clippy::cast_possible_truncation, reason = "any integers will do")]
                let values = values.map(|v| v.map(|v| v as i64));
                Arc::new(values.collect::<Int64Array>())
            }
            _ => Arc::new(
                values
                    .by_ref()
                    .map(|v| v.map(|v| v > 1e6))
                    .collect::<BooleanArray>(),
            ),
        }
    }

    /// With one NaN for all, whose bits follow from the order of operands. Arrow compares the bits of floats.
    fn with_one_nan(array: &ArrayRef) -> ArrayRef {
        match array.data_type() {
            DataType::Float64 => {
                let values = array.as_primitive::<Float64Type>();
                let values: Float64Array =
                    values.unary(|v: f64| if v.is_nan() { f64::NAN } else { v });
                Arc::new(values)
            }
            DataType::Struct(fields) => {
                let columns = array.as_struct().columns().iter().map(with_one_nan);
                let nulls = array.nulls().cloned();
                Arc::new(StructArray::new(fields.clone(), columns.collect(), nulls))
            }
            _ => Arc::clone(array),
        }
    }

    #[test]
    fn ranges_are_aggregated_together_to_the_bits_of_one_by_one() {
        for mut random in runs("aggregated_ranges", &[]) {
            for (udaf, types) in functions() {
                let rows = 100 + random.below(400);
                let columns = types.iter().map(|t| column(t, rows, &mut random)).collect();
                let filter = (random.below(3) > 0).then(|| {
                    let has_nulls = random.below(2) == 0;
                    let passes = (0..rows).map(|_| match random.below(8) {
                        0 if has_nulls => None,
                        1..3 => Some(false),
                        _ => Some(true),
                    });
                    passes.collect::<BooleanArray>()
                });
                let rows_of = TestRows::new(&udaf, columns, filter);
                let name = udaf.name();

                // States of blocks of 10 rows.
                let mut states = rows_of.function.column(0);
                for block in 0..rows / 10 {
                    let state = rows_of.accumulated(&(10 * block..10 * (block + 1))).state();
                    let pushed = states.push(Some(&state.expect("a state")));
                    pushed.expect("the state of the function");
                }
                let states = states.finish().expect("states of the function");

                // Ranges of whole blocks, of rows, of both, and empty ones.
                let (mut read, mut nodes, mut parts) = (vec![], vec![], vec![]);
                let mut after = vec![];
                for _ in 0..40 {
                    let block = random.below(rows / 10);
                    let blocks = block..block + random.below(rows / 10 - block + 1);
                    let mut some = || random.below(3) * random.below(10);
                    let (before, behind) = (some(), some());
                    let before = (10 * block).saturating_sub(before)..10 * block;
                    let behind = 10 * blocks.end..(10 * blocks.end + behind).min(rows);
                    let (first, first_node) = (read.len(), nodes.len());
                    read.extend(before);
                    nodes.extend(blocks);
                    parts.push(RangeParts {
                        before: first..read.len(),
                        states: first_node..nodes.len(),
                        after: 0..0,
                    });
                    after.push(behind);
                }
                for (parts, after) in parts.iter_mut().zip(after) {
                    let first = read.len();
                    read.extend(after);
                    parts.after = first..read.len();
                }
                let numbers = |rows: &[usize]| -> Vec<u32> {
                    let rows = rows
                        .iter()
                        .map(|row| u32::try_from(*row).expect("few rows"));
                    rows.collect()
                };
                let nodes = UInt32Array::from(numbers(&nodes));
                let nodes = take_arrays(states.as_struct().columns(), &nodes, None);
                let nodes = nodes.expect("states");
                let aggregated = |method, output| {
                    let copied = rows_of.copy(numbers(&read)).expect("rows");
                    let copied = CompleteRows::Copied(copied);
                    let ranges =
                        AggregatedRanges::new(copied, nodes.clone(), parts.clone(), method);
                    let aggregated = ranges.aggregate(&output, &|_| Ok(()));
                    with_one_nan(&aggregated.expect("ranges of these rows"))
                };
                let fresh = rows_of.accumulated(&(0..0)).evaluate().expect("a value");
                let value = Output::Value { of_no_rows: fresh };
                for output in [value, Output::State] {
                    let together = aggregated(Method::Together, output.clone());
                    let one_by_one = aggregated(Method::OneByOne, output);
                    assert_eq!(together.len(), 40, "{name}");
                    assert_eq!(&together, &one_by_one, "{name} of {:?}", rows_of.columns);
                }
                let samples = [0..rows / 2, rows / 2..rows];
                let method = Method::choose(&rows_of, &samples).expect("a method");
                assert_eq!(method, Method::Together, "{name}");
            }
        }
    }

    /// A function of somebody else: its groups have sums of squares as states where its accumulators have means.
    #[derive(Debug, PartialEq, Eq, Hash)]
    struct OtherCorrelation(Correlation);

    impl AggregateUDFImpl for OtherCorrelation {
        fn name(&self) -> &'static str {
            "other_corr"
        }

        fn signature(&self) -> &Signature {
            self.0.signature()
        }

        fn return_type(&self, types: &[DataType]) -> Result<DataType> {
            self.0.return_type(types)
        }

        fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
            self.0.accumulator(args)
        }

        fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
            self.0.state_fields(args)
        }

        fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
            self.0.groups_accumulator_supported(args)
        }

        fn create_groups_accumulator(
            &self,
            args: AccumulatorArgs,
        ) -> Result<Box<dyn GroupsAccumulator>> {
            self.0.create_groups_accumulator(args)
        }
    }

    #[test]
    fn functions_whose_groups_have_other_states_are_computed_one_by_one() {
        for mut random in runs("groups_with_other_states", &[]) {
            let udaf = Arc::new(AggregateUDF::from(OtherCorrelation(Correlation::new())));
            let mut column = || column(&DataType::Float64, 100, &mut random);
            let rows = TestRows::new(&udaf, vec![column(), column()], None);
            let method = Method::choose(&rows, &[0..50, 50..100]).expect("a method");
            assert_eq!(method, Method::OneByOne);
            // States without values are alike.
            let nulls = || new_null_array(&DataType::Float64, 100);
            let rows = TestRows::new(&udaf, vec![nulls(), nulls()], None);
            let method = Method::choose(&rows, &[0..50, 50..100]).expect("a method");
            assert_eq!(method, Method::OneByOne);
        }
    }
}
