//! Range joins and range-minimum queries of [datafusion-rmq](https://docs.rs/datafusion-rmq) on several machines, with
//! [datafusion-distributed](https://docs.rs/datafusion-distributed).
//!
//! Two calls: [`client`] for the session that plans queries, and [`worker`] for each process that executes their parts.
//! The SQL is that of one machine, and so are its answers.

#![warn(clippy::pedantic)]
#![allow(
    clippy::single_match_else,
    reason = "two arms beside each other show both cases"
)]

mod client;
mod divided_files;
mod modes;
mod worker;

pub use client::client;
pub use worker::{serve, session, worker};
