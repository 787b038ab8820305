//! Range-minimum queries on devices: the layout and build of an index, and batches of queries.
//!
//! A build uploads the column slice by slice; a kernel makes the two lowest levels of each slice as soon as it is in
//! place.

#[doc(hidden)]
pub mod answer;
#[doc(hidden)]
pub mod build;
#[doc(hidden)]
pub mod clip_bounds;
#[doc(hidden)]
pub mod crossing;
#[doc(hidden)]
pub mod index;
#[doc(hidden)]
pub mod layout;
#[doc(hidden)]
pub mod shape;
#[doc(hidden)]
pub mod validity;
