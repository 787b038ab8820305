//! Aggregates over a join as aggregates over the rows that match each probe row, and what merges these.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, new_null_array};
use arrow::datatypes::{DataType, Schema};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::execution::context::ExecutionProps;
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::first_last::{FirstValue, LastValue};
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::functions_aggregate::sum::{Sum, sum_udaf};
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams, NullTreatment};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{
    AggregateUDF, Cast, Expr, ExprSchemable, ScalarUDF, cast, lit, when,
};
use datafusion::optimizer::OptimizerConfig;
use datafusion::physical_expr::create_physical_expr;

use crate::common::dictionaries::has_few_keys;
use crate::common::ordered_type::{is_ordered, value_type};
use crate::expr::decimal_average::DecimalAverageUdf;
use crate::expr::total_order::TotalOrderUdaf;
use crate::logical_plan::range_join::{AggregateKind, RangeAggregate, Unmatched};
use crate::range_agg::prefix_sums::Sums;
use crate::rewrite::common::infallible::is_infallible;
use crate::rewrite::range_join::condition::{check_repeats, is_of, widens, without_lossless_casts};
use crate::rewrite::range_join::rejection::{Recognised, no};
use rmq_engine::Extreme;

/// The aggregates that a range join must give, collected from expressions.
pub(crate) struct Partials<'a> {
    pub(crate) config: &'a dyn OptimizerConfig,
    pub(crate) probe: &'a DFSchema,
    pub(crate) build: &'a DFSchema,
    pub(crate) key: &'a Expr,
    pub(crate) form: Form,
    pub(crate) found: Vec<RangeAggregate<Expr>>,
}

/// What the aggregates stand over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The rows of a join.
    Joined(Unmatched),
    /// The rows of a correlated subquery.
    Correlated,
}

/// An aggregate, as what is made of the range join's columns.
pub(crate) struct Merged {
    /// The value for one row of the probe side.
    pub(crate) single: Expr,
    /// Aggregates over the range join's rows, each with a name of its own.
    pub(crate) aggregates: Vec<Expr>,
    /// The value for a group of such rows, of the columns of these.
    pub(crate) value: Expr,
}

impl Partials<'_> {
    /// What gives `call` when the rows of a range join are grouped as the joined rows were.
    pub(crate) fn merge(&mut self, call: &AggregateFunction) -> Recognised<Merged> {
        let inner = call.func.inner();
        let params = &call.params;
        for expr in params.args.iter().chain(params.filter.as_deref()) {
            check_repeats(expr)?;
        }
        if params.null_treatment == Some(NullTreatment::IgnoreNulls) {
            return no(format!("{} has IGNORE NULLS", call.func.name()));
        }
        let extreme = if inner.is::<Min>() {
            Some(Extreme::Min)
        } else if inner.is::<Max>() {
            Some(Extreme::Max)
        } else {
            None
        };
        // DISTINCT changes no extreme.
        if params.distinct && extreme.is_none() {
            return no(format!("{} has DISTINCT", call.func.name()));
        }
        if let (Some(_), [argument]) = (extreme, params.args.as_slice())
            && self.form != Form::Correlated
            && is_of(argument, self.probe)
            && params.filter.as_ref().is_none_or(|f| is_of(f, self.probe))
        {
            // Of the probe side's own columns: these rows are all there.
            let merge = Expr::AggregateFunction(call.clone());
            return Ok(self.merged(argument.clone(), merge));
        }
        let ordered = inner.is::<FirstValue>() || inner.is::<LastValue>();
        if !params.order_by.is_empty() && !ordered {
            return no(format!("{} has ORDER BY", call.func.name()));
        }
        match params.args.as_slice() {
            [argument] if extreme.is_some() => self.extreme(call, extreme, argument),
            [argument] if inner.is::<Count>() => self.count(call, argument),
            [argument] if inner.is::<Sum>() => self.sum(call, argument),
            [argument] if inner.is::<Avg>() => self.average(call, argument),
            [argument] if ordered => self.first_or_last(call, argument),
            _ => no(format!(
                "{} is none of the aggregates known",
                call.func.name()
            )),
        }
    }

    fn extreme(
        &mut self,
        call: &AggregateFunction,
        extreme: Option<Extreme>,
        argument: &Expr,
    ) -> Recognised<Merged> {
        let argument = self.filtered(argument, call)?;
        let data_type = argument.get_type(self.build)?;
        let Some(extreme) = extreme.filter(|_| is_ordered(&data_type)) else {
            return no(format!("{argument} is a {data_type}, which has no order"));
        };
        let data_type = value_type(&data_type);
        let udaf = if data_type.is_floating() {
            Arc::new(AggregateUDF::from(TotalOrderUdaf::new(extreme)))
        } else {
            Arc::clone(&call.func)
        };
        let found = self.add(AggregateKind::Extreme(extreme), vec![argument], data_type);
        Ok(self.merged(found.clone(), aggregate(udaf, found)))
    }

    fn count(&mut self, call: &AggregateFunction, argument: &Expr) -> Recognised<Merged> {
        let counts_rows = matches!(argument, Expr::Literal(value, _) if !value.is_null());
        let (count, merge) = if counts_rows && call.params.filter.is_none() {
            let count = self.add(AggregateKind::CountRows, vec![], DataType::Int64);
            let merge = if self.form == Form::Joined(Unmatched::Keep) {
                // The row of NULLs that a left join gives is one, too.
                when(count.clone().eq(lit(0_i64)), lit(1_i64)).otherwise(count.clone())?
            } else {
                count.clone()
            };
            (count, merge)
        } else {
            let argument = self.filtered(argument, call)?;
            self.check_joins(&argument.get_type(self.build)?)?;
            let count = self.add(AggregateKind::Count, vec![argument], DataType::Int64);
            (count.clone(), count)
        };
        let mut merged = self.merged(count, aggregate(sum_udaf(), merge));
        // The sum of no counts. (Not `coalesce`, which DataFusion needs another pass of its optimizer for.)
        let sum = merged.value;
        merged.value = when(sum.clone().is_not_null(), sum).otherwise(lit(0_i64))?;
        Ok(merged)
    }

    fn sum(&mut self, call: &AggregateFunction, argument: &Expr) -> Recognised<Merged> {
        let argument = self.filtered(argument, call)?;
        let data_type = argument.get_type(self.build)?;
        if !Sums::supports(&data_type) {
            return no(format!(
                "a range join has no sum of {argument}, a {data_type}"
            ));
        }
        // Of decimals, DataFusion's sum has more digits than these: so has its sum of these sums, and they wrap alike. Those of
        // floats are rounded; DataFusion rounds again where a group has several.
        let sum = self.add(AggregateKind::Sum, vec![argument], data_type);
        Ok(self.merged(sum.clone(), aggregate(Arc::clone(&call.func), sum)))
    }

    fn average(&mut self, call: &AggregateFunction, argument: &Expr) -> Recognised<Merged> {
        if let Expr::Cast(Cast { expr, field }) = argument
            && field.data_type() == &DataType::Float64
            && expr.get_type(self.build)?.is_integer()
        {
            // The exact sum, divided once. No sum of fewer than 2^32 of them overflows this.
            return self.quotient(call, expr, DataType::Decimal128(20, 0), |sum, count| {
                cast(sum, DataType::Float64) / cast(count, DataType::Float64)
            });
        }
        let data_type = argument.get_type(self.build)?;
        if data_type == DataType::Null {
            // NULLs alone, as in a column of a CSV file without rows. DataFusion plans their average as a Float64.
            return self.quotient(call, argument, DataType::Float64, |sum, count| {
                sum / cast(count, DataType::Float64)
            });
        }
        let average = call.func.return_type(std::slice::from_ref(&data_type))?;
        if matches!(data_type, DataType::Duration(_)) {
            return self.quotient(call, argument, data_type, |sum, count| {
                cast(cast(sum, DataType::Int64) / count, average.clone())
            });
        }
        if data_type == DataType::Float64 {
            return self.quotient(call, argument, data_type, |sum, count| {
                sum / cast(count, DataType::Float64)
            });
        }
        if let Some(sum_type) = DecimalAverageUdf::sum_type(&data_type) {
            let udf = ScalarUDF::from(DecimalAverageUdf::new(average));
            return self.quotient(call, argument, sum_type, |sum, count| {
                udf.call(vec![sum, count])
            });
        }
        no(format!(
            "a range join has no average of {argument}, a {data_type}"
        ))
    }

    /// What `divide` makes of a sum and of how many values that is of, NULL where there are none.
    fn quotient(
        &mut self,
        call: &AggregateFunction,
        argument: &Expr,
        sum_type: DataType,
        divide: impl Fn(Expr, Expr) -> Expr,
    ) -> Recognised<Merged> {
        let argument = if argument.get_type(self.build)? == sum_type {
            argument.clone()
        } else {
            cast(argument.clone(), sum_type.clone())
        };
        let argument = self.filtered(&argument, call)?;
        let sum = self.add(AggregateKind::Sum, vec![argument.clone()], sum_type);
        let count = self.add(AggregateKind::Count, vec![argument], DataType::Int64);
        let divided = |sum: Expr, count: Expr| -> Result<Expr> {
            when(sum.clone().is_not_null(), divide(sum, count)).end()
        };
        let single = divided(sum.clone(), count.clone())?;
        let sums = self.merged(sum.clone(), aggregate(sum_udaf(), sum));
        let counts = self.merged(count.clone(), aggregate(sum_udaf(), count));
        Ok(Merged {
            single,
            aggregates: [sums.aggregates, counts.aggregates].concat(),
            value: divided(sums.value, counts.value)?,
        })
    }

    fn first_or_last(&mut self, call: &AggregateFunction, argument: &Expr) -> Recognised<Merged> {
        let name = call.func.name();
        let [order] = call.params.order_by.as_slice() else {
            return no(format!("{name} is not ordered by one expression"));
        };
        if call.params.filter.is_some() {
            return no(format!("{name} has a filter"));
        }
        check_repeats(&order.expr)?;
        let value = self.checked(argument.clone())?;
        let by = self.checked(order.expr.clone())?;
        let (value_kind, by_type) = (value.get_type(self.build)?, by.get_type(self.build)?);
        self.check_joins(&value_kind)?;
        self.check_joins(&by_type)?;
        let is_first = call.func.inner().is::<FirstValue>();
        // LAST_VALUE is FIRST_VALUE in the opposite order.
        let (ascending, nulls_first) = if is_first {
            (order.asc, order.nulls_first)
        } else {
            (!order.asc, !order.nulls_first)
        };
        // The key may have become another type to be compared. Zeros of both signs are one key, but have an order.
        let by_key = !value_type(&by_type).is_floating()
            && without_lossless_casts(self.key, self.build)?
                == without_lossless_casts(&by, self.build)?
            && widens(&by_type, &self.key.get_type(self.build)?);
        let (found, found_by) = if by_key {
            let function = if ascending {
                AggregateKind::First
            } else {
                AggregateKind::Last
            };
            let found = self.add(function, vec![value], value_kind);
            (found, self.add(function, vec![by], by_type))
        } else {
            if !is_ordered(&by_type) {
                return no(format!("{by} is a {by_type}, which has no order"));
            }
            let extreme = if ascending {
                Extreme::Min
            } else {
                Extreme::Max
            };
            let function = AggregateKind::AtExtreme {
                extreme,
                nulls_first,
            };
            let found = self.add(function, vec![value, by.clone()], value_kind);
            (found, self.add(function, vec![by.clone(), by], by_type))
        };
        let mut merge = call.clone();
        merge.params.args = vec![found.clone()];
        merge.params.order_by[0].expr = found_by;
        Ok(self.merged(found, Expr::AggregateFunction(merge)))
    }

    /// An aggregate's argument, NULL where its filter does not hold.
    fn filtered(&self, argument: &Expr, call: &AggregateFunction) -> Recognised<Expr> {
        let argument = match &call.params.filter {
            Some(filter) => when(filter.as_ref().clone(), argument.clone()).end()?,
            None => argument.clone(),
        };
        self.checked(argument)
    }

    /// That the values of many batches can be put into one array: the keys of a small dictionary may not suffice for that. Nobody
    /// else answers a correlated subquery, so it may try.
    fn check_joins(&self, data_type: &DataType) -> Recognised<()> {
        match data_type {
            DataType::RunEndEncoded(..) | DataType::Union(..) => no(format!(
                "a {data_type} has no NULL for rows that match nothing"
            )),
            few if self.form != Form::Correlated && has_few_keys(few) => {
                no(format!("a {data_type} has few keys"))
            }
            _ => Ok(()),
        }
    }

    /// An expression over the build side that is NULL for the row of NULLs of a left join.
    fn checked(&self, expr: Expr) -> Recognised<Expr> {
        if !is_of(&expr, self.build) {
            return no(format!("{expr} is not of the columns of one side"));
        }
        if self.form != Form::Correlated && !is_infallible(&expr, self.build)? {
            return no(format!(
                "{expr} may end in an error for rows that match nothing"
            ));
        }
        if self.form == Form::Joined(Unmatched::Keep) && !is_null_without_match(&expr, self.build)?
        {
            return no(format!(
                "{expr} has a value where a left join matches nothing"
            ));
        }
        Ok(expr)
    }

    /// The column of an aggregate over the rows that match, one for all that ask the same.
    fn add(&mut self, function: AggregateKind, arguments: Vec<Expr>, data_type: DataType) -> Expr {
        let known = self
            .found
            .iter()
            .find(|a| a.function == function && a.arguments == arguments);
        let output = match known {
            Some(known) => known.output.clone(),
            None => {
                let output = unused_name(self.config, self.probe);
                self.found.push(RangeAggregate {
                    function,
                    arguments,
                    output: output.clone(),
                    data_type,
                });
                output
            }
        };
        Expr::Column(Column::new_unqualified(output))
    }

    /// Names an aggregate over rows of the probe side; its column is the value.
    fn merged(&self, single: Expr, aggregate: Expr) -> Merged {
        let name = unused_name(self.config, self.probe);
        Merged {
            single,
            aggregates: vec![aggregate.alias(&name)],
            value: Expr::Column(Column::new_unqualified(name)),
        }
    }
}

/// A name that no column of the schema has.
pub(crate) fn unused_name(config: &dyn OptimizerConfig, schema: &DFSchema) -> String {
    loop {
        let name = config.alias_generator().next("__rmq");
        if !schema.has_column_with_unqualified_name(&name) {
            return name;
        }
    }
}

fn aggregate(udaf: Arc<AggregateUDF>, argument: Expr) -> Expr {
    Expr::AggregateFunction(AggregateFunction {
        func: udaf,
        params: AggregateFunctionParams {
            args: vec![argument],
            distinct: false,
            filter: None,
            order_by: vec![],
            null_treatment: None,
        },
    })
}

/// Whether an expression is NULL for a row of NULLs.
fn is_null_without_match(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    if matches!(expr, Expr::Column(_)) {
        return Ok(true);
    }
    let fields = schema.fields().iter();
    let nullable: Vec<_> = fields
        .map(|f| Arc::new(f.as_ref().clone().with_nullable(true)))
        .collect();
    let columns = nullable
        .iter()
        .map(|f| new_null_array(f.data_type(), 1))
        .collect();
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let arrow = Arc::new(Schema::new(nullable.clone()));
    let batch = RecordBatch::try_new_with_options(arrow, columns, &options)?;
    let qualified = schema.iter().zip(nullable);
    let qualified = qualified.map(|((qualifier, _), field)| (qualifier.cloned(), field));
    let schema = DFSchema::new_with_metadata(qualified.collect(), schema.metadata().clone())?;
    let physical = create_physical_expr(
        expr,
        &schema,
        &ExecutionProps::new(),
        &PhysicalPlanningContext::default(),
    )?;
    let value = physical.evaluate(&batch)?.into_array(1)?;
    Ok(value.logical_null_count() == 1)
}
