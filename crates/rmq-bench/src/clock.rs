//! Clocks, and how several measurements become one number.
//!
//! CPU time is for single-threaded work: on a machine that is also loaded by others, wall time says little.

use std::time::{Duration, Instant};

/// Returns the middle one of some measurements, the upper one of an even number.
///
/// # Panics
/// Where there are none, or one is not a number.
pub fn median<T: Copy + PartialOrd>(mut measured: Vec<T>) -> T {
    measured.sort_by(|a, b| a.partial_cmp(b).expect("measurements are numbers"));
    measured[measured.len() / 2]
}

/// The seconds that something takes, measured several times.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timing {
    /// The middle one.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub most: f64,
}

impl Timing {
    /// Summarizes measurements.
    ///
    /// # Panics
    /// Where there are none, or one is not a number.
    pub fn from_seconds(measured: &[f64]) -> Self {
        Self {
            median: median(measured.to_vec()),
            least: measured.iter().copied().fold(f64::INFINITY, f64::min),
            most: measured.iter().copied().fold(0.0, f64::max),
        }
    }

    /// Returns the time of one of `count` equal parts.
    #[must_use]
    pub fn divided_by(self, count: f64) -> Self {
        Self {
            median: self.median / count,
            least: self.least / count,
            most: self.most / count,
        }
    }
}

/// Measures the wall time of `work`: that of `rounds`, after one round that does not count.
///
/// # Errors
/// The first error of `work`.
pub fn measure<E>(rounds: u32, mut work: impl FnMut() -> Result<(), E>) -> Result<Timing, E> {
    work()?;
    let mut times = Vec::new();
    for _ in 0..rounds.max(1) {
        let started = Instant::now();
        work()?;
        times.push(started.elapsed().as_secs_f64());
    }
    Ok(Timing::from_seconds(&times))
}

/// Measures the CPU time that `work` takes on this thread.
pub fn timed(work: impl FnOnce()) -> Duration {
    let start = thread_time();
    work();
    thread_time() - start
}

/// Returns the CPU time that this thread has used so far.
#[must_use]
pub fn thread_time() -> Duration {
    cpu_time(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the CPU time that all threads of this process have used so far.
#[must_use]
pub fn process_time() -> Duration {
    cpu_time(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn cpu_time(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for writes.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(result, 0, "the system has no clock of CPU time");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
