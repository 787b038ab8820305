//! What the arguments of aggregates must be like to be evaluated for all rows of the build side, instead of for joined
//! rows.

use arrow::datatypes::DataType;
use datafusion_common::{DFSchema, Result};
use datafusion_expr::expr::AggregateFunction;
use datafusion_expr::{Expr, when};

use crate::common::sql_text::sql_text;
use crate::conditions::infallible::is_infallible;
use crate::conditions::rejection::{Match, reject};
use crate::expr::late_error::value_or_null;
use crate::logical_plan::range_join::Unmatched;
use crate::rules::aggregate_decomposition::{AggregateDecomposition, AggregateInput};
use crate::rules::common::constant::value_of_nulls;
use crate::rules::condition_parts::is_of;
use rmq_arrow::common::dictionaries::has_few_keys;

impl AggregateDecomposition<'_> {
    /// The aggregate's argument, NULL if its filter does not hold.
    pub fn filtered(&self, argument: &Expr, call: &AggregateFunction) -> Match<Expr> {
        let argument = match &call.params.filter {
            Some(filter) => when(filter.as_ref().clone(), argument.clone()).end()?,
            None => argument.clone(),
        };
        self.checked(argument)
    }

    /// Rejects types whose values of many batches may not fit one array, such as a dictionary with a narrow key type.
    /// DataFusion cannot run a correlated subquery over a range at all, so for that the attempt is made.
    pub fn check_joins(&self, data_type: &DataType) -> Match<()> {
        match data_type {
            DataType::RunEndEncoded(..) | DataType::Union(..) => reject(format!(
                "a {data_type} has no NULL for rows that match nothing"
            )),
            narrow if self.input != AggregateInput::Subquery && has_few_keys(narrow) => {
                reject(format!("a {data_type} has few keys"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that an expression is over the build side only, and is NULL for a probe row that a left join keeps
    /// without a match. Returns it so that it does not fail for rows that match nothing.
    pub fn checked(&self, expr: Expr) -> Match<Expr> {
        if !is_of(&expr, self.build) {
            return reject(of_both_sides(&expr));
        }
        self.check_unmatched(&expr)?;
        self.with_late_errors(expr)
    }

    /// Rejects an expression over the build side that is not NULL for a probe row which a left join keeps without a
    /// match: that row, too, would count.
    pub fn check_unmatched(&self, expr: &Expr) -> Match<()> {
        if self.input == AggregateInput::Join(Unmatched::Keep)
            && !is_null_without_match(expr, self.build)?
        {
            return reject(format!(
                "{} has a value where a left join matches nothing",
                sql_text(expr)
            ));
        }
        Ok(())
    }

    /// Rejects an aggregate over columns that the build side does not have.
    pub fn check_sides(&self, call: &AggregateFunction) -> Match<()> {
        let params = &call.params;
        let order = params.order_by.iter().map(|sort| &sort.expr);
        let exprs = params.args.iter().chain(params.filter.as_deref());
        for expr in exprs.chain(order) {
            let mut columns = expr.column_refs().into_iter();
            if !columns.all(|column| self.build.has_column(column)) {
                return reject(of_both_sides(expr));
            }
        }
        Ok(())
    }

    /// Returns an expression over the build side so that it does not fail for rows that match nothing.
    pub fn with_late_errors(&self, expr: Expr) -> Match<Expr> {
        if is_infallible(&expr, self.build)? {
            return Ok(expr);
        }
        match value_or_null(&expr, self.build) {
            // DataFusion has no plan for the subquery, so it is evaluated for all rows.
            Err(_) if self.input == AggregateInput::Subquery => Ok(expr),
            value => Ok(value?),
        }
    }
}

fn of_both_sides(expr: &Expr) -> String {
    format!("{} is not of the columns of one side", sql_text(expr))
}

/// Whether an expression is NULL if all columns are.
pub fn is_null_without_match(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    Ok(matches!(expr, Expr::Column(_)) || value_of_nulls(expr, schema)?.is_null())
}
