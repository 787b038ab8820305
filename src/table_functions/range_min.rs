//! The table functions `range_min` and `range_max`.
//!
//! `SELECT * FROM range_min('prices.close', 'windows', 'l', 'r')` has every column of `windows`, the extreme `min` and
//! its position `argmin`. It is a view that calls the scalar functions over a scan of `windows`.

use std::sync::Arc;

use datafusion::catalog::{
    TableFunctionArgs, TableFunctionImpl, TableProvider, default_table_source::DefaultTableSource,
};
use datafusion::common::{Column, DFSchema, Result, TableReference, field_not_found, plan_err};
use datafusion::datasource::ViewTable;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder, ScalarUDF, lit};

use datafusion_rmq_logical::common::column_ref::Names;
use datafusion_rmq_logical::expr::range_udf::{RangeUdf, column_text};
use rmq_arrow::common::range_function::{RangeFunction, RangeResult};
use rmq_engine::Extreme;

/// A description of the four arguments for error messages.
const ARGUMENTS: &str = "a column 'table.column', a table of windows, and the names of its columns with the first and the last position";

/// `range_min` or `range_max` as a table function.
#[derive(Debug)]
pub struct RangeTableFunction {
    extreme: Extreme,
    names: Names,
}

impl RangeTableFunction {
    pub(crate) fn new(extreme: Extreme, names: Names) -> Self {
        Self { extreme, names }
    }

    /// The name under which it is registered.
    pub fn name(&self) -> &'static str {
        self.function(RangeResult::Value).range_name()
    }

    fn function(&self, result: RangeResult) -> RangeFunction {
        RangeFunction::extreme(self.extreme, result)
    }

    /// The arguments as texts.
    fn texts<'a>(&self, arguments: &'a [Expr]) -> Result<[&'a str; 4]> {
        let name = self.name();
        let texts = arguments.iter().enumerate().map(|(i, argument)| match argument {
            Expr::Literal(literal, _) => column_text(name, literal),
            other => plan_err!(
                "{name}: argument {} of the table function must be a string literal, not {other}; for bounds that are expressions \
                 use the scalar function {name}('table.column', l, r)",
                i + 1
            ),
        });
        let texts = texts.collect::<Result<Vec<_>>>()?;
        texts.try_into().or_else(|texts: Vec<_>| {
            plan_err!(
                "the table function {name} takes 4 arguments ({ARGUMENTS}), but {} were given",
                texts.len()
            )
        })
    }
}

impl TableFunctionImpl for RangeTableFunction {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let name = self.name();
        let names = self.names.with_config(args.session().config_options());
        let [column, windows, left, right] = self.texts(args.exprs())?;
        let table = names.parse_table(windows);
        let provider = names.table(name, &table)?;
        let windows = TableReference::bare(table.table);
        let schema = DFSchema::try_from_qualified_schema(windows.clone(), &provider.schema())?;

        let bound = |text: &str| {
            // The exact text, or an identifier by SQL's rules, either unqualified or qualified by the table.
            let parsed = names.parse_column(text);
            let here = parsed
                .relation
                .as_ref()
                .is_none_or(|r| r.table() == windows.table());
            let candidates = [Some(text), here.then_some(parsed.name.as_str())];
            let found = candidates
                .into_iter()
                .flatten()
                .map(|name| Column::new(Some(windows.clone()), name))
                .find(|c| schema.has_column(c));
            found.map(Expr::Column).ok_or_else(|| {
                field_not_found(Some(windows.clone()), text, &schema)
                    .context(format!("{name}: unknown column of bounds '{text}'"))
            })
        };
        let (left, right) = (bound(left)?, bound(right)?);
        let results =
            [RangeResult::Value, RangeResult::Position].map(|result| self.function(result));
        let mut columns: Vec<Expr> = schema.columns().into_iter().map(Expr::Column).collect();
        for function in results {
            let result = function.range_name().trim_start_matches("range_");
            if provider.schema().field_with_name(result).is_ok() {
                return plan_err!(
                    "{name}: the table '{windows}' has a column '{result}' already, the name of a result; rename it in a view or \
                     use the scalar function"
                );
            }
            let udf = ScalarUDF::from(RangeUdf::new(function, names.clone()));
            let call = udf.call(vec![lit(column), left.clone(), right.clone()]);
            columns.push(call.alias(result));
        }
        let source = Arc::new(DefaultTableSource::new(provider));
        let plan = LogicalPlanBuilder::scan(windows, source, None)?
            .project(columns)?
            .build()?;
        Ok(Arc::new(ViewTable::new(plan, None)))
    }
}
