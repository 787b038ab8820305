//! TODO

pub(crate) mod added_columns;
pub(crate) mod blocking;
pub(crate) mod device_batcher;
pub(crate) mod engine_choice;
pub(crate) mod once_per_run;
