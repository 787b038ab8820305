//! The table functions, one a file: `range_min`/`range_max` and `range_join` plan a query over their arguments,
//! `rmq_indexes` and `rmq_devices` show what the session has cached and the GPUs it can use.

pub(crate) mod range_join;
pub(crate) mod range_min;
pub(crate) mod rmq_devices;
pub(crate) mod rmq_indexes;
