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

/// Measures the wall time of `work` in seconds: the median of `rounds`, after one round that does not count.
///
/// # Errors
/// The first error of `work`.
pub fn measure<E>(rounds: u32, mut work: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    work()?;
    let mut times = Vec::new();
    for _ in 0..rounds.max(1) {
        let started = Instant::now();
        work()?;
        times.push(started.elapsed().as_secs_f64());
    }
    Ok(median(times))
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
