//! The shell `rmq` as a process: arguments, exit statuses, pipes, signals.

mod arguments;
mod documentation;
mod errors;
mod pipes;
mod process;
mod signals;
