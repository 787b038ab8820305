//! The logical half of datafusion-rmq: SQL functions, plan nodes, and the rules that turn SQL into them.
//!
//! - [`expr`]: scalar, window and aggregate functions.
//! - [`logical_plan`]: the nodes that rules make and that datafusion-rmq plans.
//! - [`conditions`]: what a condition says of a range, for rules of logical and of physical plans.
//! - [`rules`]: analyzer and optimizer rules, one shape of SQL a file.
//! - [`common`]: options, names, SQL text.
//!
//! It depends on parts of DataFusion, not on its file formats and its core, so that it is compiled beside these. Its
//! items are public for datafusion-rmq and change with it: they are no stable interface.

#![warn(clippy::pedantic)]
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "its readers have the source"
)]
#![allow(
    clippy::single_match_else,
    reason = "two arms beside each other show both cases"
)]
#![allow(
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    clippy::return_self_not_must_use,
    reason = "public for datafusion-rmq alone"
)]

pub mod common;
pub mod conditions;
pub mod expr;
pub mod logical_plan;
pub mod rules;
