//! What several rules share: their frame, parts of plans, expressions that are evaluated for some rows only, constants,
//! conditions that exclude a NULL, aggregates that skip one, calls of range functions, columns of outer queries, rows
//! that are unique, and column names. Nothing here knows a rule.

pub(crate) mod conditional;
pub(crate) mod constant;
pub(crate) mod excludes_null;
pub mod max_rows;
pub(crate) mod names;
pub mod outer_columns;
pub(crate) mod plain_sql_rule;
pub mod plans;
pub(crate) mod skips_nulls;
pub mod unique_rows;
