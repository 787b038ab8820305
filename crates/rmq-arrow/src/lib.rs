//! Ranges of Arrow columns, for datafusion-rmq: what its operators compute with, below plans and streams.
//!
//! - [`index`]: a column as order-preserving keys, and indexes of these: the smallest or largest value of a range of
//!   rows, its position, and order statistics.
//! - [`sorted`]: rows sorted by groups of equal keys and by a range key, in which windows and nearest rows are
//!   searched.
//! - [`range_agg`]: counts, sums, medians and other aggregates of ranges of sorted rows.
//! - [`common`]: ranges of rows, threads, sizes of arrays, types that have an order.
//!
//! It depends on Arrow, on DataFusion's errors and memory reservations, and on the engines of [`rmq_engine`]; not on
//! plans, SQL or tokio. So it is compiled beside the larger part of DataFusion. Its items are public for
//! datafusion-rmq and change with it: they are no stable interface.

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
    clippy::len_without_is_empty,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "public for datafusion-rmq alone"
)]

pub mod common;
pub mod index;
pub mod range_agg;
pub mod sorted;
