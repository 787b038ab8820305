//! How measurements become one number.

use std::time::{Duration, Instant};

/// The middle one. There is at least one.
pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Seconds that `work` takes: the median of `rounds`, after one that does not count.
pub fn measure<E>(rounds: u32, mut work: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    work()?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        let started = Instant::now();
        work()?;
        times.push(seconds(started.elapsed()));
    }
    Ok(median(times))
}

pub fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
