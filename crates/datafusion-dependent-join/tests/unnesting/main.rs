//! The rules, compared with each subquery run by itself for each outer row.

mod expressions;
mod generator;
mod lateral;
mod naive;
mod outer_rows;
