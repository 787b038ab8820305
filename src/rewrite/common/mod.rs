//! What several rules share: expressions that are evaluated for some rows only, expressions that cannot fail, lossless casts, casts in
//! comparisons that a conversion of the bound replaces, calls of range functions, columns of outer queries, and column names. Nothing here knows a rule.

pub(crate) mod conditional;
pub(crate) mod exact_bounds;
pub(crate) mod infallible;
pub(crate) mod lossless_casts;
pub(crate) mod names;
pub(crate) mod outer_columns;
pub(crate) mod range_functions;
