//! A bar of what is done, and lines above it.

use indicatif::{ProgressBar, ProgressStyle};

/// How far the run is.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub fn new() -> Self {
        let style = ProgressStyle::with_template("{bar:32} {pos}/{len} {elapsed} {wide_msg}");
        Self {
            bar: ProgressBar::new(0)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())),
        }
    }

    /// That many steps will follow, too.
    pub fn expect(&self, steps: usize) {
        self.bar.inc_length(steps as u64);
    }

    /// What is being done now.
    pub fn now(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    /// A step is done.
    pub fn done(&self) {
        self.bar.inc(1);
    }

    /// A line that stays.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
