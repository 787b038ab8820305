//! Physical plans with range-minimum queries and range joins as bytes.
