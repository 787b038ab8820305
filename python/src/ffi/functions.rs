//! The functions of this extension in the owner's session.
//!
//! Range functions and table functions name tables of the owner by texts, from which their types follow. So the owner
//! is asked for these tables while it plans. Calls are planned by `OwnerPlanner`, as those of all other functions.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::catalog::{TableFunction, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::execution::SessionState;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::{
    AggregateUDF, ColumnarValue, Expr, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, WindowUDF,
};
use datafusion_rmq::RangeFunction;

use crate::ffi::lending::Lending;
use crate::ffi::options::with_options;

/// Functions of this extension that `DataFusion` does not have, by name.
#[derive(Debug, Clone)]
pub struct OwnFunctions {
    pub scalars: HashMap<String, Arc<ScalarUDF>>,
    pub aggregates: HashMap<String, Arc<AggregateUDF>>,
    pub windows: HashMap<String, Arc<WindowUDF>>,
    pub tables: HashMap<String, Arc<TableFunction>>,
}

impl OwnFunctions {
    pub fn of(state: &SessionState) -> Self {
        let known = SessionStateBuilder::new_with_default_features().build();
        let is_range = |name: &str| RangeFunction::ALL.iter().any(|f| f.range_name() == name);
        // A planner of SQL expressions, which the owner does not have, makes others of these.
        let is_planned = |name: &str| matches!(name, "first" | "last");
        let scalars = state.scalar_functions().clone().into_iter();
        let aggregates = state.aggregate_functions().clone().into_iter();
        let windows = state.window_functions().clone().into_iter();
        let tables = state.table_functions().clone().into_iter();
        Self {
            scalars: scalars.filter(|(name, _)| is_range(name)).collect(),
            aggregates: aggregates
                .filter(|(name, _)| !known.aggregate_functions().contains_key(name))
                .filter(|(name, _)| !is_planned(name))
                .collect(),
            windows: windows
                .filter(|(name, _)| !known.window_functions().contains_key(name))
                .collect(),
            tables: tables
                .filter(|(name, _)| !known.table_functions().contains_key(name))
                .collect(),
        }
    }

    /// Whether a plan calls any of them.
    pub fn are_called_in(&self, plan: &LogicalPlan) -> Result<bool> {
        let mut found = false;
        each_expr(plan, &mut |expr| {
            found |= match expr {
                Expr::ScalarFunction(call) => self.scalars.contains_key(call.name()),
                Expr::AggregateFunction(call) => self.aggregates.contains_key(call.func.name()),
                Expr::WindowFunction(call) => self.windows.contains_key(call.fun.name()),
                _ => false,
            };
        })?;
        Ok(found)
    }
}

/// A statement that names the columns of the range functions of a plan, unless there are none.
pub fn range_calls(plan: &LogicalPlan) -> Result<Option<String>> {
    let mut calls = vec![];
    each_expr(plan, &mut |expr| {
        if let Expr::ScalarFunction(call) = expr
            && RangeFunction::ALL
                .iter()
                .any(|f| f.range_name() == call.name())
            && let Some(Expr::Literal(column, _)) = call.args.first()
            && let Some(Some(column)) = column.try_as_str()
        {
            calls.push(format!("{}({})", call.name(), quoted(column)));
        }
    })?;
    Ok((!calls.is_empty()).then(|| format!("SELECT {}", calls.join(", "))))
}

/// The plan with the session's range functions in place of the lent ones, which another session may have lent.
pub fn with_session_functions(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    let plan = plan.transform_down_with_subqueries(|node| {
        node.map_expressions(|expr| {
            expr.transform(|expr| match expr {
                Expr::ScalarFunction(mut call) if call.func.inner().is::<LentRangeFunction>() => {
                    if let Some(function) = state.scalar_functions().get(call.name()) {
                        call.func = Arc::clone(function);
                    }
                    Ok(Transformed::yes(Expr::ScalarFunction(call)))
                }
                expr => Ok(Transformed::no(expr)),
            })
        })
    })?;
    Ok(plan.data)
}

fn each_expr(plan: &LogicalPlan, visit: &mut impl FnMut(&Expr)) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                visit(expr);
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(())
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A range function in the owner's session.
pub struct LentRangeFunction {
    function: Arc<ScalarUDF>,
    lending: Lending,
}

impl LentRangeFunction {
    pub fn new(function: Arc<ScalarUDF>, lending: Lending) -> Self {
        Self { function, lending }
    }
}

impl std::fmt::Debug for LentRangeFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.function.fmt(f)
    }
}

impl PartialEq for LentRangeFunction {
    fn eq(&self, other: &Self) -> bool {
        self.function == other.function
    }
}

impl Eq for LentRangeFunction {}

impl Hash for LentRangeFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.hash(state);
    }
}

impl ScalarUDFImpl for LentRangeFunction {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn signature(&self) -> &Signature {
        self.function.signature()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.function.coerce_types(types)
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("the type of {} follows from a column", self.name())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let column = args.scalar_arguments.first().copied().flatten();
        let Some(Some(column)) = column.and_then(ScalarValue::try_as_str) else {
            return self.function.return_field_from_args(args);
        };
        let statement = format!("SELECT {}({})", self.name(), quoted(column));
        let frames = self.lending.frames(&statement)?;
        self.lending
            .with_frames(&frames, || self.function.return_field_from_args(args))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        exec_err!(
            "{} was not planned by the extension of the session, whose place another query planner has taken",
            self.name()
        )
    }
}

/// A table function in the owner's session.
pub struct LentTableFunction {
    function: Arc<TableFunction>,
    lending: Lending,
}

impl LentTableFunction {
    pub fn new(function: Arc<TableFunction>, lending: Lending) -> Self {
        Self { function, lending }
    }
}

impl std::fmt::Debug for LentTableFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.function.name())
    }
}

impl TableFunctionImpl for LentTableFunction {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let texts = args.exprs().iter().map(|expr| match expr {
            Expr::Literal(value, _) if value.try_as_str().flatten().is_some() => {
                quoted(value.try_as_str().flatten().unwrap_or_default())
            }
            _ => "NULL".to_string(),
        });
        let texts = texts.collect::<Vec<_>>().join(", ");
        let statement = format!("SELECT * FROM {}({texts})", self.function.name());
        let state = self.lending.shared().ctx.state();
        let state = with_options(state, args.session().config())?;
        let exprs = args.exprs();
        let frames = self.lending.frames(&statement)?;
        self.lending.with_frames(&frames, || {
            let args = TableFunctionArgs::new(exprs, &state);
            self.function.create_table_provider_with_args(args)
        })
    }
}
