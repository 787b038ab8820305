//! A progress bar, and lines above it.

use indicatif::{ProgressBar, ProgressStyle};

/// The progress of a run.
pub struct Progress {
    bar: ProgressBar,
}

impl Default for Progress {
    fn default() -> Self {
        let style = ProgressStyle::with_template(
            "{bar:32} {pos} of {len} in {elapsed}, {eta} left: {wide_msg}",
        );
        Self {
            bar: ProgressBar::new(0)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())),
        }
    }
}

impl Progress {
    /// Adds steps to those that are to be done.
    pub fn expect(&self, steps: usize) {
        self.bar.inc_length(steps as u64);
    }

    /// Shows what is being done now.
    pub fn now(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    /// Counts a step as done.
    pub fn done(&self) {
        self.bar.inc(1);
    }

    /// Returns the number of steps that are done.
    pub fn steps(&self) -> usize {
        self.bar.position() as usize
    }

    /// Counts steps as done until there are this many.
    pub fn skip_to(&self, steps: usize) {
        self.bar.set_position(steps as u64);
    }

    /// Counts steps as done that are left out.
    pub fn skip(&self, steps: usize) {
        self.bar.inc(steps as u64);
    }

    /// Prints a line above the bar.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
