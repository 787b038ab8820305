//! Errors as the shell reports them, and their exit statuses.

use std::any::Any;
use std::io::{self, Write};
use std::panic;

use datafusion::arrow::error::ArrowError;
use datafusion::common::{DataFusionError, exec_datafusion_err};
use datafusion_rmq::parts::without_rule_names;

/// The exit status of an error.
pub const FAILURE: u8 = 1;

/// The exit status when standard output is closed before everything is written: that of a process killed by SIGPIPE.
pub const CLOSED_STDOUT: u8 = 128 + 13;

/// Prints an error. A closed standard error is ignored.
pub fn report(error: &DataFusionError) {
    let text = without_rule_names(&error.to_string());
    let _ = writeln!(io::stderr(), "Error: {}", shown(&text));
}

/// The text of an error; of the arguments of a function what the function says of them, without what `DataFusion` says
/// around it.
fn shown(error: &str) -> String {
    let said = error.split_once("user-defined coercion failed with: ");
    let said = said.and_then(|(before, rest)| {
        let (said, _) = rest.split_once(" No function matches the given name")?;
        let line = before.rfind('\n').map_or(0, |end| end + 1);
        Some(format!("{}{said}", &before[..line]))
    });
    said.unwrap_or_else(|| error.to_string())
}

/// A panic while a statement ran, as its error. That of a closed standard output goes on.
pub fn of_panic(panic: Box<dyn Any + Send>) -> DataFusionError {
    if is_closed_stdout_panic(&*panic) {
        panic::resume_unwind(panic);
    }
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("it says no more");
    exec_datafusion_err!("the statement failed in a way that its program does not expect: {text}")
}

/// Whether the error is a closed standard output, which is not reported.
pub fn is_closed_stdout(error: &DataFusionError) -> bool {
    // Network errors, which may have this kind too, are other variants.
    let error = match error {
        DataFusionError::Context(_, error) => return is_closed_stdout(error),
        DataFusionError::IoError(error) => error,
        DataFusionError::ArrowError(error, _) => match &**error {
            ArrowError::IoError(_, error) => error,
            ArrowError::CsvError(text) => {
                return *text == closed_pipe_message();
            }
            _ => return false,
        },
        _ => return false,
    };
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Returns the message of a write to a closed pipe.
fn closed_pipe_message() -> String {
    const EPIPE: i32 = 32;
    io::Error::from_raw_os_error(EPIPE).to_string()
}

/// Hides the panic of `println!` on a closed standard output. DataFusion's shell prints the results of backslash
/// commands with it.
pub fn hide_closed_stdout() {
    let show = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !is_closed_stdout_panic(info.payload()) {
            show(info);
        }
    }));
}

/// Whether a panic is that of `println!` on a closed standard output.
pub fn is_closed_stdout_panic(payload: &(dyn Any + Send)) -> bool {
    payload.downcast_ref::<String>().is_some_and(|text| {
        text.starts_with("failed printing to stdout") && text.ends_with(&closed_pipe_message())
    })
}
