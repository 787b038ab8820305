//! The rule, compared with each subquery run by itself for each outer row.

mod lateral;
mod naive;
