//! What the conditions of a query say, for rules of logical and of physical plans.
//!
//! `condition` recognises a comparison with a bound (of physical expressions by `physical_operand`); `difference`,
//! `extremes`, `prefixes` and `alternatives` do in other words. `null_safe_keys` makes equality keys of IS NOT DISTINCT
//! FROM, `lossless_casts` tells which casts keep values, `infallible` which expressions have a value for all rows.
//! `rejection` is why a rule leaves a plan unchanged, and `written` shows conditions as the query writes them.

pub(crate) mod alternatives;
pub mod condition;
pub(crate) mod difference;
pub(crate) mod extremes;
pub mod infallible;
pub mod lossless_casts;
pub mod null_safe_keys;
pub(crate) mod physical_operand;
pub(crate) mod prefixes;
pub mod rejection;
pub mod written;
