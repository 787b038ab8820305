//! What several rules share: their frame, parts of plans, expressions that are evaluated for some rows only, constants,
//! conditions that exclude a NULL, aggregates that skip one, calls of range functions, columns of outer queries, and
//! column names. Nothing here knows a rule.

pub mod conditional;
pub mod constant;
pub mod excludes_null;
pub mod max_rows;
pub mod names;
pub mod outer_columns;
pub mod plain_sql_rule;
pub mod plans;
pub mod skips_nulls;
