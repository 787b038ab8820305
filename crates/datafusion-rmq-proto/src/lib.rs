//! Physical plans with the range joins and range-minimum queries of [datafusion-rmq](https://docs.rs/datafusion-rmq) as
//! bytes, for engines that execute the parts of a plan in other processes.
//!
//! [`RmqCodec`] is a `PhysicalExtensionCodec` of `datafusion-proto` for the operators and functions of datafusion-rmq.
//! The session that plans sets `rmq.join_mode` to `collected` or `partitioned`, so that range joins state what a part
//! of a plan needs; a join that does not is refused. Sessions that execute plans register datafusion-rmq, too, with the
//! codec's [indexes](RmqCodec::indexes): `with_rmq_sharing`.
//!
//! [`portable`] is for engines whose own codec writes functions as their name.

#![warn(clippy::pedantic)]
#![allow(
    clippy::single_match_else,
    reason = "two arms beside each other show both cases"
)]

mod carrier;
mod codec;
mod convert;
mod envelope;
mod functions;
mod messages;
mod operator;
mod portable;
mod range_join;
mod range_lookup;
mod shared_parts;
mod values;
mod windows;

pub use carrier::CarriedExec;
pub use codec::RmqCodec;
pub use portable::portable;
pub use windows::check_all_windows;
