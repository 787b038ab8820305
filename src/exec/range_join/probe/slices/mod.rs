//! Joins with a build side that is larger than memory without writing it to disk: a slice of it is read and built for
//! some rows of the probe side, these are joined, and the next slice takes its place.
//!
//! ```text
//!   probe partition   ├─ rows ─┤├── rows ──┤├─ rows ─┤...    as many rows as reach a slice that fits in its memory
//!   build side          [ slice ]
//!                             [  slice  ]                   each is read by a scan that prunes by its windows
//!                                     [ slice ]
//! ```
//!
//! Each partition of the probe side takes its own rows through its own slices, with its share of the memory, so that
//! none waits for another. A slice is collected as a pruned build side is, and has all rows that its probe rows can
//! match, so they are joined with it alone, in their order. Rows that were read beside it wait for the next slice
//! ([`read_rows`]). It is not spilled: one that does not fit, as keys are
//! distributed otherwise than expected, is read again for half of the probe rows.
//!
//! This suits a probe side that comes in the order of its bounds. Whether it does, the rows that were read ahead tell:
//! the parts of each partition reach different rows. Once slices have read about eight times the rows that there are,
//! or no slice fits, the whole build side is read for the rest, and spilled.

pub(crate) mod read_rows;
pub(crate) mod sliced_build;
pub(crate) mod stream;
