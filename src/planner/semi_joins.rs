//! `SEMI JOIN` and `ANTI JOIN`, as DuckDB writes `LEFT SEMI JOIN` and `LEFT ANTI JOIN`.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    JoinOperator, Select, TableFactor, TableWithJoins, VisitMut, VisitorMut,
};

/// Says LEFT where a semi or anti join does not. Returns whether there is any.
pub(crate) fn name_left_side(sql: &mut impl VisitMut) -> bool {
    let mut naming = Naming { found: false };
    let ControlFlow::Continue(()) = sql.visit(&mut naming);
    naming.found
}

struct Naming {
    found: bool,
}

impl Naming {
    fn name_in(&mut self, from: &mut TableWithJoins) {
        for join in &mut from.joins {
            join.join_operator = match &join.join_operator {
                JoinOperator::Semi(constraint) => JoinOperator::LeftSemi(constraint.clone()),
                JoinOperator::Anti(constraint) => JoinOperator::LeftAnti(constraint.clone()),
                _ => continue,
            };
            self.found = true;
        }
    }
}

impl VisitorMut for Naming {
    type Break = std::convert::Infallible;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Self::Break> {
        for from in &mut select.from {
            self.name_in(from);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<Self::Break> {
        if let TableFactor::NestedJoin {
            table_with_joins, ..
        } = table
        {
            self.name_in(table_with_joins);
        }
        ControlFlow::Continue(())
    }
}
