//! Settings of benchmarks, which are environment variables.

use std::fmt::Display;
use std::str::FromStr;

/// Reads an environment variable; `default` where it is not set.
///
/// # Panics
/// Where its value is not a `T`.
pub fn var_or<T: FromStr<Err: Display>>(name: &str, default: T) -> T {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    match text.parse() {
        Ok(value) => value,
        Err(error) => panic!("{name}={text}: {error}"),
    }
}
