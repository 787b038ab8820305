//! The aggregate over the states that a range join's accumulators have after the rows of each range.
//!
//! ```text
//!   SELECT q.id, avg(p.v), stddev(p.v) FROM q JOIN p ON p.k BETWEEN q.a AND q.b GROUP BY q.id
//!
//!   Aggregate: group by q.id, sum(sum(p.v)#1), sum(count(p.v)#2), merge_stddev(stddev(p.v)#3)
//!     RangeJoin: aggs=[sum(p.v), count(p.v), state of stddev(p.v)]
//! ```
//!
//! Several probe rows may be of one group, so that values can't be merged. States can: every accumulator does it for
//! DataFusion's aggregation in two steps.
//!
//! A NULL state is a probe row without a match, in a left join one row of NULLs. The rule runs once more for
//! DISTINCT, before DataFusion makes two aggregates of it.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::compute::filter;
use arrow::datatypes::{DataType, FieldRef};
use datafusion_common::{Result, ScalarValue, internal_err};
use datafusion_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion_expr::utils::AggregateOrderSensitivity;
use datafusion_expr::utils::format_state_name;
use datafusion_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};

use crate::expr::state_function::StateFunction;
use crate::logical_plan::accumulator_call::AccumulatorCall;
use crate::logical_plan::range_join::Unmatched;

/// What the aggregate of another aggregate's states is made of.
#[derive(Debug, Clone)]
pub struct MergedStates {
    /// The call whose states they are.
    pub call: Arc<AccumulatorCall>,
    /// The types of the call's columns.
    pub types: Vec<DataType>,
    /// What the range join does with a probe row without a match.
    pub unmatched: Unmatched,
}

impl MergedStates {
    /// The parts of an aggregate; `None` for another one.
    #[must_use]
    pub fn of(function: &AggregateUDF) -> Option<Self> {
        let udaf = function.inner().downcast_ref::<MergeStatesUdaf>()?;
        Some(Self {
            call: Arc::clone(&udaf.call),
            types: udaf.types.clone(),
            unmatched: udaf.unmatched,
        })
    }

    /// The aggregate.
    ///
    /// # Errors
    /// DataFusion's, if the call does not accept the types.
    pub fn aggregate(self) -> Result<AggregateUDF> {
        let udaf = MergeStatesUdaf::try_new(&self.call, self.types, self.unmatched)?;
        Ok(AggregateUDF::from(udaf))
    }
}

/// The aggregate of another aggregate's states. A NULL state is that of a probe row without a match: no row, or one of
/// NULLs if the join keeps it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct MergeStatesUdaf {
    call: Arc<AccumulatorCall>,
    /// The types of the call's columns.
    types: Vec<DataType>,
    function: PlannedFunction,
    unmatched: Unmatched,
    name: String,
    signature: Signature,
}

/// The function of a call over columns of some types, which tell it apart from others.
#[derive(Debug)]
struct PlannedFunction(Arc<StateFunction>);

impl PartialEq for PlannedFunction {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for PlannedFunction {}

impl Hash for PlannedFunction {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl MergeStatesUdaf {
    /// The field that the call returns.
    fn field(&self) -> FieldRef {
        self.function.0.function.field()
    }

    /// The aggregate of the states of `call`, over columns of these types.
    pub fn try_new(
        call: &Arc<AccumulatorCall>,
        types: Vec<DataType>,
        unmatched: Unmatched,
    ) -> Result<Self> {
        Ok(Self {
            function: PlannedFunction(Arc::new(StateFunction::try_new(call.physical(&types)?)?)),
            call: Arc::clone(call),
            types,
            unmatched,
            name: format!("merge_{}", call.function.name()),
            signature: Signature::any(1, Volatility::Immutable),
        })
    }
}

impl AggregateUDFImpl for MergeStatesUdaf {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(self.field().data_type().clone())
    }

    fn return_field(&self, _arguments: &[FieldRef]) -> Result<FieldRef> {
        let field = self.field().as_ref().clone();
        Ok(Arc::new(field.with_name(self.name())))
    }

    fn is_nullable(&self) -> bool {
        self.field().is_nullable()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.call.function.default_value(data_type)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let fields = self.function.0.function.state_fields()?;
        let fields = fields.into_iter().enumerate().map(|(i, field)| {
            let name = format_state_name(args.name, &i.to_string());
            Arc::new(field.as_ref().clone().with_name(name))
        });
        Ok(fields.collect())
    }

    fn accumulator(&self, _args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let row_of_nulls = match self.unmatched {
            Unmatched::Keep => self.call.row_of_nulls(&self.types)?,
            Unmatched::Drop | Unmatched::Only => None,
        };
        Ok(Box::new(MergingAccumulator {
            function: Arc::clone(&self.function.0),
            inner: self.function.0.function.create_accumulator()?,
            row_of_nulls,
        }))
    }
}

/// An accumulator that is shown states.
#[derive(Debug)]
struct MergingAccumulator {
    function: Arc<StateFunction>,
    inner: Box<dyn Accumulator>,
    /// What it is shown for a NULL state, if anything.
    row_of_nulls: Option<Vec<ArrayRef>>,
}

impl Accumulator for MergingAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let [states] = values else {
            return internal_err!("one column has the states, not {}", values.len());
        };
        let nulls = states.null_count();
        if let Some(row) = &self.row_of_nulls {
            for _ in 0..nulls {
                self.inner.update_batch(row)?;
            }
        }
        let known = match states.nulls() {
            Some(valid) if nulls > 0 => {
                filter(states, &BooleanArray::new(valid.inner().clone(), None))?
            }
            _ => Arc::clone(states),
        };
        self.merge_batch(known.as_struct().columns())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.inner.evaluate()
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.inner.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.function.merge(&mut *self.inner, states)
    }
}
