//! `TABLESAMPLE` is refused: DataFusion 55 drops it while it plans a statement, and returns all rows.

use std::ops::ControlFlow;

use datafusion::common::{Result, plan_err};
use datafusion::sql::sqlparser::ast::{TableFactor, TableSampleKind, Visit, Visitor};

/// Checks that no table is sampled.
///
/// # Errors
/// A planning error that says what to write instead.
pub(crate) fn check_samples(sql: &impl Visit) -> Result<()> {
    match sql.visit(&mut Samples) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(clause) => plan_err!(
            "there is no {clause}, which would return all rows: for about half of them write WHERE random() < 0.5, for 100 of them \
             ORDER BY random() LIMIT 100"
        ),
    }
}

struct Samples;

impl Visitor for Samples {
    /// The clause.
    type Break = String;

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<Self::Break> {
        let (TableFactor::Table { sample, .. } | TableFactor::Derived { sample, .. }) = table
        else {
            return ControlFlow::Continue(());
        };
        match sample {
            Some(
                TableSampleKind::BeforeTableAlias(sample)
                | TableSampleKind::AfterTableAlias(sample),
            ) => ControlFlow::Break(sample.to_string().trim().to_string()),
            None => ControlFlow::Continue(()),
        }
    }
}
