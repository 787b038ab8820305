//! Errors as the shell shows them, and the exit status that they give.

use std::any::Any;
use std::io::{self, Write};
use std::panic;

use datafusion::arrow::error::ArrowError;
use datafusion::common::DataFusionError;

/// The exit status of an error.
pub const FAILURE: u8 = 1;

/// The exit status where standard output was closed before all was written: that of a process which SIGPIPE ends.
pub const CLOSED_STDOUT: u8 = 128 + 13;

/// Shows an error. There may be nobody who reads it.
pub fn report(error: &DataFusionError) {
    let _ = writeln!(io::stderr(), "Error: {error}");
}

/// Whether this error means that nobody reads standard output any more, which is no error to report.
pub fn is_closed_stdout(error: &DataFusionError) -> bool {
    // Errors of a network, which have this kind too, come as other variants.
    let error = match error {
        DataFusionError::Context(_, error) => return is_closed_stdout(error),
        DataFusionError::IoError(error) => error,
        DataFusionError::ArrowError(error, _) => match &**error {
            ArrowError::IoError(_, error) => error,
            ArrowError::CsvError(text) => {
                return *text == closed_pipe();
            }
            _ => return false,
        },
        _ => return false,
    };
    error.kind() == io::ErrorKind::BrokenPipe
}

/// What an error of this kind says.
fn closed_pipe() -> String {
    const EPIPE: i32 = 32;
    io::Error::from_raw_os_error(EPIPE).to_string()
}

/// `println!`, by which DataFusion's shell answers backslash commands, panics where nobody reads standard output any more.
/// Such a panic is not shown.
pub fn hide_closed_stdout() {
    let show = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !is_closed_stdout_panic(info.payload()) {
            show(info);
        }
    }));
}

pub fn is_closed_stdout_panic(payload: &(dyn Any + Send)) -> bool {
    payload.downcast_ref::<String>().is_some_and(|text| {
        text.starts_with("failed printing to stdout") && text.ends_with(&closed_pipe())
    })
}
