mod engine;
#[cfg(feature = "sql")]
mod sql_files;
