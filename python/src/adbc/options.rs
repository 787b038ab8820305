//! Values of options.

use adbc_core::error::{Error, Result, Status};
use adbc_core::options::OptionValue;

use super::errors::error;

/// The error of an option that is not there, or not of the type that is asked for.
pub fn unknown(key: &impl AsRef<str>) -> Error {
    let text = format!("there is no option {} of this type", key.as_ref());
    error(Status::NotFound, text)
}

/// The value of an option as text.
pub fn text(name: &str, value: OptionValue) -> Result<String> {
    match value {
        OptionValue::String(text) => Ok(text),
        OptionValue::Int(number) => Ok(number.to_string()),
        OptionValue::Double(number) => Ok(number.to_string()),
        _ => {
            let text = format!("{name}: a text or number is needed");
            Err(error(Status::InvalidArguments, text))
        }
    }
}
