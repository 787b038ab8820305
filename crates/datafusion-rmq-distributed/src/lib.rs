//! Range joins and range-minimum queries on several machines, with datafusion-distributed.
