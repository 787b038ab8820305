//! CPU time of the calling thread: on a machine that others load too, wall time says little.

use std::time::Duration;

/// CPU time that this thread has used so far.
pub fn thread_time() -> Duration {
    cpu_time(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time that all threads of this process have used so far.
#[allow(dead_code, reason = "not every benchmark spreads over threads")]
pub fn process_time() -> Duration {
    cpu_time(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn cpu_time(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is ours to be written.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(
        result, 0,
        "every system these benchmarks run on has this clock"
    );
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The CPU time that `work` takes.
pub fn timed(work: impl FnOnce()) -> Duration {
    let start = thread_time();
    work();
    thread_time() - start
}

/// Gives memory that the allocator keeps for later back to the system, where it can.
pub fn release_unused_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes any argument, and the allocator locks itself.
    unsafe {
        libc::malloc_trim(0);
    }
}
